"""The table of settings by section, and what is written from it: `.env`, the deployments' files, docs/settings.md.

The rows that processes of the pipeline read are in `include.runtime.settings`. Here are those of the stack itself, of
compose, and of libraries. A default in docker-compose.yaml is in that file alone.
"""

import base64
import re
import secrets
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from functools import partial

from include.runtime import kinds
from include.runtime import settings as pipeline
from include.runtime.environment_reader import Setting, settings_of
from include.runtime.logs import LOG_FORMAT
from include.runtime.settings import new_password


@dataclass(frozen=True)
class Section:
    """Settings of one subject. `comment` is its line in `.env`.

    Processes of the pipeline (`reader`) read those in `product`, which each deployment passes on. Each of `own` names
    its reader.
    """

    title: str
    comment: str
    reader: str = ""
    product: tuple[Setting, ...] = ()
    own: tuple[Setting, ...] = ()

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All of them. Those of the stack are first, because addresses are made of its ports."""
        return self.own + self.product

    @property
    def lines(self) -> tuple[Setting, ...]:
        """Those with a line in a new `.env`."""
        return tuple(each for each in self.settings if each.env is not False)


# fmt: off
_FERNET_KEY = kinds.Kind("32 bytes in URL-safe base64",
    lambda text: len(base64.b64decode(text, altchars=b"-_", validate=True)) == 32, str, is_secret=True,
    wrong="is not 32 bytes in URL-safe base64: put the old one back; where Airflow has encrypted nothing yet, remove "
        "the line, and `make up` makes a new one")
_stack = partial(Setting, reader="stack", env=True)
_compose = partial(Setting, kind=kinds.TEXT, default=None, reader="compose")
_password = partial(Setting, kind=kinds.SECRET, default="", env=new_password)

SECTIONS = (
    Section("Stack", "Services you run yourself; the stack does not start them: kafka,postgres. Set their addresses "
        "below.", own=(_stack("STACK_EXTERNAL", kinds.TEXT, "", "services that are yours: kafka, postgres or both"),)),
    Section("Pipelines", "Pipelines that run side by side, separated by commas, and the time zone of their days.",
        "all", (pipeline.PIPELINES, pipeline.TABLE["PIPELINE_TIMEZONE"], LOG_FORMAT), (
        Setting("PIPELINE", kinds.TEXT, None, "the pipeline that a process runs; the first one if empty. Not in `.env`",
            reader="each process"),
        Setting("DEFINITIONS_DIR", kinds.PATH, None, "the folder of the definitions, instead of `include/pipelines`",
            reader="each process"))),
    Section("Kafka", "Kafka. The local broker keeps one replica: if its disk is lost, the records are lost.",
        "all", tuple(settings_of(pipeline.KafkaSettings)), (
        _stack("KAFKA_PORT", kinds.PORT, 19092, "the local broker's port"),
        _stack("KAFKA_CONTROLLER_PORT", kinds.PORT, 19093, "its port as controller"),
        _stack("KAFKA_HEAP", kinds.MEMORY, "768m", "a broker's heap; of compose, the limit of its container is 1536m"),
        _compose("KAFKA_IMAGE", help="image of the brokers"),
        _compose("KAFKA_CLUSTER_ID", help="id of the cluster, with which the brokers format their disks"),
        _compose("KAFKA_OPEN_FILES", help="a broker's limit of open files. An engine whose own limit is lower does not "
            "start the container"))),
    Section("PostgreSQL", "PostgreSQL, and one password for each role that connects.",
        "all", tuple(settings_of(pipeline.DatabaseSettings)), (
        _password("DB_AIRFLOW_PASSWORD", help="password of role airflow, of Airflow's own database", reader="Airflow"),
        _compose("POSTGRES_IMAGE", help="image of PostgreSQL"))),
    Section("Gateway", "Gateway. Clients send GATEWAY_TOKEN; calls on the fallback store need the admin token. It "
        "stores only hashes.", "gateway and its clients", tuple(settings_of(pipeline.GatewaySettings))),
    Section("Stream", "The streaming application. STREAM_PROCESSES=2 runs the queries join and serve as two services.",
        "stream", tuple(settings_of(pipeline.StreamSettings)), (
        _stack("STREAM_PROCESSES", kinds.choice("1", "2"), "1", "2: the queries join and serve are two services"),
        _compose("STREAM_MEMORY_LIMIT", help="limit of the stream's container; more than the driver's heap"))),
    Section("Batch layer", "The batch layer. ARCHIVE_DIR: a folder that all Spark tasks can read, or a URI such as "
        "s3://bucket/archive.", "tasks of Airflow", tuple(settings_of(pipeline.BatchSettings))),
    Section("Alerts", "Alerts, besides the log. ALERT_SMTP_CONNECTION, as in Airflow: "
        "smtp://user:password@host:587/?from_email=…", "the DAGs `watch_pipeline` and `audit`",
        tuple(settings_of(pipeline.AlertSettings)), (
        Setting("ALERT_SMTP_CONNECTION", kinds.SECRET, "", "the mail server, as Airflow's connection `smtp_default`: "
            "`smtp://user:password@host:587/?from_email=pipeline%40example.com&timeout=10&retry_limit=1`, with "
            "`disable_ssl=true` for STARTTLS", reader="Airflow", env=True),)),
    Section("Lineage", "Lineage as OpenLineage events. LINEAGE_RECEIVER: a file, or http://host:port of a receiver; "
        "empty: off.", "stream, tasks of Airflow", tuple(settings_of(pipeline.LineageSettings)), (
        _compose("TEAM_LINEAGE_TRANSPORT", help="of Airflow itself, as its `AIRFLOW__OPENLINEAGE__TRANSPORT`"),)),
    Section("Tracing", "", "gateway and stream, by OpenTelemetry's SDK", pipeline.OTEL),
    Section("Spark", "Spark. Set SPARK_MASTER to run jobs on a cluster. The team deployment's cluster uses the secret.",
        "stream, tasks of Airflow", tuple(settings_of(pipeline.SparkSettings)), (
        _password("SPARK_AUTH_SECRET", help="the secret of the cluster's processes", reader="compose"),
        _compose("SPARK_WORKER_CORES", help="cores that a worker offers"),
        _compose("SPARK_WORKER_MEMORY", help="memory that a worker offers"),
        _compose("SPARK_WORKER_MEMORY_LIMIT", help="limit of its container, in which Python workers run too"),
        _compose("SPARK_APPLICATION_CORES", help="cores of one application; stream and rebuild must both get theirs"),
        _compose("SPARK_EXECUTOR_MEMORY", help="memory of one executor; a worker has one for each application"))),
    Section("Airflow", "Airflow: users admin, operator and viewer.", own=(
        _stack("AIRFLOW_PORT", kinds.PORT, 18082, "its API server's port; of compose, the one that the host publishes"),
        _password("AIRFLOW_ADMIN_PASSWORD", help="password of user admin", reader="Airflow"),
        _password("AIRFLOW_OPERATOR_PASSWORD", help="password of user operator", reader="Airflow"),
        _password("AIRFLOW_VIEWER_PASSWORD", help="password of user viewer", reader="Airflow"),
        _password("AIRFLOW_JWT_SECRET", help="signs the tokens of its components", reader="Airflow",
            env=partial(secrets.token_hex, 32)),
        _password("AIRFLOW_FERNET_KEY", kind=_FERNET_KEY, help="encrypts what it stores", reader="Airflow",
            env=lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()),
        Setting("AIRFLOW_HOME", kinds.PATH, ".state/airflow", "its logs and password file", reader="Airflow", env=True),
        _compose("AIRFLOW_PUBLIC_URL", help="the address of its pages, if a reverse proxy serves them"),
        _compose("AIRFLOW_PROXY_ADDRESSES", help="the reverse proxies whose headers it trusts"),
        _compose("SCHEDULER_MEMORY_LIMIT", help="limit of the scheduler's container, in which the drivers of "
            "rebuild and archive run"))),
    Section("Containers", "Project name of the team deployment; names of containers, volumes and image begin with it.",
        own=(
        Setting("COMPOSE_PROJECT_NAME", kinds.TEXT, "", "names of containers, volumes and image begin with it",
            reader="compose", env=lambda: f"board-detail-{secrets.token_hex(3)}"),
        _compose("PUBLISH_ADDRESS", help="the host's address on which gateway, Airflow and PostgreSQL are published"),
        _compose("PIPELINE_IMAGE_TAG", help="tag of the pipeline's image"),
        _compose("PYTHON_IMAGE", help="base of the pipeline's image: Debian bookworm with Python 3.11"))),
    Section("Java", "Java 17, 21 or 25. Empty: JAVA_HOME of the shell, or java on PATH.",
        own=(_stack("JAVA_HOME", kinds.PATH, "", "the folder of Java 17, 21 or 25; empty: that of the shell"),)),
)
# fmt: on

_ALL = {each.variable: each for section in SECTIONS for each in section.settings}
_VARIABLES = {name for each in _ALL.values() for name in each.variables}
_TEAM = tuple(name for each in _ALL.values() if each.team for name in each.variables)

_BEGIN, _END = "# written by `python -m stack.export`, from the table of settings", "# end of the written lines"
_BY_HAND = re.compile(r"^ *([A-Z]\w+)[:=]", re.MULTILINE)


def is_setting(variable: str) -> bool:
    """True for the variable of a setting or of a secret's file, with or without the prefix of a pipeline."""
    name = variable.rpartition("__")[2]
    # a further pipeline has its name in that of compose, such as TEAM_ORDER_DETAIL_ARCHIVE_DIR
    return name in _VARIABLES or (name.startswith("TEAM_") and name.endswith(_TEAM))


def is_path(variable: str) -> bool:
    """True if the variable, with or without the prefix of a pipeline, holds a path."""
    row = _ALL.get(variable.rpartition("__")[2])
    return row is not None and row.kind.is_path


def with_settings(text: str, write: Callable[[Setting], str]) -> str:
    """Return the text of a file with the settings of processes between its marks, each as `write` says.

    Left out are secrets, and what is set by hand above the marks.
    """
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    by_hand, indent = _BY_HAND.findall(head), head.rpartition("\n")[2]
    rows = (each for section in SECTIONS for each in section.product)
    lines = [indent + write(each) for each in rows if not each.kind.is_secret and each.variable not in by_hand]
    return "\n".join([head + begin, *lines, indent + end + tail])


def of_compose(setting: Setting) -> str:
    """Return a setting's line in docker-compose.yaml, in which the variable of the same name is that of `.env`."""
    name = setting.variable
    value = f"${{{name}:-}}"
    if setting.container or (setting.env and setting.line != setting.default_text and not setting.team):
        value = f'"{setting.container or setting.default_text}"'  # the value in `.env` is the local stack's own
    elif setting.team:
        value = f"${{TEAM_{name}:-}}"
    elif setting.line:
        value = f"${{{name}:?not in .env, see docs/deployment/compose.md}}"
    return f"{name}: {value}"


def of_kubernetes(setting: Setting) -> str:
    """Return a setting's line in deploy/kubernetes/settings.env."""
    return f"{setting.variable}={setting.container or (setting.default_text if setting.env else '')}"


def page(text: str, compose: str) -> str:
    """Return docs/settings.md with a table for each section; its beginning stays.

    `compose` is the text of docker-compose.yaml, which has the defaults of its own variables.
    """
    of_file = dict(re.findall(r"\$\{([A-Z_]+):-([^$}]+)\}", compose))
    text = text.partition("\n## ")[0]
    for section in SECTIONS:
        text += f"\n## {section.title}\n\n| setting | default | value | read by | meaning |\n|---|---|---|---|---|\n"
        for each in section.settings:
            name = f"`{each.variable}`" + (" \\*" if each.team else "")
            written = each.default_text or of_file.get(each.variable, "")
            own = each.line if each.line != written else ""
            defaults = [f"`{written}`"] * bool(written) + [f"`.env`: `{own}`"] * bool(own)
            defaults += ["made with `.env`"] * callable(each.env) + ["required"] * (each.default is MISSING)
            value = each.kind.wanted.partition(";")[0] + (", secret" if each.kind.is_secret else "")
            text += f"| {name} | {'; '.join(defaults)} | {value} | {each.reader or section.reader} | {each.help} |\n"
    return text
