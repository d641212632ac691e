"""Checks that the stack can run with the settings of `.env`. Standard library only."""

from collections.abc import Mapping
from pathlib import PurePath

from include.contracts.errors import ConfigurationError, ContractMismatch
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.settings import Settings, reader_of
from stack import env_file
from stack.errors import StackError
from stack.services import SUPERUSER_PASSWORD, declare, external_services, pipelines_of


def check(settings: Mapping[str, str]) -> None:
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
