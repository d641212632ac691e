"""`.env`, the settings and secrets of one stack, and the environment of a process, which is built from it.

The file is created on the first run, and its secrets are kept nowhere else. Docker compose reads it too, and a shell
can source it. So it has only NAME=value lines, with `${NAME}` for values that depend on other lines. An environment has
absolute paths, one Python and one Java, and nothing from the shell. Standard library only.
"""

import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from include.contracts.definition import SITE_NAME
from include.contracts.errors import ConfigurationError, ContractMismatch
from include.runtime import kinds
from include.runtime.environment_reader import EnvironmentReader, Setting
from include.runtime.settings import TABLE, Settings, prefix_of, reader_of
from stack.layout import Layout, StackError, write_private
from stack.machine import LOOPBACK, find_java, next_free
from stack.services import SUPERUSER_PASSWORD, declare, external_services, pipelines_of
from stack.settings_table import SECTIONS, Section, is_path, is_setting

_FIRST_FURTHER_PORT = 18_084
_STATE, _JARS = ".state/", ".state/jars/"

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OURS = (*{f"{each.variable.partition('_')[0]}_" for section in SECTIONS for each in section.lines}, "TEAM_")
# variables of tools that read the file or get its variables
_OF_OTHERS = ("COMPOSE_", "DOCKER_", "AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "SPARK_CONF_DIR", "SPARK_LOCAL_")


def sections_of(values: Mapping[str, str]) -> tuple[Section, ...]:
    """Return the sections of a file with these values: SECTIONS, and one per further pipeline. Raises StackError."""
    further = pipelines_of({"PIPELINES": SITE_NAME, **values})[1:]
    return (*SECTIONS, *(_section_of(name, number) for number, name in enumerate(further)))


def lines_of(values: Mapping[str, str]) -> list[Setting]:
    """Return the settings that have a line in such a file."""
    return [each for section in sections_of(values) for each in section.lines]


def ensure(path: Path, overrides: Mapping[str, str] | None = None, state: Path | None = None) -> list[str]:
    """Create the file if it is missing, or add missing variables; existing lines are not changed.

    A variable that existing lines use is inserted before the first of them, any other at the end. A file that other
    users could read gets mode 0600. `overrides` replaces defaults, and `state` the folder .state in them. Returns notes
    for the user, one line each: ports that were moved, variables that were added, a mode that was changed. Raises
    StackError as `read` does, and for a variable that no setting has the name of.
    """
    existing = _assignments(path) if path.exists() else []
    _refuse_unread(path, existing)
    values, notes = _new_values({each.name: each.value for each in existing}, overrides or {}, state)
    notes += _close_to_others(path) if existing else []
    if not values:
        return notes
    if existing:
        notes.append(f"{path.name} had no {', '.join(values)}: added")
        text = _with_added(path.read_text(encoding="utf-8"), existing, values)
    else:
        text = "".join(_render(sections_of(values), values))
    write_private(path, text)
    return notes


def complete(layout: Layout) -> list[str]:
    """Create or complete the file of a stack, with its state folder; returns notes. Raises StackError as `ensure`."""
    return ensure(layout.env_file, state=None if layout.state == layout.root / ".state" else layout.state)


def add_pipeline(path: Path, pipeline: str) -> bool:
    """Append the pipeline to PIPELINES in a complete file; returns False if it is there. Raises StackError."""
    (line,) = (each for each in _assignments(path) if each.name == "PIPELINES")
    names = pipelines_of({line.name: line.value})
    if pipeline in names:
        return False
    longer = ",".join([*names, pipeline])
    pipelines_of({line.name: longer})
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[line.line - 1] = f"{line.name}={longer}"
    write_private(path, "\n".join(lines))
    return True


def read(path: Path) -> dict[str, str]:
    """Return the variables of the file with references expanded. Raises StackError with the line and the remedy.

    A shell and compose expand a reference with the lines above it. So a line that they would read differently raises
    StackError.
    """
    values: dict[str, str] = {}
    used: dict[str, _Assignment] = {}
    assignments = _assignments(path)
    for each in assignments:
        if each.name in used:
            raise StackError(
                f"{path} line {each.line} sets {each.name}, which line {used[each.name].line} above uses for "
                f"{used[each.name].name}: move line {each.line} above it"
            )
        for name in _references(each):
            if name not in values and not any(other.name == name and other.line > each.line for other in assignments):
                raise StackError(
                    f"{path} line {each.line}: {each.name} uses ${{{name}}}, which no line sets: set it in a line above"
                )
            used.setdefault(name, each)
        values[each.name] = _expanded(each.value, values)
    return values


def with_defaults(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a file, and the default of each one that the file of an earlier version lacks."""
    complete = dict(values)
    for each in lines_of(values):
        if not callable(each.env):
            complete.setdefault(each.variable, _expanded(each.line, complete))
    return complete


@dataclass(frozen=True)
class _Assignment:
    """One NAME=value line, without quotes, with references not expanded. Lines are counted from 1."""

    line: int
    name: str
    value: str


def _assignments(path: Path) -> list[_Assignment]:
    """Return the assignments. Raises StackError for a line that is not an assignment, empty or a comment."""
    content = path.read_bytes()
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as exc:
        number = content.count(b"\n", 0, exc.start) + 1
        raise StackError(f"{path} line {number} is not UTF-8 text: save the file in that encoding") from exc
    found: dict[str, _Assignment] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None or "\0" in text:
            raise StackError(
                f"{path} line {number} is not NAME=value (or the file begins with a byte order mark): correct it, "
                "or remove the file to make a new one"
            )
        each = _Assignment(number, match.group(1), _unquote(match.group(2)))
        if each.name in found:
            raise StackError(
                f"{path} lines {found[each.name].line} and {number} both set {each.name}: keep one of them"
            )
        found[each.name] = each
    return list(found.values())


def _refuse_unread(path: Path, assignments: Sequence[_Assignment]) -> None:
    """Raise StackError for a variable with a name like ours that is no setting.

    Its setting would have the default in silence.
    """
    used = {name for each in assignments for name in _references(each)}
    for each in assignments:
        if each.name.startswith(_OURS) and not (
            each.name in used or is_setting(each.name) or each.name.startswith(_OF_OTHERS)
        ):
            raise StackError(
                f"{path} line {each.line}: no setting has the name {each.name}, so the line has no effect: correct the "
                "name or remove the line"
            )


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: values.get(found.group(1), ""), text)


def _references(assignment: _Assignment) -> list[str]:
    return _REFERENCE.findall(assignment.value)


def _with_added(text: str, existing: Iterable[_Assignment], values: Mapping[str, str]) -> str:
    first_use: dict[str, int] = {}
    for each in existing:
        for name in _references(each):
            first_use.setdefault(name, each.line)
    lines = text.rstrip("\n").split("\n")
    at_the_end = [f"{name}={value}" for name, value in values.items() if name not in first_use]
    for name in sorted(first_use.keys() & values.keys(), key=lambda name: first_use[name], reverse=True):
        lines.insert(first_use[name] - 1, f"{name}={values[name]}")
    return "\n".join([*lines, *([""] if at_the_end else []), *at_the_end, ""])


def located(path: str, state: Path) -> str:
    """Return a path of the file, in the state folder in place of `.state`; the jars stay."""
    is_data = path.startswith(_STATE) and not path.startswith(_JARS)
    return str(state / path.removeprefix(_STATE)) if is_data else path


def _section_of(pipeline: str, number: int) -> Section:
    prefix, folder, port = prefix_of(pipeline), f"{_STATE}pipelines/{pipeline}", _FIRST_FURTHER_PORT + 2 * number
    values = {
        "DATABASE_NAME": pipeline,
        "STREAM_CHECKPOINT_DIR": f"{folder}/checkpoints",
        "STREAM_METRICS_PORT": str(port),
        "STREAM_SERVE_METRICS_PORT": str(port + 1),
        "ARCHIVE_DIR": f"{folder}/archive",
    }
    return Section(
        pipeline,
        f"Pipeline {pipeline}: the prefix {prefix} makes a setting its own. These differ between pipelines.",
        product=tuple(replace(TABLE[name], variable=prefix + name, env=value) for name, value in values.items()),
    )


def _new_values(
    existing: Mapping[str, str], overrides: Mapping[str, str], state: Path | None
) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    notes: list[str] = []
    settings = lines_of({**overrides, **existing})
    ports = {each.variable for each in settings if each.kind is kinds.PORT}
    taken = {int(existing[name]) for name in ports if existing.get(name, "").isdigit()}
    for each in (each for each in settings if each.variable not in existing):
        value = overrides.get(each.variable, each.line)
        if state is not None:
            value = located(value, state)
        if callable(each.env) and not value:
            value = each.env()
        if each.variable in ports:
            port = next_free(int(value), taken)
            if port != int(value):
                notes.append(f"port {value} is in use, {each.variable} is {port} instead")
            taken.add(port)
            value = str(port)
        values[each.variable] = value
    return values, notes


def _render(sections: Iterable[Section], values: Mapping[str, str]) -> Iterable[str]:
    yield "# Created on the first run. The stack and docker compose read it. Change it only while the stack is down.\n"
    yield "# docs/settings.md describes the lines, and further settings.\n"
    for section in (each for each in sections if each.lines):
        yield f"\n# {section.comment}\n"
        yield from (f"{each.variable}={values[each.variable]}\n" for each in section.lines)


def _close_to_others(path: Path) -> list[str]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return []
    try:
        path.chmod(0o600)
    except PermissionError as exc:
        raise StackError(f"{path} has mode {mode:04o} and is not yours: its owner must run `chmod 600 {path}`") from exc
    return [
        f"{path.name} had mode {mode:04o}: now 0600. Other users of this machine may have read its secrets; "
        "to change one, see docs/runbooks/stack.md"
    ]


def _unquote(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text.split(" #", 1)[0].rstrip()


# Every process of the stack has it in its environment, and so have its children: `down` finds leftovers by it.
MARKER = "STACK_STATE"

_PASSED_ON = ("HOME", "USER", "LOGNAME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "POSTGRES_BIN_DIR")
# addresses with a token or a password in them, and headers with a token
_SECRET_ENDINGS = ("_PASSWORD", "_TOKEN", "_SECRET", "_KEY", "_WEBHOOK_URL", "_CONNECTION", "_HEADERS")


def load_settings(layout: Layout) -> dict[str, str]:
    """Return the checked variables of `.env`, with absolute paths. Raises StackError, also if there is no file."""
    if not layout.env_file.exists():
        raise StackError(f"there is no {layout.env_file} yet: run `make up` first")
    settings = with_defaults(read(layout.env_file))
    for name in filter(is_path, settings):
        if settings[name] and "://" not in settings[name]:  # the archive may be in a store, given by a URI
            settings[name] = str(layout.root / located(settings[name], layout.state))
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
    lines = lines_of(settings)
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
