"""`.env`: the ports and secrets of one stack, created on its first run and kept nowhere else.

Docker compose reads the file too, and a shell can source it. So it has only NAME=value lines, with `${NAME}` for values
that depend on other lines.
"""

import base64
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from include.contracts.definition import SITE_NAME
from include.runtime.settings import prefix_of
from stack.errors import StackError
from stack.ports import next_free
from stack.services import pipelines_of


@dataclass(frozen=True)
class Variable:
    """One line of the file. When the file is created, busy ports are replaced, and secrets and names are generated."""

    name: str
    default: str = ""
    port: bool = False
    make_secret: Callable[[], str] | None = None
    make_name: Callable[[], str] | None = None


@dataclass(frozen=True)
class Section:
    """Related lines under one comment."""

    comment: str
    variables: tuple[Variable, ...]


def _password() -> str:
    return secrets.token_hex(16)  # without characters that are special in a URL, a shell or compose


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _secret(name: str, make: Callable[[], str] = _password) -> Variable:
    return Variable(name, make_secret=make)


def _project_name() -> str:
    return f"board-detail-{secrets.token_hex(3)}"


SECTIONS = (
    Section(
        "Services you run yourself; the stack does not start them: kafka,postgres. Set their addresses below.",
        (Variable("STACK_EXTERNAL"),),
    ),
    Section(
        "Pipelines that run side by side, separated by commas; see docs/pipelines.md.",
        (Variable("PIPELINES", SITE_NAME),),
    ),
    Section("Time zone of the pipeline's days.", (Variable("PIPELINE_TIMEZONE", "Asia/Seoul"),)),
    Section(
        "Kafka. The local broker keeps one replica: if its disk is lost, the records are lost.",
        (
            Variable("KAFKA_PORT", "19092", port=True),
            Variable("KAFKA_CONTROLLER_PORT", "19093", port=True),
            Variable("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:${KAFKA_PORT}"),
            Variable("KAFKA_PARTITIONS", "8"),
            Variable("KAFKA_REPLICATION_FACTOR", "1"),
            Variable("KAFKA_MIN_INSYNC_REPLICAS", "1"),
            Variable("KAFKA_HEAP", "768m"),
            Variable("KAFKA_RETENTION_DAYS", "14"),
        ),
    ),
    Section(
        "PostgreSQL, and one password for each role that connects.",
        (
            Variable("DATABASE_HOST", "127.0.0.1"),
            Variable("DATABASE_PORT", "15432", port=True),
            Variable("DATABASE_NAME", "pipeline"),
            _secret("POSTGRES_SUPERUSER_PASSWORD"),
            _secret("DB_OWNER_PASSWORD"),
            _secret("DB_GATEWAY_PASSWORD"),
            _secret("DB_STREAM_PASSWORD"),
            _secret("DB_BATCH_PASSWORD"),
            _secret("DB_INTEGRITY_PASSWORD"),
            _secret("DB_ANALYST_PASSWORD"),
            _secret("DB_AIRFLOW_PASSWORD"),
        ),
    ),
    Section(
        "Gateway. Clients send GATEWAY_TOKEN; calls on the fallback store need the admin token. It stores only hashes.",
        (
            Variable("GATEWAY_HOST", "127.0.0.1"),
            Variable("GATEWAY_PORT", "18080", port=True),
            Variable("GATEWAY_URL", "http://127.0.0.1:${GATEWAY_PORT}"),
            _secret("GATEWAY_TOKEN"),
            _secret("GATEWAY_ADMIN_TOKEN"),
            Variable("GATEWAY_TOKENS_FILE", ".state/run/gateway-tokens.json"),
            Variable("GATEWAY_FALLBACK_DIR", ".state/fallback"),
            Variable("GATEWAY_DELIVERY_TIMEOUT_S", "2"),
        ),
    ),
    Section(
        "The streaming application. STREAM_PROCESSES=2 runs the queries join and serve as two services.",
        (
            Variable("STREAM_CHECKPOINT_DIR", ".state/checkpoints"),
            Variable("STREAM_STATE_DIR", ".state/stream-state"),
            Variable("STREAM_TRIGGER_INTERVAL_S", "0.7"),
            Variable("STREAM_PROCESSES", "1"),
            Variable("STREAM_METRICS_PORT", "18081", port=True),
            Variable("STREAM_SERVE_METRICS_PORT", "18083", port=True),
            Variable("STREAM_DRIVER_MEMORY", "2g"),
        ),
    ),
    Section(
        "The batch layer. ARCHIVE_DIR: a folder that all Spark tasks can read, or a URI such as s3://bucket/archive.",
        (
            Variable("ARCHIVE_DIR", ".state/archive"),
            Variable("REBUILD_DRIVER_MEMORY", "2g"),
            Variable("REBUILD_ROWS_PER_TASK", "100000"),
            Variable("UNDO_RETENTION_DAYS", "7"),
            Variable("NIGHT_BUDGET_S", "14400"),
            Variable("APPROVE_UNEXPLAINED_ABOVE", "0"),
            Variable("APPROVAL_TIMEOUT_S", "43200"),
            Variable("RUN_RETENTION_DAYS", "30"),
        ),
    ),
    Section(
        "Alerts, besides the log. ALERT_SMTP_CONNECTION, as in Airflow: smtp://user:password@host:587/?from_email=…",
        (Variable("ALERT_WEBHOOK_URL"), Variable("ALERT_MAIL_TO"), Variable("ALERT_SMTP_CONNECTION")),
    ),
    Section(
        "Lineage as OpenLineage events. LINEAGE_RECEIVER: a file, or http://host:port of a receiver; empty: off.",
        (Variable("LINEAGE_RECEIVER", ".state/logs/lineage.jsonl"), Variable("LINEAGE_NAMESPACE", "pipelines")),
    ),
    Section(
        "Spark. Set SPARK_MASTER to run jobs on a cluster. The team deployment's cluster uses the secret.",
        (
            Variable("SPARK_MASTER", "local[2]"),
            Variable("SPARK_KAFKA_JARS_DIR", ".state/jars/spark-kafka"),
            Variable("SPARK_SCRATCH_DIR", ".state/spark"),
            _secret("SPARK_AUTH_SECRET"),
        ),
    ),
    Section(
        "Airflow: users admin, operator and viewer. Prometheus sends METRICS_TOKEN to read the batch layer's metrics.",
        (
            Variable("AIRFLOW_PORT", "18082", port=True),
            _secret("AIRFLOW_ADMIN_PASSWORD"),
            _secret("AIRFLOW_OPERATOR_PASSWORD"),
            _secret("AIRFLOW_VIEWER_PASSWORD"),
            _secret("METRICS_TOKEN"),
            _secret("AIRFLOW_JWT_SECRET", lambda: secrets.token_hex(32)),
            _secret("AIRFLOW_FERNET_KEY", _fernet_key),
            Variable("AIRFLOW_HOME", ".state/airflow"),
        ),
    ),
    Section(
        "Project name of the team deployment; names of containers, volumes and image begin with it.",
        (Variable("COMPOSE_PROJECT_NAME", make_name=_project_name),),
    ),
    Section("Java 17, 21 or 25. Empty: JAVA_HOME of the shell, or java on PATH.", (Variable("JAVA_HOME"),)),
)

_FIRST_FURTHER_PORT = 18_084
_STATE, _JARS = ".state/", ".state/jars/"
_PATH_VARIABLES = (
    "GATEWAY_TOKENS_FILE",
    "GATEWAY_FALLBACK_DIR",
    "STREAM_CHECKPOINT_DIR",
    "STREAM_STATE_DIR",
    "ARCHIVE_DIR",
    "LINEAGE_RECEIVER",
    "SPARK_KAFKA_JARS_DIR",
    "SPARK_SCRATCH_DIR",
    "AIRFLOW_HOME",
)

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_OTHERS = ("COMPOSE_", "DOCKER_", "AIRFLOW__")  # variables of tools that read the file or get its variables
ROOT = Path(__file__).resolve().parents[1]


def sections_of(values: Mapping[str, str]) -> tuple[Section, ...]:
    """Return the sections of a file with these values: SECTIONS, and one per further pipeline. Raises StackError."""
    further = pipelines_of({"PIPELINES": SITE_NAME, **values})[1:]
    return (*SECTIONS, *(_section_of(name, number) for number, name in enumerate(further)))


def variables_of(values: Mapping[str, str]) -> list[Variable]:
    """Return the variables of these sections."""
    return [variable for section in sections_of(values) for variable in section.variables]


def is_path(name: str) -> bool:
    """True if the variable, with or without the prefix of a pipeline, holds a path."""
    return name.rpartition("__")[2] in _PATH_VARIABLES


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
    _write_private(path, text)
    return notes


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
    _write_private(path, "\n".join(lines))
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
    for variable in variables_of(values):
        if variable.make_secret is None and variable.make_name is None:
            complete.setdefault(variable.name, _expanded(variable.default, complete))
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
    """Raise StackError for a variable with a name like ours that occurs nowhere in the product.

    Its setting would have the default in silence.
    """
    readers = [file for pattern in ("docker-compose.yaml", "stack/*.py", "include/*.py") for file in ROOT.glob(pattern)]
    read = set(_NAME.findall("\n".join(file.read_text(encoding="utf-8") for file in readers)))
    read |= {name for each in assignments for name in _references(each)}
    ours = tuple({each.name.partition("_")[0] + "_" for section in SECTIONS for each in section.variables})
    for each in assignments:
        if (
            each.name.rpartition("__")[2] not in read
            and each.name.startswith(ours)
            and not each.name.startswith(_OF_OTHERS)
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
    return Section(
        f"Pipeline {pipeline}: the prefix {prefix} makes a setting its own. These differ between pipelines.",
        (
            Variable(f"{prefix}DATABASE_NAME", pipeline),
            Variable(f"{prefix}STREAM_CHECKPOINT_DIR", f"{folder}/checkpoints"),
            Variable(f"{prefix}STREAM_METRICS_PORT", str(port), port=True),
            Variable(f"{prefix}STREAM_SERVE_METRICS_PORT", str(port + 1), port=True),
            Variable(f"{prefix}ARCHIVE_DIR", f"{folder}/archive"),
        ),
    )


def _new_values(
    existing: Mapping[str, str], overrides: Mapping[str, str], state: Path | None
) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    notes: list[str] = []
    variables = variables_of({**overrides, **existing})
    taken = {int(existing[each.name]) for each in variables if each.port and existing.get(each.name, "").isdigit()}
    for variable in (each for each in variables if each.name not in existing):
        value = overrides.get(variable.name, variable.default)
        if state is not None:
            value = located(value, state)
        make = variable.make_secret or variable.make_name
        if make is not None and not value:
            value = make()
        if variable.port:
            port = next_free(int(value), taken)
            if port != int(value):
                notes.append(f"port {value} is in use, {variable.name} is {port} instead")
            taken.add(port)
            value = str(port)
        values[variable.name] = value
    return values, notes


def _render(sections: Iterable[Section], values: Mapping[str, str]) -> Iterable[str]:
    yield "# Created on the first run. The stack and docker compose read it. Change it only while the stack is down.\n"
    for section in sections:
        yield f"\n# {section.comment}\n"
        for variable in section.variables:
            yield f"{variable.name}={values[variable.name]}\n"


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


def _write_private(path: Path, text: str) -> None:
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    scratch.replace(path)


def _unquote(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text.split(" #", 1)[0].rstrip()
