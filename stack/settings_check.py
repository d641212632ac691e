"""Checks that the stack can run with the settings of `.env`. Standard library only."""

import base64
import binascii
from collections.abc import Mapping

from include.environment_reader import EnvironmentReader
from include.errors import ConfigurationError
from include.settings import Settings
from stack import env_file
from stack.errors import StackError
from stack.services import SUPERUSER_PASSWORD, declare, external_services

_FERNET_BYTES = 32


def check(settings: Mapping[str, str]) -> None:
    """Raise StackError for variables that are missing, or for the first one with an invalid value."""
    variables = [variable for section in env_file.SECTIONS for variable in section.variables]
    if missing := [variable.name for variable in variables if variable.name not in settings]:
        raise StackError(f".env has no {', '.join(missing)}: `make up` adds what is missing")
    may_be_empty = {
        variable.name for variable in variables if not (variable.default or variable.make_secret or variable.make_name)
    }
    if "postgres" in external_services(settings):
        may_be_empty.add(SUPERUSER_PASSWORD)  # only the administrator may know it
    for variable in variables:
        if not settings[variable.name] and variable.name not in may_be_empty:
            raise StackError(f"{variable.name} is empty in .env: remove its line, and `make up` adds it with a value")
    reader = EnvironmentReader(settings)
    try:
        declare(settings)  # checks ports, before the addresses that are made of them
        Settings.from_environment(settings)
        reader.memory("KAFKA_HEAP")
        reader.text("JAVA_HOME", "")
    except ConfigurationError as exc:
        raise StackError(f"in .env, {exc}") from exc
    if not _is_fernet_key(settings["AIRFLOW_FERNET_KEY"]):
        raise StackError(
            "AIRFLOW_FERNET_KEY in .env is not 32 bytes in URL-safe base64: put the old one back; where Airflow has "
            "encrypted nothing yet, remove the line, and `make up` makes a new one"
        )


def _is_fernet_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, altchars=b"-_", validate=True)) == _FERNET_BYTES
    except (binascii.Error, ValueError):
        return False
