"""Set-up: checks the machine, then makes the virtual environment, fetches the jars and archives their classes.

Run by make with the system's Python as `python3 -m stack.bootstrap`. The first run downloads packages and takes
minutes. Later runs check stamps and checksums, download nothing and take about a second.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from stack import jars, leftovers
from stack.layout import Layout, StackError, one_line_errors
from stack.machine import check_disk, check_path, check_python, find_java

LOG_TAIL_LINES = 15
# Lock files, in the order of installation. Two packages are built from source. The first lock file pins their build
# requirements, for which pip and uv would otherwise fetch the newest versions.
# The locks are complete and nothing is resolved (`--no-deps`): pip 23 refuses a locked package that another one asks
# for with an extra, as soon as the index has a newer version of it.
INSTALLS = (
    ("requirements-build.lock", ("--no-deps", "--only-binary", ":all:")),
    (
        "requirements.lock",
        (
            *("--no-deps", "--only-binary", ":all:", "--no-binary", "pyspark", "--no-binary", "pyspark-client"),
            "--no-build-isolation",
        ),
    ),
)
# The image has no use for the local stack, tests and checks.
LOCAL_INSTALLS = (*INSTALLS, ("requirements-local.lock", ("--no-deps", "--only-binary", ":all:")))

# The project is not packaged. The command runs the project whose .state has the environment, and needs no activation.
COMMAND = """\
#!/bin/sh
bin=$(dirname -- "$0")
[ ! -L "$0" ] || bin=$(dirname -- "$(readlink -f -- "$0")")
root=$(CDPATH= cd -- "$bin/../../.." && pwd)
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$bin/python" -P -m pipeline "$@"
"""


def main() -> None:
    """Run the set-up. Exits with 1 after a one-line error, with 130 after Ctrl-C."""
    try:
        with one_line_errors("setup"):
            set_up(Layout.of())
    except KeyboardInterrupt:
        print("setup: interrupted; the next run continues from here", file=sys.stderr)
        sys.exit(130)


def set_up(layout: Layout) -> None:
    """Install everything that the other targets need. Safe to run at any time, also concurrently. Raises StackError."""
    check_path(layout.root)
    check_python(sys.version_info[:2])
    java_home = find_java(os.environ)
    layout.state.mkdir(parents=True, exist_ok=True)
    with (layout.state / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ensure_environment(layout)
        make_command(layout)
        jars.ensure(layout, jars.pyspark_jars(layout.venv), java_home, require_unused=require_unused)
        archive_classes(layout, java_home)


def ensure_environment(layout: Layout) -> None:
    """Make the environment of the lock file, unless it is current; the caller holds the set-up lock.

    An existing environment is never replaced while a process uses it, and is restored if the new one can't be made.
    Raises StackError.
    """
    lock_file = layout.root / "requirements.lock"
    if is_current(layout.venv, lock_file):
        return
    check_disk(layout.state)
    require_unused(layout.venv)
    kept = layout.venv.with_name("venv.old")
    if layout.venv.exists() and not kept.exists():  # if `kept` exists, an install was killed, and `venv` is incomplete
        layout.venv.rename(kept)
    try:
        install(layout, lock_file)
    except BaseException:  # Ctrl-C too
        if kept.exists():
            shutil.rmtree(layout.venv, ignore_errors=True)
            kept.rename(layout.venv)
        raise
    shutil.rmtree(kept, ignore_errors=True)


def make_command(layout: Layout) -> None:
    """Write the command `pipeline` into the environment's folder of programs, unless it is there."""
    command = layout.venv / "bin" / "pipeline"
    if not command.exists() or command.read_text() != COMMAND:
        command.write_text(COMMAND)
        command.chmod(0o755)


def require_unused(folder: Path) -> None:
    """Raise StackError if a process uses the folder, which is to be replaced."""
    if users := leftovers.find_users([folder]):
        raise StackError(
            f"{folder} must be replaced and is in use, end that first (`make down`): {leftovers.describe(users[0])}"
        )


def is_current(venv: Path, lock_file: Path) -> bool:
    """True if the environment was made from this lock file by this Python, and still runs."""
    try:
        recorded = (venv / "installed.json").read_text()
    except FileNotFoundError:
        return False
    if recorded != _stamp(lock_file):
        return False
    return subprocess.run([venv / "bin" / "python", "-c", ""], check=False, capture_output=True).returncode == 0


def install(layout: Layout, lock_file: Path) -> None:
    """Create the environment from the lock files, with uv if it is on PATH and pip otherwise."""
    started = time.monotonic()
    uv = shutil.which("uv")
    print(f"setup: installing dependencies with {'uv' if uv else 'pip'}; minutes, the first time only", flush=True)
    layout.logs.mkdir(mode=0o700, exist_ok=True)
    log = layout.log_file("setup")
    log.write_text("")
    shutil.rmtree(layout.venv, ignore_errors=True)
    python = str(layout.venv / "bin" / "python")
    if uv:
        _run([uv, "venv", "--no-project", "--python", sys.executable, str(layout.venv)], log, "making .state/venv")
        command = [uv, "pip", "install", "--no-config", "--python", python, "--compile-bytecode"]
    else:
        _run(
            [sys.executable, "-m", "venv", str(layout.venv)],
            log,
            "making .state/venv",
            "on Debian and Ubuntu the venv module is a package of its own, `apt install python3-venv`",
        )
        command = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    for name, options in LOCAL_INSTALLS:
        lock = str(layout.root / name)
        _run([*command, "--require-hashes", *options, "-r", lock], log, "installing dependencies")
    (layout.venv / "installed.json").write_text(_stamp(lock_file))  # last, so that an interrupted install is repeated
    print(f"setup: dependencies installed in {time.monotonic() - started:.0f} s", flush=True)


def _stamp(lock_file: Path) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    locks = b"".join(lock_file.with_name(name).read_bytes() for name, _ in LOCAL_INSTALLS)
    return json.dumps({"python": version, "lock": hashlib.sha256(locks).hexdigest()})


def _run(command: list[str], log: Path, doing: str, remedy: str = "check the network and the package index") -> None:
    with log.open("a") as output:
        result = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        for line in log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]:
            print(f"    {line}", file=sys.stderr)
        raise StackError(f"{doing} failed, see {log}: {remedy}")


def archive_classes(layout: Layout, java_home: Path) -> None:
    """Archive the classes that Spark's drivers load, unless this Java, these jars and this environment have an archive.

    Takes half a minute. If it can't be made, print that once: drivers then start some seconds later.
    """
    stamp = layout.spark_jars / "classes.json"
    wanted = _class_stamp(layout, java_home)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("setup: archiving the classes of Spark's drivers; half a minute, the first time only", flush=True)
    began = time.monotonic()
    log = layout.log_file("class-archive")
    layout.logs.mkdir(mode=0o700, exist_ok=True)
    command = [str(layout.venv / "bin" / "python"), "-m", "spark_jobs.class_archive", str(layout.spark_jars)]
    environment = {**os.environ, "LANG": "C.UTF-8", "PYTHONPATH": str(layout.root), "JAVA_HOME": str(java_home)}
    with log.open("w") as output:
        code = subprocess.run(
            command, cwd=layout.root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            check=False,
        ).returncode  # fmt: skip
    stamp.write_text(wanted)
    if code == 0:
        print(f"setup: classes archived in {time.monotonic() - began:.0f} s", flush=True)
    else:
        print(f"setup: no archive of classes, drivers start some seconds later: see {log}", flush=True)


def _class_stamp(layout: Layout, java_home: Path) -> str:
    """Return Java, environment and jars as text. A JVM rejects an archive made with others, by path, size and time."""
    java = (java_home / "bin" / "java").resolve().stat()
    installed = (layout.venv / "installed.json").stat()
    jars = sorted((path.name, path.stat().st_mtime_ns) for path in layout.spark_jars.glob("*.jar"))
    return json.dumps([str(java_home), java.st_mtime_ns, java.st_size, installed.st_mtime_ns, jars])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
