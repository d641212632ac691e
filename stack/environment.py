"""Builds the environment of a process from `.env`: absolute paths, one Python, one Java, nothing from the shell."""

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from stack import env_file, settings_check, settings_table
from stack.errors import StackError
from stack.layout import Layout
from stack.ports import LOOPBACK
from stack.prerequisites import find_java

# Every process of the stack has it in its environment, and so have its children: `down` finds leftovers by it.
MARKER = "STACK_STATE"

_PASSED_ON = ("HOME", "USER", "LOGNAME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "POSTGRES_BIN_DIR")
# addresses with a token or a password in them, and headers with a token
_SECRET_ENDINGS = ("_PASSWORD", "_TOKEN", "_SECRET", "_KEY", "_WEBHOOK_URL", "_CONNECTION", "_HEADERS")


def load_settings(layout: Layout) -> dict[str, str]:
    """Return the checked variables of `.env`, with absolute paths. Raises StackError, also if there is no file."""
    if not layout.env_file.exists():
        raise StackError(f"there is no {layout.env_file} yet: run `make up` first")
    settings = env_file.with_defaults(env_file.read(layout.env_file))
    for name in filter(settings_table.is_path, settings):
        if settings[name] and "://" not in settings[name]:  # the archive may be in a store, given by a URI
            settings[name] = str(layout.root / env_file.located(settings[name], layout.state))
    settings_check.check(settings)
    return settings


def load_environment(layout: Layout | None = None) -> dict[str, str]:
    """Return the environment for a tool run by hand, such as the demo: every setting, including secrets."""
    layout = layout or Layout.of()
    settings = load_settings(layout)
    variables = {**base_environment(layout, settings), **settings}
    del variables[MARKER]  # `down` must not end a tool that the user runs
    return variables


def base_environment(layout: Layout, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every process of the stack needs, besides its settings. Runs `java -version` once."""
    java_home = java_home_of(settings)
    path = [str(Path(sys.executable).parent), str(java_home / "bin"), os.environ.get("PATH", os.defpath)]
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "PATH": os.pathsep.join(path),
        "JAVA_HOME": str(java_home),
        "LANG": "C.UTF-8",  # decides the encoding of files in Java 17 and Python
        "PYTHONPATH": str(layout.root),
        "PYTHONUNBUFFERED": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        MARKER: str(layout.state),
        "SPT_NOENV": "1",  # setproctitle, which Airflow uses, would overwrite the environment in /proc, with the marker
        # A driver in local mode needs no other address, and the machine's address may change while it runs.
        **({"SPARK_LOCAL_IP": LOOPBACK} if settings.get("SPARK_MASTER", "").startswith("local") else {}),
    }


def java_home_of(settings: Mapping[str, str]) -> Path:
    """Return the Java of `.env`, else the machine's. Raises StackError if there is no Java that can be used."""
    return find_java({**os.environ, **({"JAVA_HOME": settings["JAVA_HOME"]} if settings.get("JAVA_HOME") else {})})


def without_secrets(settings: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """Return the settings without secrets except those in `keep`: a process gets only the passwords that it uses."""
    return {name: value for name, value in settings.items() if name in keep or not name.endswith(_SECRET_ENDINGS)}
