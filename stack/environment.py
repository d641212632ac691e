"""Checks the settings of `.env`, and builds the environment of a process from them.

It has absolute paths, one Python and one Java, and nothing from the shell. Standard library only.
"""

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath

from include.contracts.errors import ConfigurationError, ContractMismatch
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.settings import Settings, reader_of
from stack import env_file, settings_table
from stack.layout import Layout, StackError
from stack.machine import LOOPBACK, find_java
from stack.services import SUPERUSER_PASSWORD, declare, external_services, pipelines_of

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
    _check(settings)
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


def _check(settings: Mapping[str, str]) -> None:
    """Raise StackError for missing variables, or for the first one with an invalid value, or a wrong definition."""
    lines = env_file.lines_of(settings)
    if "PIPELINE" in settings:
        raise StackError(
            f"PIPELINE={settings['PIPELINE']!r} in .env: each process gets its own from the stack; remove the line, "
            "and name the pipelines in PIPELINES"
        )
    if missing := [each.variable for each in lines if each.variable not in settings]:
        raise StackError(f".env has no {', '.join(missing)}: `make up` adds what is missing")
    needed = [each.variable for each in lines if each.line or callable(each.env)]
    if "postgres" in external_services(settings):
        needed.remove(SUPERUSER_PASSWORD)  # only the administrator may know it
    for name in needed:
        if not settings[name]:
            raise StackError(f"{name} is empty in .env: remove its line, and `make up` adds it with a value")
    try:
        declare(settings)  # checks ports, before the addresses that are made of them
        for pipeline in pipelines_of(settings):
            Settings.from_environment(settings, pipeline)
        for each in lines:
            EnvironmentReader(settings).read(each)
    except ConfigurationError as exc:
        raise StackError(f"in .env, {exc}") from exc
    except ContractMismatch as exc:  # a definition is wrong
        raise StackError(str(exc)) from exc
    for name in ("DATABASE_NAME", "STREAM_CHECKPOINT_DIR", "ARCHIVE_DIR"):
        _require_different(settings, name)


def _require_different(settings: Mapping[str, str], name: str) -> None:
    """Raise StackError if two pipelines have the same value, or a folder inside that of the other."""
    owners: dict[str, str] = {}
    for pipeline in pipelines_of(settings):
        variable = reader_of(pipeline, settings).variable(name)
        value = settings[variable]
        for other, owner in owners.items():
            mine, others = PurePath(value), PurePath(other)
            if mine.is_relative_to(others) or others.is_relative_to(mine):
                raise StackError(
                    f"{variable}={value!r} in .env: pipeline {owner} has {other!r}, and {pipeline} needs its own: "
                    "remove the line, and `make up` adds it"
                )
        owners[value] = pipeline
