"""The settings of a process: one table, whose rows are the fields of these dataclasses.

`Settings.from_environment` reads and validates all of them once, at startup. `stack.env_file` adds those of the stack
and of compose. Other modules that read the environment are `include.contracts.definition` (DEFINITIONS_DIR),
`include.runtime.failpoints`, whose variables only tests set, and `include.runtime.tracing`, whose SDK has standard
variables.
"""

import datetime as dt
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from include.contracts.definition import SITE_NAME, Definition, definitions_folder
from include.contracts.errors import ConfigurationError
from include.runtime import kinds
from include.runtime.environment_reader import (
    EnvironmentReader,
    Setting,
    group,
    load,
    secrets_of,
    server_setting,
    setting,
    settings_of,
    without_login,
)
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.tls import ClientTls, ServerTls

Role = Literal["pipeline_owner", "gateway", "stream", "batch", "integrity", "analyst"]

new_password = partial(secrets.token_hex, 16)  # without characters that are special in a URL, a shell or compose

AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"  # values of STREAM_DELIVERY

_DAYS = kinds.whole(most=36_500)
_DAYS_OR_NONE = kinds.whole(least=0, most=36_500)
_COUNT = kinds.whole()
_COUNT_OR_NONE = kinds.whole(least=0)
_REPLICAS = kinds.whole(most=1000)
_SECONDS, _SECONDS_OR_NONE = kinds.seconds(), kinds.seconds(may_be_zero=True)
_BYTES = kinds.whole(most=1 << 50)


# fmt: off
@dataclass(frozen=True)
class RolePasswords:
    """The passwords of the roles, by their names."""

    pipeline_owner: str = setting("DB_OWNER_PASSWORD", kinds.SECRET, "", "of role pipeline_owner", env=new_password)
    gateway: str = setting("DB_GATEWAY_PASSWORD", kinds.SECRET, "", "of role gateway", env=new_password)
    stream: str = setting("DB_STREAM_PASSWORD", kinds.SECRET, "", "of role stream", env=new_password)
    batch: str = setting("DB_BATCH_PASSWORD", kinds.SECRET, "", "of role batch", env=new_password)
    integrity: str = setting("DB_INTEGRITY_PASSWORD", kinds.SECRET, "", "of role integrity", env=new_password)
    analyst: str = setting("DB_ANALYST_PASSWORD", kinds.SECRET, "", "of role analyst", env=new_password)

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> Mapping[Role, str]:
        """Return role → password, empty for none."""
        return asdict(load(cls, env))  # type: ignore[return-value]


@dataclass(frozen=True)
class Libpq:
    """Settings of libpq. What is not set is left to libpq, which has its own variables."""

    sslmode: str = server_setting("DATABASE_SSL_MODE", kinds.choice("disable", "prefer", "require", "verify-ca",
        "verify-full"), "",
        "verify-full with a CA file, else libpq's default, which verifies nothing", key="sslmode")
    sslrootcert: Path | None = server_setting("DATABASE_SSL_CA_FILE", kinds.PATH, None,
        "the authorities that signed the server's certificate, in PEM", key="sslrootcert")
    sslcert: Path | None = server_setting("DATABASE_SSL_CERTIFICATE_FILE", kinds.PATH, None,
        "a client's certificate; the password stays necessary", key="sslcert")
    sslkey: Path | None = server_setting("DATABASE_SSL_KEY_FILE", kinds.PATH, None, "its key", key="sslkey")
    target_session_attrs: str = server_setting("DATABASE_TARGET_SESSION_ATTRS",
        kinds.choice("any", "read-write", "read-only", "primary", "standby", "prefer-standby"), "",
        "read-write with several hosts, else libpq's default", key="target_session_attrs")

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> dict[str, str]:
        """Return those that are set, or that follow from others. Raises ConfigurationError.

        With a CA file the server's certificate and name are verified, unless DATABASE_SSL_MODE says otherwise. Among
        several hosts, the one that accepts writes is used.
        """
        env.require_readable("DATABASE_SSL_CA_FILE", "DATABASE_SSL_CERTIFICATE_FILE", "DATABASE_SSL_KEY_FILE")
        env.require_pair("DATABASE_SSL_CERTIFICATE_FILE", "DATABASE_SSL_KEY_FILE", "a client's")
        found = load(cls, env)
        mode = found.sslmode or ("verify-full" if found.sslrootcert else "")
        if mode.startswith("verify") != (found.sslrootcert is not None):
            raise ConfigurationError(
                f"DATABASE_SSL_MODE={mode!r}: verify-ca and verify-full go together with DATABASE_SSL_CA_FILE, a PEM "
                "file such as /etc/ssl/certs/ca-certificates.crt; set both or neither"
            )
        attrs = found.target_session_attrs or ("read-write" if "," in env.value("DATABASE_HOST", kinds.HOST) else "")
        complete = replace(found, sslmode=mode, target_session_attrs=attrs)
        return {name: str(value) for name, value in asdict(complete).items() if value}


# setting of libpq, by which the connection of Airflow has it → variable
LIBPQ_VARIABLES = {each.key: each.variable for each in settings_of(Libpq)}


@dataclass(frozen=True)
class DatabaseSettings:
    """The database of a pipeline. A role's password is needed only by processes that connect as it."""

    host: str = server_setting("DATABASE_HOST", kinds.HOST, MISSING,
        "one host, or several with commas between them, which have the same port", env="127.0.0.1")
    port: int = server_setting("DATABASE_PORT", kinds.PORT, 5432, "the server's port", env="15432")
    name: str = setting("DATABASE_NAME", kinds.TEXT, "pipeline", "the pipeline's database", env=True)
    passwords: Mapping[Role, str] = group(RolePasswords, default_factory=dict, repr=False)
    pipeline: Definition = field(repr=False, default=None)  # type: ignore[assignment]  # never read without one
    superuser: str = setting("POSTGRES_SUPERUSER", kinds.TEXT, "postgres", "who makes roles and databases")
    superuser_password: str = setting("POSTGRES_SUPERUSER_PASSWORD", kinds.SECRET, "", "its password", env=new_password)
    libpq: Mapping[str, str] = group(Libpq, default_factory=dict)

    def password(self, role: Role) -> str:
        """Return the role's password. Raises ConfigurationError with the missing variable."""
        if not self.passwords.get(role):
            variable = RolePasswords.__dataclass_fields__[role].metadata["setting"].variable
            raise ConfigurationError(f"{variable} is not set; it is needed to connect as {role}")
        return self.passwords[role]


@dataclass(frozen=True)
class KafkaSettings:
    """The connection to Kafka, and the settings of new topics."""

    connection: KafkaConnection = group(KafkaConnection)
    partitions: int = setting("KAFKA_PARTITIONS", kinds.whole(most=10_000), 8, "partitions of a new topic", env=True)
    replication_factor: int = setting("KAFKA_REPLICATION_FACTOR", _REPLICAS, 3, "replicas of a new topic", env="1")
    min_insync_replicas: int = setting("KAFKA_MIN_INSYNC_REPLICAS", _REPLICAS, 2,
        "replicas that must be in sync", env="1")
    retention_days: int = setting("KAFKA_RETENTION_DAYS", _DAYS, 14, "days of the rebuild window", env=True)

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses."""
        return self.connection.bootstrap_servers


@dataclass(frozen=True)
class GatewayLimits:
    """Limits of the gateway's calls and connections. docs/gateway-api.md says what happens beyond each."""

    max_events: int = setting("GATEWAY_MAX_EVENTS", _COUNT, 1000, "events of a call")
    max_body_bytes: int = setting("GATEWAY_MAX_BODY_BYTES", _COUNT, 4 << 20, "bytes of a call's body")
    receive_timeout_s: float = setting("GATEWAY_RECEIVE_TIMEOUT_S", _SECONDS, 10.0,
        "time for a request to arrive and for a response to be read")
    max_connections: int = setting("GATEWAY_MAX_CONNECTIONS", _COUNT, 1024, "connections at a time")
    max_in_flight_bytes: int = setting("GATEWAY_MAX_IN_FLIGHT_BYTES", _BYTES, 128 << 20, "bytes of unanswered requests")

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
    """The identity provider whose access tokens the gateway accepts, and the audience that they must name."""

    issuer: str = setting("GATEWAY_OIDC_ISSUER", kinds.URLS, "",
        "the issuer's URL, exactly as in the tokens' `iss`; HTTPS, or HTTP on this machine. Empty: none")
    audience: str = setting("GATEWAY_OIDC_AUDIENCE", kinds.TEXT, "", "this gateway in the tokens' `aud`")
    leeway_s: float = setting("GATEWAY_OIDC_LEEWAY_S", _SECONDS_OR_NONE, 30.0, "difference of clocks")
    refresh_s: float = setting("GATEWAY_OIDC_REFRESH_S", _SECONDS, 300.0,
        "interval at which the issuer's keys are fetched; a removed key is accepted for so long at most")
    ca_file: Path | None = setting("GATEWAY_OIDC_CA_FILE", kinds.PATH, None,
        "authorities of the issuer's certificate, in PEM; the system's if empty")

    @property
    def tls(self) -> ClientTls | None:
        """The authorities of the issuer's certificate; None: the system's."""
        return ClientTls(self.ca_file, ca_variable="GATEWAY_OIDC_CA_FILE") if self.ca_file else None

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "OidcSettings | None":
        """Return the issuer of access tokens; None if there is none. Raises ConfigurationError."""
        found = load(cls, env)
        if not found.issuer:
            env.require_unset(["GATEWAY_OIDC_AUDIENCE"], " without GATEWAY_OIDC_ISSUER; set both or neither")
            return None
        if not is_secure_url(found.issuer):
            raise ConfigurationError(
                f"GATEWAY_OIDC_ISSUER={without_login(found.issuer)!r}: its keys could be replaced on their way; give "
                "the URL of one issuer, with https"
            )
        if not found.audience:
            raise ConfigurationError(
                "GATEWAY_OIDC_AUDIENCE is not set; give the name that the issuer puts into the audience of this "
                "gateway's tokens"
            )
        return found


@dataclass(frozen=True)
class GatewaySettings:
    """The gateway's address, tokens, fallback store and limits. The gateway itself knows hashes of tokens alone."""

    host: str = setting("GATEWAY_HOST", kinds.TEXT, "127.0.0.1", "its interface", env=True, container="0.0.0.0")
    port: int = setting("GATEWAY_PORT", kinds.PORT, 18080, "port; in compose, of the host", env=True, container="18080")
    url: str = setting("GATEWAY_URL", kinds.URLS, "http://127.0.0.1:18080",
        "where tasks and tools call it; all gateways, with commas", env="http://127.0.0.1:${GATEWAY_PORT}")
    token: str = setting("GATEWAY_TOKEN", kinds.TOKEN, "", "the token of clients that send data", env=new_password)
    admin_token: str = setting("GATEWAY_ADMIN_TOKEN", kinds.TOKEN, "", "that of the fallback store", env=new_password)
    fallback_dir: Path = setting("GATEWAY_FALLBACK_DIR", kinds.PATH, Path(".state/fallback"),
        "the fallback store, on a disk that lasts", env=True, container="/var/lib/pipeline/fallback")
    delivery_timeout_s: float = setting("GATEWAY_DELIVERY_TIMEOUT_S", _SECONDS, 2.0,
        "an event that Kafka has not acknowledged by then is stored and answered 201 `fallback`", env=True)
    tokens_file: Path | None = setting("GATEWAY_TOKENS_FILE", kinds.PATH, None, "the file with hashes of the tokens",
        env=".state/run/gateway-tokens.json", container="/var/lib/pipeline/gateway/tokens.json")
    fallback_max_bytes: int = setting("GATEWAY_FALLBACK_MAX_BYTES", _BYTES, 1 << 30, "bytes of the fallback store")
    replay_max_rate: int = setting("GATEWAY_REPLAY_MAX_RATE", _COUNT, 50_000, "records per second of a replay")
    circuit_failures: int = setting("GATEWAY_CIRCUIT_FAILURES", _COUNT, 5, "failures in a row that open the circuit")
    idempotency_window_s: float = setting("GATEWAY_IDEMPOTENCY_WINDOW_S", _SECONDS, 86_400.0,
        "for so long an `Idempotency-Key` gets the first response")
    idempotency_max_keys: int = setting("GATEWAY_IDEMPOTENCY_MAX_KEYS", _COUNT, 100_000, "keys that are remembered")
    drain_delay_s: float = setting("GATEWAY_DRAIN_DELAY_S", _SECONDS_OR_NONE, 0.0,
        "time from SIGTERM, when `/readyz` begins to answer 503, until the listener closes")
    logs_access: bool = setting("GATEWAY_ACCESS_LOG", kinds.SWITCH, False, "a log entry for each call")
    allowed_origins: tuple[str, ...] = setting("GATEWAY_ALLOWED_ORIGINS", kinds.ORIGINS, (), "pages that may call it")
    client_requests_per_s: int = setting("GATEWAY_CLIENT_REQUESTS_PER_S", _COUNT_OR_NONE, 0, "of a client; 0: no limit")
    client_bytes_per_s: int = setting("GATEWAY_CLIENT_BYTES_PER_S", _COUNT_OR_NONE, 0, "of its bodies; 0: no limit")
    limits: GatewayLimits = group(GatewayLimits, default=GatewayLimits())
    tls: ServerTls | None = group(ServerTls, default=None)
    client_tls: ClientTls = group(ClientTls, default=ClientTls())
    oidc: OidcSettings | None = group(OidcSettings, default=None)


@dataclass(frozen=True)
class StreamSettings:
    """The speed layer's driver. One that runs *serve* alone has `serve_metrics_port`, any other one `metrics_port`."""

    checkpoint_dir: Path = setting("STREAM_CHECKPOINT_DIR", kinds.PATH, Path(".state/checkpoints"),
        "Spark's checkpoints, of the running driver alone", env=True, container="/var/lib/pipeline/checkpoints")
    state_dir: Path = setting("STREAM_STATE_DIR", kinds.PATH, Path(".state/stream-state"),
        "the join's table, which outlives the driver", env=True, container="/var/lib/pipeline/stream-state")
    trigger_interval_s: float = setting("STREAM_TRIGGER_INTERVAL_S", _SECONDS_OR_NONE, 0.8,
        "time from one batch of *join* to the next; *serve* looks for records four times as often", env=True)
    metrics_host: str = setting("STREAM_METRICS_HOST", kinds.TEXT, "127.0.0.1", "health, metrics", container="0.0.0.0")
    metrics_port: int = setting("STREAM_METRICS_PORT", kinds.PORT, 18081,
        "health, metrics", env=True, container="18081")
    serve_metrics_port: int = setting("STREAM_SERVE_METRICS_PORT", kinds.PORT, 18083,
        "the same, of *serve* alone", env=True, container="18081")
    driver_memory: str = setting("STREAM_DRIVER_MEMORY", kinds.MEMORY, "1g", "heap of the driver", env=True)
    join_max_batch_records: int = setting("STREAM_JOIN_MAX_BATCH_RECORDS", _COUNT, 500_000,
        "records per batch of *join*")
    serve_max_batch_records: int = setting("STREAM_SERVE_MAX_BATCH_RECORDS", _COUNT, 500_000,
        "records per batch of *serve*")
    delivery: str = setting("STREAM_DELIVERY", kinds.choice(AT_LEAST_ONCE, EXACTLY_ONCE), AT_LEAST_ONCE,
        "of *join* to the output topic; exactly_once: one transaction for each batch", env=True)
    max_transaction_records: int = setting("STREAM_MAX_TRANSACTION_RECORDS", _COUNT, 500_000,
        "records per batch of *join* with exactly_once")
    max_transaction_bytes: int = setting("STREAM_MAX_TRANSACTION_BYTES", _COUNT, 384 << 20,
        "bytes of joined records in a transaction: values of the stream, texts of the table")
    max_batch_bytes: int = setting("STREAM_MAX_BATCH_BYTES", _COUNT, 64 << 20,
        "bytes of keys, values and headers that pass through the driver at a time; 64 MiB need about 1 GiB of heap")


S3_SCHEME = "s3://"
FILE_SCHEME = "file://"
DEFAULT_REGION = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)  # characters that need no escape in keys, URLs and policies


def _is_location(text: str) -> bool:
    scheme = text.partition("://")[0] if "://" in text else ""
    if scheme == "s3":
        bucket, prefix = bucket_and_prefix(text)
        if not _BUCKET.fullmatch(bucket) or not _PREFIX.fullmatch(prefix) or ".." in prefix.split("/"):
            raise kinds.Unfit(
                "not s3://bucket/prefix; the bucket has 3 to 63 lower-case letters, digits, dots and hyphens, and the "
                "prefix letters, digits and the characters . _ = - /"
            )
    elif scheme == "file" and not text.startswith(f"{FILE_SCHEME}/"):
        raise kinds.Unfit("not file:///path with an absolute path")
    elif scheme not in ("", "file"):
        raise kinds.Unfit("no store is known by this scheme; give a folder, file:///path or s3://bucket/prefix")
    return True


_LOCATION = kinds.Kind("a folder, file:///path or s3://bucket/prefix", _is_location, str, is_path=True)
_ENDPOINT = kinds.Kind(
    "http://host:port or https://host:port; the bucket belongs into ARCHIVE_DIR", kinds.is_endpoint, str
)
_REGION = kinds.pattern("[a-z0-9-]{1,63}", f"the name of a region such as {DEFAULT_REGION}")


def bucket_and_prefix(location: str) -> tuple[str, str]:
    """Return the bucket and the prefix of s3://bucket/prefix, the prefix without slashes around it."""
    bucket, _, prefix = location.removeprefix(S3_SCHEME).partition("/")
    return bucket, prefix.rstrip("/")


@dataclass(frozen=True)
class S3Connection:
    """Address, login and TLS of an object store. Can be sent to tasks.

    Without an access key, the SDK's own sources are used: variables, a profile or the role of the machine. The key's
    secret is needed only by processes that use the archive, and so is the CA file, which is read when it is used.
    """

    endpoint: str = server_setting("ARCHIVE_S3_ENDPOINT", _ENDPOINT, "", "its address; empty: AWS's")
    region: str = server_setting("ARCHIVE_S3_REGION", _REGION, DEFAULT_REGION, "the bucket's region")
    access_key_id: str = server_setting("ARCHIVE_S3_ACCESS_KEY_ID", kinds.TEXT, "",
        "the login; without it that of AWS's SDK, such as the machine's role")
    secret_access_key: str = server_setting("ARCHIVE_S3_SECRET_ACCESS_KEY", kinds.TOKEN, "", "its secret")
    ca_file: Path | None = server_setting("ARCHIVE_S3_CA_FILE", kinds.PATH, None,
        "the authorities of the store's certificate, in PEM; those of the SDK if empty. Workers need the file too")
    verifies_tls: bool = server_setting("ARCHIVE_S3_TLS_VERIFY", kinds.SWITCH, True,
        "off: the store's certificate is not verified. For tests")

    @classmethod
    def from_environment(cls, env: EnvironmentReader) -> "S3Connection":
        """Read the settings of the archive's object store. Raises ConfigurationError."""
        found = load(cls, env)
        if found.ca_file and (not found.verifies_tls or found.endpoint.startswith("http://")):
            why = "the endpoint is not https" if found.verifies_tls else "ARCHIVE_S3_TLS_VERIFY is off"
            raise ConfigurationError(
                f"{env.variable('ARCHIVE_S3_CA_FILE')}={found.ca_file}: no effect, since {why}; remove it"
            )
        return found


S3_SECRETS = secrets_of(S3Connection)


@dataclass(frozen=True)
class BatchSettings:
    """The batch layer: the archive, the size of a task, and retention periods."""

    archive_dir: str = server_setting("ARCHIVE_DIR", _LOCATION, ".state/archive",
        "the raw archive, which all Spark tasks can reach", env=True)
    driver_memory: str = setting("REBUILD_DRIVER_MEMORY", kinds.MEMORY, "2g", "heap of rebuild and archive", env=True)
    rows_per_task: int = setting("REBUILD_ROWS_PER_TASK", _COUNT, 100_000,
        "records per part of a rebuild, which a Python worker holds at once", env=True)
    undo_retention_days: int = setting("UNDO_RETENTION_DAYS", _DAYS, 7,
        "days for which live rows are kept after a publication removed them from the view", env=True)
    night_budget_s: float = setting("NIGHT_BUDGET_S", _SECONDS, 14_400.0,
        "seconds after its start from which a night begins no further day; the next one rebuilds the rest", env=True)
    approve_unexplained_above: int = setting("APPROVE_UNEXPLAINED_ABOVE", _COUNT_OR_NONE, 0,
        "unexplained differences of a build beyond which a person must approve its publication", env=True)
    approval_timeout_s: float = setting("APPROVAL_TIMEOUT_S", _SECONDS, 43_200.0,
        "seconds that a build waits for a person; then its task fails, and the day shows what it showed", env=True)
    run_retention_days: int = setting("RUN_RETENTION_DAYS", _DAYS, 30,
        "days for which discarded builds, including dry runs, are kept with their corrections", env=True)
    metrics_token: str = setting("METRICS_TOKEN", kinds.TOKEN, "",
        "Prometheus sends it to Airflow's API server for the metrics of the batch layer", env=new_password)
    archive_s3: S3Connection = group(S3Connection, default=S3Connection())


@dataclass(frozen=True)
class AlertSettings:
    """Channels of alerts besides the log, and the thresholds beyond which `watch_pipeline` has a finding."""

    webhook_url: str = setting("ALERT_WEBHOOK_URL", kinds.SECRET_URL, "", "alerts are posted to it", env="")
    mail_to: tuple[str, ...] = setting("ALERT_MAIL_TO", kinds.MAILS, (), "alerts are mailed to these addresses", env="")
    stream_silent_s: float = setting("ALERT_STREAM_SILENT_S", _SECONDS, 120.0, "silence of a query")
    stream_lag_s: float = setting("ALERT_STREAM_LAG_S", _SECONDS, 300.0, "lag of a query, in time")
    stream_lag_records: int = setting("ALERT_STREAM_LAG_RECORDS", _COUNT, 1_000_000, "lag of a query, in records")
    fallback_age_s: float = setting("ALERT_FALLBACK_AGE_S", _SECONDS_OR_NONE, 300.0, "age of an event in a store")
    pending_age_s: float = setting("ALERT_PENDING_AGE_S", _SECONDS, 86_400.0, "age of a pending record")
    certified_by: dt.time = setting("ALERT_CERTIFIED_BY", kinds.TIME, dt.time(9), "from then on yesterday is certified")
    expiry_days: int = setting("ALERT_EXPIRY_DAYS", _DAYS_OR_NONE, 3, "days before a day can no longer be rebuilt")
    hold_days: int = setting("ALERT_HOLD_DAYS", _DAYS_OR_NONE, 3, "days for which a day has been held")
    archive_age_s: float = setting("ALERT_ARCHIVE_AGE_S", _SECONDS, 129_600.0, "age of a record that is not archived")
    duplicates_percent: int = setting("ALERT_DUPLICATES_PERCENT", kinds.whole(least=0, most=100), 1, "percent of a day")
    clock_skew_s: float = setting("ALERT_CLOCK_SKEW_S", _SECONDS, 5.0, "seconds by which clocks may differ")


@dataclass(frozen=True)
class LineageSettings:
    """The receiver of lineage events, and the jobs' namespace."""

    receiver: str = server_setting("LINEAGE_RECEIVER", kinds.FILE_OR_URL, "",
        "where OpenLineage events go; empty: nowhere", env=".state/logs/lineage.jsonl")
    namespace: str = setting("LINEAGE_NAMESPACE", kinds.TEXT, "pipelines", "the namespace of jobs in lineage", env=True)


@dataclass(frozen=True)
class SparkSettings:
    """The Spark master, the folder with the Kafka connector's jars, and the folder for drivers' shuffle files."""

    master: str = server_setting("SPARK_MASTER", kinds.MASTER, "local[2]", "a cluster, or the driver itself", env=True)
    jars_dir: Path = setting("SPARK_KAFKA_JARS_DIR", kinds.PATH, Path(".state/jars/spark-kafka"),
        "the jars of Spark's Kafka connector", env=True, container="/opt/jars/spark-kafka")
    scratch_dir: Path = setting("SPARK_SCRATCH_DIR", kinds.PATH, Path(".state/spark"),
        "shuffle files and cached blocks of drivers", env=True, container="/var/lib/pipeline/spark-scratch")


@dataclass(frozen=True)
class TracingSettings:
    """The switch of tracing, and the headers for the collector. The SDK reads its other variables itself."""

    is_on: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


PIPELINES = Setting("PIPELINES", kinds.TEXT, SITE_NAME,
    "the pipelines that run side by side, by the names of their definitions, with commas between them", env=True)

_OTLP_PROTOCOL = kinds.choice("http/protobuf")  # no other exporter is installed
OTEL = (
    Setting("OTEL_EXPORTER_OTLP_ENDPOINT", kinds.URLS, "", "the collector. Without an endpoint, nothing is sent"),
    Setting("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", kinds.URLS, "", "the collector's full URL for traces"),
    Setting("OTEL_EXPORTER_OTLP_HEADERS", kinds.HEADERS, {}, "headers for the collector, such as `api-key=secret`"),
    Setting("OTEL_EXPORTER_OTLP_TRACES_HEADERS", kinds.HEADERS, {}, "those for traces, which have precedence"),
    Setting("OTEL_EXPORTER_OTLP_PROTOCOL", _OTLP_PROTOCOL, "http/protobuf", "how spans are sent"),
    Setting("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", _OTLP_PROTOCOL, "http/protobuf", "how spans are sent"),
    Setting("OTEL_TRACES_EXPORTER", kinds.choice("otlp", "none"), "otlp", "none: nothing is sent"),
    Setting("OTEL_SDK_DISABLED", kinds.TEXT, "", "true: nothing is sent"),
    Setting("OTEL_TRACES_SAMPLER", kinds.TEXT, "",
        "which traces are recorded; empty: parentbased_traceidratio with 0.01, so a caller's choice has precedence"),
    Setting("OTEL_TRACES_SAMPLER_ARG", kinds.TEXT, "", "the argument of the sampler, such as its ratio"),
    Setting("OTEL_RESOURCE_ATTRIBUTES", kinds.TEXT, "", "attributes of the process"),
    Setting("OTEL_SERVICE_NAME", kinds.TEXT, "", "name of the process; empty: that of its service"),
)
# the SDK logs malformed headers, so it never sees them
TRACING_SECRETS = tuple(each.variable for each in OTEL if each.kind.is_secret)


@dataclass(frozen=True)
class Settings:
    """All settings. Values are validated when read; a missing password is an error only when it is used."""

    kafka: KafkaSettings = group(KafkaSettings)
    database: DatabaseSettings = group(DatabaseSettings)
    gateway: GatewaySettings = group(GatewaySettings)
    stream: StreamSettings = group(StreamSettings)
    batch: BatchSettings = group(BatchSettings)
    alerts: AlertSettings = group(AlertSettings)
    spark: SparkSettings = group(SparkSettings)
    timezone: str = setting("PIPELINE_TIMEZONE", kinds.ZONE, "Asia/Seoul",
        "the zone whose midnight divides days. The first day fixes it: then another one is refused", env=True)
    lineage: LineageSettings = group(LineageSettings, default=LineageSettings())
    tracing: TracingSettings = TracingSettings()
    # fmt: on

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
        EnvironmentReader({"PIPELINE": name}).value("PIPELINE", kinds.choice(*PIPELINES))
        env = reader_of(name, variables)
        settings = load(cls, env, tracing=tracing_settings(variables))
        settings = replace(settings, database=replace(settings.database, pipeline=PIPELINES[name]))
        env.require_known(cls)
        kafka = settings.kafka
        if kafka.min_insync_replicas > kafka.replication_factor:
            raise ConfigurationError(
                f"KAFKA_MIN_INSYNC_REPLICAS={kafka.min_insync_replicas}: no record could be written with "
                f"KAFKA_REPLICATION_FACTOR={kafka.replication_factor}; give it that number or less"
            )
        return settings


TABLE = {each.variable: each for each in settings_of(Settings)}


def read(variable: str, environment: Mapping[str, str] | None = None, pipeline: str = "") -> Any:
    """Return the value of one setting, of a pipeline if one is named. Raises ConfigurationError."""
    variables = os.environ if environment is None else environment
    return (reader_of(pipeline, variables) if pipeline else EnvironmentReader(variables)).read(TABLE[variable])


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
    rows = {each.variable: each for each in OTEL}
    headers, of_traces, *endpoints = (env.read(rows[f"OTEL_EXPORTER_OTLP_{name}"])
        for name in ("HEADERS", "TRACES_HEADERS", "ENDPOINT", "TRACES_ENDPOINT"))  # fmt: skip
    is_disabled = env.read(rows["OTEL_SDK_DISABLED"]).strip().lower() == "true"
    if not any(endpoints) or is_disabled or env.read(rows["OTEL_TRACES_EXPORTER"]) == "none":
        return TracingSettings()
    for each in OTEL:
        env.read(each)
    return TracingSettings(is_on=True, headers=of_traces or headers)


def prefix_of(pipeline: str) -> str:
    """Return the prefix of the variables of one pipeline: ORDER_DETAIL__ for order_detail."""
    return f"{pipeline.upper()}__"


def reader_of(pipeline: str, environment: Mapping[str, str]) -> EnvironmentReader:
    """Return a reader of a pipeline's settings: ORDER_DETAIL__DATABASE_NAME wins over DATABASE_NAME."""
    return EnvironmentReader(environment, prefix_of(pipeline))


def listed_pipelines(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names in PIPELINES, separated by commas; else the one in PIPELINE. They are not checked."""
    env = EnvironmentReader(os.environ if environment is None else environment)
    names: str = env.value("PIPELINES", kinds.TEXT, env.value("PIPELINE", kinds.TEXT, PIPELINES.default))
    return [name.strip() for name in names.split(",")]


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
