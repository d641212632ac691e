"""The archive of the classes that Spark's drivers load, made at set-up. Standard library only."""

import json
import os
import subprocess
import time
from pathlib import Path

from stack.layout import Layout


def ensure(layout: Layout, java_home: Path) -> None:
    """Make the archive if there is none for this Java, these jars and this environment. Takes half a minute.

    If it can't be made, print that once: drivers then start some seconds later.
    """
    stamp = layout.spark_jars / "classes.json"
    wanted = _stamp(layout, java_home)
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


def _stamp(layout: Layout, java_home: Path) -> str:
    """Return Java, environment and jars as text. A JVM rejects an archive made with others, by path, size and time."""
    java = (java_home / "bin" / "java").resolve().stat()
    installed = (layout.venv / "installed.json").stat()
    jars = sorted((path.name, path.stat().st_mtime_ns) for path in layout.spark_jars.glob("*.jar"))
    return json.dumps([str(java_home), java.st_mtime_ns, java.st_size, installed.st_mtime_ns, jars])
