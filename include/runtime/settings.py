"""Settings, read from the environment and validated once, at startup.

Other modules that read the environment are `include.airflow_support.defaults`, which DAG files need at parse time and
which validates nothing, `include.contracts.definition`, which reads DEFINITIONS_DIR, `include.runtime.failpoints`,
whose variables only tests set, and `include.runtime.tracing`, whose SDK has standard variables.
"""

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from include.contracts.definition import SITE_NAME, Definition, definitions_folder
from include.contracts.errors import ConfigurationError
from include.runtime.environment_reader import EnvironmentReader, without_login
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.s3_connection import S3Connection, read_location
from include.runtime.tls import ClientTls, ServerTls, read_client_tls, read_server_tls

Role = Literal["pipeline_owner", "gateway", "stream", "batch", "integrity", "analyst"]

_PASSWORD_VARIABLES: dict[Role, str] = {
    "pipeline_owner": "DB_OWNER_PASSWORD",
    "gateway": "DB_GATEWAY_PASSWORD",
    "stream": "DB_STREAM_PASSWORD",
    "batch": "DB_BATCH_PASSWORD",
    "integrity": "DB_INTEGRITY_PASSWORD",
    "analyst": "DB_ANALYST_PASSWORD",
}

# setting of libpq, by which the connection of Airflow has it → variable
LIBPQ_VARIABLES = {
    "sslmode": "DATABASE_SSL_MODE",
    "sslrootcert": "DATABASE_SSL_CA_FILE",
    "sslcert": "DATABASE_SSL_CERTIFICATE_FILE",
    "sslkey": "DATABASE_SSL_KEY_FILE",
    "target_session_attrs": "DATABASE_TARGET_SESSION_ATTRS",
}
_SSL_MODES = {name: name for name in ("disable", "prefer", "require", "verify-ca", "verify-full")}
_SESSION_ATTRS = {name: name for name in ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")}

# the SDK logs a malformed value, so it never sees them; that for traces has precedence
TRACING_SECRETS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
_OTLP_PROTOCOLS = {"http/protobuf": "http/protobuf"}  # no other exporter is installed

DEFAULT_TIMEZONE = "Asia/Seoul"
APPROVAL_TIMEOUT_S = 43_200.0
_MOST_DAYS = 36_500


@dataclass(frozen=True)
class DatabaseSettings:
    """The database of a pipeline: its address and passwords.

    `host` is one host or several with commas, and `libpq` has further settings of connections, see `libpq_settings`. A
    role's password is needed only by processes that connect as that role.
    """

    host: str
    port: int
    name: str
    passwords: Mapping[Role, str] = field(repr=False)
    pipeline: Definition = field(repr=False)
    superuser: str = "postgres"
    superuser_password: str = field(default="", repr=False)
    libpq: Mapping[str, str] = field(default_factory=dict)

    def password(self, role: Role) -> str:
        """Return the role's password. Raises ConfigurationError with the missing variable."""
        if not self.passwords.get(role):
            raise ConfigurationError(f"{_PASSWORD_VARIABLES[role]} is not set; it is needed to connect as {role}")
        return self.passwords[role]


@dataclass(frozen=True)
class KafkaSettings:
    """The connection to Kafka, and the settings of new topics."""

    connection: KafkaConnection
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    retention_days: int

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses."""
        return self.connection.bootstrap_servers


@dataclass(frozen=True)
class GatewayLimits:
    """Limits of the gateway's HTTP server. docs/gateway-api.md says what happens beyond each.

    A connection buffers at most a head and one read of pipelined input, a body, and an answer with
    `write_buffer_bytes`. All connections together buffer `max_in_flight_bytes` of requests and `max_unsent_bytes` of
    answers.
    """

    max_events: int = 1000
    max_body_bytes: int = 4 << 20
    receive_timeout_s: float = 10.0
    max_connections: int = 1024
    max_in_flight_bytes: int = 128 << 20

    # not configurable by environment variables
    max_head_bytes: int = 16 << 10  # of a request's head, a chunk's head, or all trailers
    read_bytes: int = 64 << 10  # per read
    socket_buffer_bytes: int = 256 << 10  # of the kernel, per connection and direction; its default grows to megabytes
    write_buffer_bytes: int = 16 << 10  # unsent bytes of one connection beyond which its next request waits
    max_unsent_bytes: int = 32 << 20  # of all connections whose clients do not read, including unparsed input
    reserved_connections: int = 64  # beyond max_connections, for health and metrics
    backlog: int = 2048  # of the listening socket
    idle_timeout_s: float = 75.0  # of a kept-alive connection between two requests

    @property
    def max_containers(self) -> int:
        """Limit of objects and arrays in one body: ten per event that it may have."""
        return 10 * self.max_events

    @property
    def max_fields(self) -> int:
        """Limit of fields in one body: a hundred per event that it may have."""
        return 100 * self.max_events


@dataclass(frozen=True)
class OidcSettings:
    """The identity provider whose access tokens the gateway accepts, and the audience that they must name.

    `leeway_s` allows for clocks that differ. The issuer's keys are fetched every `refresh_s`.
    """

    issuer: str
    audience: str
    leeway_s: float = 30.0
    refresh_s: float = 300.0
    tls: ClientTls | None = None


@dataclass(frozen=True)
class GatewaySettings:
    """The gateway's address, tokens, fallback store and limits.

    `token` and `admin_token` are for clients; the gateway itself reads the hashes in `tokens_file`. The circuit opens
    after `circuit_failures` consecutive failures. `replay_max_rate` is in records per second. Web pages of the
    `allowed_origins` may call the gateway. The limits of a client are 0 for none.
    """

    host: str
    port: int
    url: str
    token: str = field(repr=False)
    admin_token: str = field(repr=False)
    fallback_dir: Path = Path()
    delivery_timeout_s: float = 2.0
    tokens_file: Path | None = None
    fallback_max_bytes: int = 1 << 30
    replay_max_rate: int = 50_000
    circuit_failures: int = 5
    idempotency_window_s: float = 86_400.0
    idempotency_max_keys: int = 100_000
    drain_delay_s: float = 0.0
    logs_access: bool = False
    allowed_origins: tuple[str, ...] = ()
    client_requests_per_s: int = 0
    client_bytes_per_s: int = 0
    limits: GatewayLimits = GatewayLimits()
    tls: ServerTls | None = None
    client_tls: ClientTls = field(default_factory=ClientTls)
    oidc: OidcSettings | None = None


@dataclass(frozen=True)
class StreamSettings:
    """The speed layer's driver. `state_dir` holds the table of the join, and outlives the driver.

    A driver that runs *serve* alone serves HTTP at `serve_metrics_port`, any other one at `metrics_port`.
    `max_batch_bytes` limits the keys, values and headers that pass through the driver in one transaction.
    """

    checkpoint_dir: Path
    state_dir: Path
    trigger_interval_s: float
    metrics_host: str
    metrics_port: int
    serve_metrics_port: int
    driver_memory: str
    max_boards_per_batch: int
    max_details_per_batch: int
    max_batch_bytes: int


@dataclass(frozen=True)
class BatchSettings:
    """The batch layer: the archive (folder or URI), the size of a task, and retention periods.

    A nightly run does not start another day once `night_budget_s` have passed since it started. A build with more
    unexplained differences than `approve_unexplained_above` waits for a person, `approval_timeout_s` at most.
    """

    archive_dir: str
    driver_memory: str
    rows_per_task: int
    undo_retention_days: int
    night_budget_s: float
    approve_unexplained_above: int
    approval_timeout_s: float
    run_retention_days: int  # of discarded builds, with their corrections
    metrics_token: str = field(default="", repr=False)  # Prometheus sends it to Airflow's API server
    archive_s3: S3Connection = field(default_factory=S3Connection)


@dataclass(frozen=True)
class AlertSettings:
    """Channels of alerts besides the log, and the thresholds beyond which `watch_pipeline` has a finding.

    `webhook_url` is a secret; without an address, a channel is not used. Mail goes over Airflow's connection
    smtp_default. `certified_by` is a time of the pipeline's zone; from then on, yesterday has to be certified.
    """

    webhook_url: str = field(default="", repr=False)
    mail_to: tuple[str, ...] = ()
    stream_silent_s: float = 120.0
    stream_lag_s: float = 300.0
    stream_lag_records: int = 1_000_000
    fallback_age_s: float = 300.0
    pending_age_s: float = 86_400.0
    certified_by: dt.time = dt.time(9)
    expiry_days: int = 3
    hold_days: int = 3
    archive_age_s: float = 129_600.0
    duplicates_percent: int = 1
    clock_skew_s: float = 5.0


@dataclass(frozen=True)
class LineageSettings:
    """The receiver of lineage events: a file, or the URL of an HTTP server; empty for none. And the jobs' namespace."""

    receiver: str = ""
    namespace: str = "pipelines"


@dataclass(frozen=True)
class TracingSettings:
    """The switch of tracing, and the headers for the collector, which are secret.

    The SDK reads its other standard variables itself: where spans are sent, and how.
    """

    is_on: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SparkSettings:
    """The Spark master, the folder with the Kafka connector's jars, and the folder for drivers' shuffle files."""

    master: str
    jars_dir: Path
    scratch_dir: Path = Path(".state/spark")


@dataclass(frozen=True)
class Settings:
    """All settings. Values are validated when read; a missing password is an error only when it is used."""

    timezone: str
    kafka: KafkaSettings
    database: DatabaseSettings
    gateway: GatewaySettings
    stream: StreamSettings
    batch: BatchSettings
    alerts: AlertSettings
    spark: SparkSettings
    lineage: LineageSettings = LineageSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def pipeline(self) -> Definition:
        """The pipeline that this process runs."""
        return self.database.pipeline

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, pipeline: str = "") -> "Settings":
        """Read and validate the settings of a pipeline: the one named, else that of PIPELINE, else the first.

        A variable that begins with the pipeline's name, such as ORDER_DETAIL__DATABASE_NAME, wins over the plain one.
        Raises ConfigurationError with the variable, its value and the remedy.
        """
        from include.contracts.pipelines import PIPELINES  # `make down` runs without its dependencies

        variables = os.environ if environment is None else environment
        name = pipeline or variables.get("PIPELINE") or pipeline_names(variables)[0]
        definition = EnvironmentReader({"PIPELINE": name}).choice("PIPELINE", PIPELINES, name)
        env = reader_of(definition.name, variables)
        settings = cls(
            timezone=env.zone("PIPELINE_TIMEZONE", DEFAULT_TIMEZONE),
            kafka=KafkaSettings(
                connection=KafkaConnection.from_environment(env),
                partitions=env.whole("KAFKA_PARTITIONS", 8, most=10_000),
                replication_factor=env.whole("KAFKA_REPLICATION_FACTOR", 3, most=1000),
                min_insync_replicas=env.whole("KAFKA_MIN_INSYNC_REPLICAS", 2, most=1000),
                retention_days=env.whole("KAFKA_RETENTION_DAYS", 14, most=_MOST_DAYS),
            ),
            database=DatabaseSettings(
                host=env.host("DATABASE_HOST"),
                port=env.port("DATABASE_PORT", 5432),
                name=env.text("DATABASE_NAME", "pipeline"),
                passwords={role: env.secret(name, "") for role, name in _PASSWORD_VARIABLES.items()},
                pipeline=definition,
                superuser=env.text("POSTGRES_SUPERUSER", "postgres"),
                superuser_password=env.secret("POSTGRES_SUPERUSER_PASSWORD", ""),
                libpq=libpq_settings(env),
            ),
            gateway=GatewaySettings(
                host=env.text("GATEWAY_HOST", "127.0.0.1"),
                port=env.port("GATEWAY_PORT", 18080),
                url=env.urls("GATEWAY_URL", "http://127.0.0.1:18080"),
                token=env.token("GATEWAY_TOKEN"),
                admin_token=env.token("GATEWAY_ADMIN_TOKEN"),
                fallback_dir=Path(env.text("GATEWAY_FALLBACK_DIR", ".state/fallback")),
                delivery_timeout_s=env.seconds("GATEWAY_DELIVERY_TIMEOUT_S", 2.0),
                tokens_file=env.path("GATEWAY_TOKENS_FILE"),
                fallback_max_bytes=env.whole("GATEWAY_FALLBACK_MAX_BYTES", 1 << 30, most=1 << 50),
                replay_max_rate=env.whole("GATEWAY_REPLAY_MAX_RATE", 50_000),
                circuit_failures=env.whole("GATEWAY_CIRCUIT_FAILURES", 5),
                idempotency_window_s=env.seconds("GATEWAY_IDEMPOTENCY_WINDOW_S", 86_400.0),
                idempotency_max_keys=env.whole("GATEWAY_IDEMPOTENCY_MAX_KEYS", 100_000),
                drain_delay_s=env.seconds("GATEWAY_DRAIN_DELAY_S", 0.0, may_be_zero=True),
                client_requests_per_s=env.whole("GATEWAY_CLIENT_REQUESTS_PER_S", 0, least=0),
                client_bytes_per_s=env.whole("GATEWAY_CLIENT_BYTES_PER_S", 0, least=0),
                logs_access=env.choice("GATEWAY_ACCESS_LOG", {"off": False, "on": True}, "off"),
                allowed_origins=env.origins("GATEWAY_ALLOWED_ORIGINS"),
                tls=read_server_tls(env),
                client_tls=read_client_tls(env),
                oidc=oidc_settings(env),
                limits=GatewayLimits(
                    max_events=env.whole("GATEWAY_MAX_EVENTS", 1000),
                    max_body_bytes=env.whole("GATEWAY_MAX_BODY_BYTES", 4 << 20),
                    receive_timeout_s=env.seconds("GATEWAY_RECEIVE_TIMEOUT_S", 10.0),
                    max_connections=env.whole("GATEWAY_MAX_CONNECTIONS", 1024),
                    max_in_flight_bytes=env.whole("GATEWAY_MAX_IN_FLIGHT_BYTES", 128 << 20, most=1 << 50),
                ),
            ),
            stream=StreamSettings(
                checkpoint_dir=Path(env.text("STREAM_CHECKPOINT_DIR", ".state/checkpoints")),
                state_dir=Path(env.text("STREAM_STATE_DIR", ".state/stream-state")),
                trigger_interval_s=env.seconds("STREAM_TRIGGER_INTERVAL_S", 0.7, may_be_zero=True),
                metrics_host=env.text("STREAM_METRICS_HOST", "127.0.0.1"),
                metrics_port=env.port("STREAM_METRICS_PORT", 18081),
                serve_metrics_port=env.port("STREAM_SERVE_METRICS_PORT", 18083),
                driver_memory=env.memory("STREAM_DRIVER_MEMORY", "2g"),
                max_boards_per_batch=env.whole("STREAM_MAX_BOARDS_PER_BATCH", 500_000),
                max_details_per_batch=env.whole("STREAM_MAX_DETAILS_PER_BATCH", 50_000),
                max_batch_bytes=env.whole("STREAM_MAX_BATCH_BYTES", 64 << 20),
            ),
            batch=BatchSettings(
                archive_dir=read_location(env),
                driver_memory=env.memory("REBUILD_DRIVER_MEMORY", "2g"),
                rows_per_task=env.whole("REBUILD_ROWS_PER_TASK", 100_000),
                undo_retention_days=env.whole("UNDO_RETENTION_DAYS", 7, most=_MOST_DAYS),
                night_budget_s=env.seconds("NIGHT_BUDGET_S", 14_400.0),
                approval_timeout_s=env.seconds("APPROVAL_TIMEOUT_S", APPROVAL_TIMEOUT_S),
                approve_unexplained_above=env.whole("APPROVE_UNEXPLAINED_ABOVE", 0, least=0),
                run_retention_days=env.whole("RUN_RETENTION_DAYS", 30, most=_MOST_DAYS),
                metrics_token=env.token("METRICS_TOKEN"),
                archive_s3=S3Connection.from_environment(env),
            ),
            alerts=AlertSettings(
                webhook_url=env.secret_url("ALERT_WEBHOOK_URL"),
                mail_to=env.mail_addresses("ALERT_MAIL_TO"),
                stream_silent_s=env.seconds("ALERT_STREAM_SILENT_S", 120.0),
                stream_lag_s=env.seconds("ALERT_STREAM_LAG_S", 300.0),
                stream_lag_records=env.whole("ALERT_STREAM_LAG_RECORDS", 1_000_000),
                fallback_age_s=env.seconds("ALERT_FALLBACK_AGE_S", 300.0, may_be_zero=True),
                pending_age_s=env.seconds("ALERT_PENDING_AGE_S", 86_400.0),
                certified_by=env.time_of_day("ALERT_CERTIFIED_BY", "09:00"),
                expiry_days=env.whole("ALERT_EXPIRY_DAYS", 3, least=0, most=_MOST_DAYS),
                hold_days=env.whole("ALERT_HOLD_DAYS", 3, least=0, most=_MOST_DAYS),
                archive_age_s=env.seconds("ALERT_ARCHIVE_AGE_S", 129_600.0),
                duplicates_percent=env.whole("ALERT_DUPLICATES_PERCENT", 1, least=0, most=100),
                clock_skew_s=env.seconds("ALERT_CLOCK_SKEW_S", 5.0),
            ),
            spark=SparkSettings(
                master=env.master("SPARK_MASTER", "local[2]"),
                jars_dir=Path(env.text("SPARK_KAFKA_JARS_DIR", ".state/jars/spark-kafka")),
                scratch_dir=Path(env.text("SPARK_SCRATCH_DIR", ".state/spark")),
            ),
            lineage=LineageSettings(
                receiver=env.file_or_url("LINEAGE_RECEIVER"), namespace=env.text("LINEAGE_NAMESPACE", "pipelines")
            ),
            tracing=tracing_settings(variables),
        )
        env.require_known()
        kafka = settings.kafka
        if kafka.min_insync_replicas > kafka.replication_factor:
            raise ConfigurationError(
                f"KAFKA_MIN_INSYNC_REPLICAS={kafka.min_insync_replicas}: no record could be written with "
                f"KAFKA_REPLICATION_FACTOR={kafka.replication_factor}; give it that number or less"
            )
        return settings


def oidc_settings(env: EnvironmentReader) -> OidcSettings | None:
    """Return the issuer of access tokens; None if there is none. Raises ConfigurationError."""
    ca_file = env.path("GATEWAY_OIDC_CA_FILE")
    leeway_s = env.seconds("GATEWAY_OIDC_LEEWAY_S", 30.0, may_be_zero=True)
    refresh_s = env.seconds("GATEWAY_OIDC_REFRESH_S", 300.0)
    audience = env.text("GATEWAY_OIDC_AUDIENCE", "")
    if not env.is_set("GATEWAY_OIDC_ISSUER"):
        if audience:
            raise ConfigurationError("GATEWAY_OIDC_AUDIENCE is set without GATEWAY_OIDC_ISSUER; set both or neither")
        return None
    issuer = env.urls("GATEWAY_OIDC_ISSUER")
    if not is_secure_url(issuer):
        raise ConfigurationError(
            f"GATEWAY_OIDC_ISSUER={without_login(issuer)!r}: its keys could be replaced on their way; give the "
            "URL of one issuer, with https"
        )
    if not audience:
        raise ConfigurationError(
            "GATEWAY_OIDC_AUDIENCE is not set; give the name that the issuer puts into the audience of this gateway's "
            "tokens"
        )
    tls = ClientTls(ca_file, ca_variable="GATEWAY_OIDC_CA_FILE") if ca_file else None
    return OidcSettings(issuer, audience, leeway_s, refresh_s, tls)


def is_secure_url(url: str) -> bool:
    """True for one URL of HTTPS, or of HTTP on this machine."""
    try:
        parts = urlsplit(url)
        return "," not in url and (
            parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost"))
        )
    except ValueError:
        return False


def tracing_settings(environment: Mapping[str, str]) -> TracingSettings:
    """Return whether tracing is on: it has an endpoint and is not disabled. Raises ConfigurationError.

    A pipeline has no variables of its own here, because the SDK knows the plain ones only.
    """
    env = EnvironmentReader(environment)
    headers = [env.secret_headers(name) for name in TRACING_SECRETS]
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    endpoints = [env.urls(name) for name in names if env.is_set(name)]  # reads both, so that each is checked
    if not endpoints or env.text("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return TracingSettings()
    if not env.choice("OTEL_TRACES_EXPORTER", {"otlp": True, "none": False}, "otlp"):
        return TracingSettings()
    general = env.choice("OTEL_EXPORTER_OTLP_PROTOCOL", _OTLP_PROTOCOLS, "http/protobuf")
    env.choice("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", _OTLP_PROTOCOLS, general)
    return TracingSettings(is_on=True, headers=headers[0] or headers[1])


def libpq_settings(env: EnvironmentReader) -> dict[str, str]:
    """Return libpq's settings of TLS and of the choice among several hosts. Raises ConfigurationError.

    With a CA file the server's certificate and name are verified, unless DATABASE_SSL_MODE says otherwise. Among
    several hosts, the one that accepts writes is used. What is not set is left to libpq, which has its own variables.
    """
    ca_file = env.readable_file("DATABASE_SSL_CA_FILE")
    pair = env.certificate_and_key("DATABASE_SSL_CERTIFICATE_FILE", "DATABASE_SSL_KEY_FILE", "a client's")
    found = {
        name: str(path)
        for name, path in zip(("sslrootcert", "sslcert", "sslkey"), (ca_file, *pair), strict=True)
        if path
    }
    if ca_file or env.is_set("DATABASE_SSL_MODE"):
        found["sslmode"] = env.choice("DATABASE_SSL_MODE", _SSL_MODES, "verify-full")
    if "," in env.host("DATABASE_HOST") or env.is_set("DATABASE_TARGET_SESSION_ATTRS"):
        found["target_session_attrs"] = env.choice("DATABASE_TARGET_SESSION_ATTRS", _SESSION_ATTRS, "read-write")
    mode = found.get("sslmode", "")
    if mode.startswith("verify") != (ca_file is not None):
        raise ConfigurationError(
            f"DATABASE_SSL_MODE={mode!r}: verify-ca and verify-full go together with DATABASE_SSL_CA_FILE, a PEM file "
            "such as /etc/ssl/certs/ca-certificates.crt; set both or neither"
        )
    return found


def prefix_of(pipeline: str) -> str:
    """Return the prefix of the variables of one pipeline: ORDER_DETAIL__ for order_detail."""
    return f"{pipeline.upper()}__"


def reader_of(pipeline: str, environment: Mapping[str, str]) -> EnvironmentReader:
    """Return a reader of a pipeline's settings: ORDER_DETAIL__DATABASE_NAME wins over DATABASE_NAME."""
    return EnvironmentReader(environment, prefix_of(pipeline))


def listed_pipelines(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names in PIPELINES, separated by commas; else the one in PIPELINE. They are not checked."""
    env = EnvironmentReader(os.environ if environment is None else environment)
    return [name.strip() for name in env.text("PIPELINES", env.text("PIPELINE", SITE_NAME)).split(",")]


def pipeline_names(environment: Mapping[str, str] | None = None, folder: Path | None = None) -> list[str]:
    """Return the pipelines that run side by side, as `listed_pipelines`; `folder` has their definitions.

    Reads no definition, so that DAG files can call it when they are parsed. Raises ConfigurationError for a name that
    is there twice or that has no definition.
    """
    names = listed_pipelines(environment)
    known = sorted(path.stem for path in (folder or definitions_folder()).glob("*.toml"))
    if len(set(names)) < len(names) or not set(names) <= set(known):
        raise ConfigurationError(
            f"PIPELINES={','.join(names)!r}: name each pipeline once, separated by commas; known: {', '.join(known)}"
        )
    return names
