"""The topics of the pipeline as data: keys, values, settings and retention."""

import datetime as dt
from dataclasses import dataclass
from functools import cached_property

from include.contracts.errors import ContractMismatch
from include.contracts.fields import Field

KEPT_FOR_EVER = -1
# A record's timestamp is the time at which a broker appended it. A producer's clock, which may be wrong, decides
# neither whether the record is taken nor when it expires (docs/adr/0055).
TIMESTAMP_TYPE, LOG_APPEND_TIME = "message.timestamp.type", "LogAppendTime"
DAY_MS = 24 * 60 * 60 * 1000

# The largest message that producers send and topics take. A record's value may be as large as that less the longest key
# and headers. The gateway refuses a larger event at once: in an outage its fallback store would accept it, and the
# replay could never send it.
MAX_MESSAGE_BYTES = 1_000_000
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - 1024
# The default of topics, and as much as the stream's producers send. A joined record has bytes of two others; one that
# has more than this becomes a reject.
MAX_OUTPUT_BYTES = 1_048_588


@dataclass(frozen=True)
class Topic:
    """A Kafka topic and the JSON value it carries.

    The record key is the value's `key_field`, a `long`, as decimal text. `version_field`, a `timestamp`, orders the
    versions of a key. Both fields are never null. `retention_days` is None for a topic kept for ever.

    A version may be later than the time of its record by `clock_tolerance` at most; it is None for a topic whose
    versions were checked before they were written.
    """

    name: str
    description: str
    key_field: str
    version_field: str
    fields: tuple[Field, ...]
    retention_days: int | None
    clock_tolerance: dt.timedelta | None = None

    def __post_init__(self) -> None:
        """Raise ContractMismatch if the key or the version is not a field of the type it needs."""
        for role, name, kind in (
            ("key_field", self.key_field, "long"),
            ("version_field", self.version_field, "timestamp"),
        ):
            if not any(field.name == name and field.type == kind and not field.nullable for field in self.fields):
                raise ContractMismatch(
                    f"topic {self.name}: {role}={name!r} names no field of type {kind} that is never null; "
                    "name one of the topic's fields, or add it"
                )

    @cached_property
    def key_column(self) -> str:
        """The relational name of the key field."""
        return self.field(self.key_field).column

    @cached_property
    def version_column(self) -> str:
        """The relational name of the version field."""
        return self.field(self.version_field).column

    @property
    def source_header(self) -> str:
        """The header of joined records that holds the coordinates of this topic's record: board → board-at.

        The coordinates identify a row. Offsets in the output topic do not, because *join* may write a row twice.
        """
        return f"{self.name}-at"

    def field(self, name: str) -> Field:
        """Return the field with that JSON name. Raises KeyError."""
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"topic {self.name} has no field {name}") from None

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def json_schema(self) -> dict[str, object]:
        """Return the value as a JSON Schema (draft 2020-12). Other properties are allowed and passed through."""
        properties = {field.name: field.json_schema() for field in self.fields}
        if self.clock_tolerance is not None:
            seconds = f"{self.clock_tolerance.total_seconds():g}"
            properties[self.version_field]["description"] = (
                f"{self.field(self.version_field).description} It is at most {seconds} s later than the record."
            )
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.name,
            "description": self.description,
            "type": "object",
            "properties": properties,
            "required": [field.name for field in self.fields if not field.nullable],
            "additionalProperties": True,
        }

    def settings(self, min_insync_replicas: int, retention_days: int) -> dict[str, str]:
        """Return the topic's Kafka configuration. `retention_days` is the deployment's rebuild window."""
        days = retention_days if self.retention_days is not None else None
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(KEPT_FOR_EVER if days is None else days * DAY_MS),
            "retention.bytes": "-1",
            "min.insync.replicas": str(min_insync_replicas),
            "unclean.leader.election.enable": "false",
            TIMESTAMP_TYPE: LOG_APPEND_TIME,
        }


# Settings of every producer of the pipeline.
PRODUCER_SETTINGS = {"acks": "all", "enable.idempotence": "true", "compression.type": "snappy"}
# Of producers on librdkafka: its default assigns keys to other partitions than the Java clients do.
PARTITIONER = "murmur2_random"
PYTHON_PRODUCER_SETTINGS = {**PRODUCER_SETTINGS, "partitioner": PARTITIONER}
# Of the join's producers. Large batches mean fewer requests; the flush at the end of a batch sends the last at once.
SINK_SETTINGS: dict[str, object] = {
    **PYTHON_PRODUCER_SETTINGS, "batch.size": 262_144, "linger.ms": 20, "message.max.bytes": 1 << 20,
    "queue.buffering.max.kbytes": 65_536, "message.timeout.ms": 120_000, "delivery.report.only.error": True,
}  # fmt: skip
# Of the join's transactions with exactly-once delivery. A coordinator aborts a transaction that is older than the
# time-out, which is longer than any transaction takes: readers of the topic wait for one whose driver is gone.
# librdkafka 2.16.0 that bootstraps again, as it does when all its connections end, goes on to wait for the group's
# coordinator at a broker that it has dropped; the driver's next start finds brokers that are elsewhere.
TRANSACTION_S = 60.0
TRANSACTION_SETTINGS: dict[str, object] = {
    **SINK_SETTINGS, "transaction.timeout.ms": int(TRANSACTION_S * 1000),
    "message.timeout.ms": int(TRANSACTION_S * 1000), "metadata.recovery.strategy": "none",
}  # fmt: skip

REBUILD_WINDOW_DAYS = 14
