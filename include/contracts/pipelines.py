"""The pipelines that this installation has definitions of, their topics, and the one that the site's API writes to.

Reads each definition from a TOML file, and refuses a wrong one with the field and the remedy.
"""

import datetime as dt
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from include.contracts.definition import FOLDER, Column, Definition, Side, definitions_folder
from include.contracts.errors import ContractMismatch
from include.contracts.fields import TEXT_PATTERN, Field, FieldType, snake_case
from include.contracts.headers import ACCEPTED_AT, REPLAYED_AT
from include.contracts.topics import REBUILD_WINDOW_DAYS, Topic

_LONGEST_NAME = 63  # PostgreSQL cuts longer ones off

_COORDINATES = (
    Field("kafkaPartition", "kafka_partition", "long", "Always null in the topic; filled when served.", nullable=True),
    Field("kafkaOffset", "kafka_offset", "long", "Always null in the topic; filled when served.", nullable=True),
)
# Columns that the tables have beside those of the definition, and aliases of the named statements.
_RESERVED = {
    "event_id", "stream_partition", "stream_offset", "table_partition", "table_offset", "kafka_partition",
    "kafka_offset", "day", "deleted", "written_at", "covered_at", "generation_id", "replayed", "finality",
    "shown_since", "key", "value", "topic", "partition", "offset", "kind", "identity", "reason", "version_at",
    "class", "shown", "rebuilt", "copies", "kafka_timestamp", "accepted_at", "pending_since", "sent_at", "made_by",
    "stream_keys", "removed", "first_at", "last_at", "topic_id", "record_key", "record_value", "traceparent",
}  # fmt: skip

# Key words of PostgreSQL that are no names of columns; statements have the columns' names without quotation marks.
_KEY_WORDS = {
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary",
    "both", "case", "cast", "check", "collate", "collation", "column", "concurrently", "constraint", "create",
    "cross", "current_catalog", "current_date", "current_role", "current_schema", "current_time",
    "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end",
    "except", "false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike",
    "in", "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral", "leading", "left", "like",
    "limit", "localtime", "localtimestamp", "natural", "not", "notnull", "null", "offset", "on", "only", "or",
    "order", "outer", "overlaps", "placing", "primary", "references", "returning", "right", "select",
    "session_user", "similar", "some", "symmetric", "system_user", "table", "tablesample", "then", "to",
    "trailing", "true", "union", "unique", "user", "using", "variadic", "verbose", "when", "where", "window",
    "with",
}  # fmt: skip

# Names of the product's own tables, indexes, sequences, views, functions, schemas and roles: a pipeline's view stands
# beside them.
_OWN_NAMES = {
    "acknowledged_day", "acknowledged_day_pkey", "alembic_version", "alembic_version_pkc", "alert", "alert_id_seq",
    "alert_notice", "alert_notice_pkey", "alert_notice_unsent", "alert_open", "alert_pkey", "analyst",
    "analyst_personal", "analyze_table", "archive_batch", "archive_batch_id_seq", "archive_batch_pkey",
    "archive_batch_topic", "archive_file", "archive_file_batch", "archive_file_day", "archive_file_pkey",
    "attach_table", "batch", "board_document", "board_document_created", "board_document_member", "board_document_pkey",
    "board_id_seq", "change_key", "change_key_made_at", "change_key_pkey", "change_key_row", "create_table",
    "current_timeline", "cut_ends", "database_timeline", "database_timeline_pkey", "day_acknowledgement", "day_attempt",
    "day_attempt_pkey", "day_certificate", "day_certificate_day", "day_certificate_pkey", "day_correction",
    "day_publication", "day_publication_pkey", "day_status", "day_trust", "detail_correction", "detail_correction_day",
    "detail_correction_pkey", "detail_covered", "detail_covered_key", "detail_covered_pkey", "detail_covered_undoable",
    "detail_empty", "detail_final", "detail_live", "detail_live_day", "detail_live_pkey", "dirty_day", "dirty_day_pkey",
    "drop_table", "forgotten_key", "forgotten_key_pkey", "freshness", "gateway", "gateway_store", "gateway_store_pkey",
    "generation", "generation_day", "generation_difference", "generation_excluded", "generation_excluded_key",
    "generation_excluded_pkey", "generation_id_seq", "generation_load", "generation_load_pkey", "generation_pkey",
    "generations", "guard", "hash_seed", "heartbeat_age_s", "index_table", "index_table_key", "integrity", "is_covered",
    "is_fresh", "late_version", "late_version_pkey", "ledger_repair", "ledger_repair_id_seq", "ledger_repair_pkey",
    "member", "member_id_seq", "member_pkey", "note_timeline", "offset_ledger", "offset_ledger_pkey", "ordered_offset",
    "pending_record", "pending_record_key", "pending_record_pkey", "pending_record_table_key", "pipeline_owner",
    "pipeline_setting", "pipeline_setting_pkey", "public", "publication", "publication_day", "publication_id_seq",
    "publication_pkey", "rebuild_run", "rebuild_run_pkey", "recorded", "reject", "reject_pkey", "searched_generation",
    "searched_generation_pkey", "shown_rows", "site", "stream", "stream_delivery", "stream_delivery_pkey",
    "stream_driver", "stream_driver_pkey", "stream_progress", "stream_progress_pkey", "stream_trial",
    "stream_trial_pkey", "stream_watermark", "stream_watermark_pkey",
    "unchecked_day", "unchecked_day_pkey", "unchecked_day_request_seq", "waiting_record",
    "was_pending",
}  # fmt: skip

_SYSTEM_COLUMNS = {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}

_FieldName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-zA-Z0-9]{0,47}$")]
_TopicName = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]{0,47}$")]
# Seconds; more than the gateway's margin, and the gateway compares texts of seconds
_Tolerance = Annotated[int, msgspec.Meta(ge=60, le=86_400)]
_Text = Annotated[str, msgspec.Meta(max_length=1000, pattern=rf"^(?=[\s\S]*\S){TEXT_PATTERN[1:]}")]


class _Field(msgspec.Struct, forbid_unknown_fields=True):
    name: _FieldName
    type: FieldType
    description: _Text
    max_length: int | None = None
    precision: int = 0
    scale: int = 0
    nullable: bool = False
    personal: bool = False


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    topic: _TopicName
    description: _Text
    key: str
    version: str
    fields: list[_Field]


class _Stream(_Table, forbid_unknown_fields=True):
    day: str
    joined_by: str


class _Column(msgspec.Struct, forbid_unknown_fields=True):
    stream: str | None = None
    table: str | None = None
    name: _FieldName | None = None
    description: _Text | None = None


class _Output(msgspec.Struct, forbid_unknown_fields=True):
    topic: _TopicName
    description: _Text
    columns: list[_Column]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]{0,39}$")]
    stream: _Stream
    table: _Table
    output: _Output
    clock_tolerance_s: _Tolerance = 300


@cache
def load_definitions(folder: Path = FOLDER) -> Mapping[str, Definition]:
    """Return the definitions of a folder by name. Raises ContractMismatch."""
    found = [load_definition(path) for path in sorted(folder.glob("*.toml"))]
    writers: dict[str, str] = {}
    for definition in found:
        for role, topic in (("stream", definition.stream), ("table", definition.table), ("output", definition.output)):
            known = f"{definition.name}.toml [{role}]"
            if (writer := writers.setdefault(topic.name, known)) != known:
                raise ContractMismatch(
                    f"{known}: topic {topic.name} stands in {writer} too; give each topic to one pipeline"
                )
    return {definition.name: definition for definition in found}


def load_definition(path: Path) -> Definition:
    """Return the definition in a file, which is named for its pipeline.

    Raises ContractMismatch with the place in the file, its value and the remedy.
    """
    try:
        read = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as exc:
        raise ContractMismatch(f"{path.name}: {exc}; correct the definition, see docs/pipelines.md") from exc
    try:
        definition = _definition(read)
        problems = [*_problems(read, definition, path.stem)]
    except ContractMismatch as exc:
        raise ContractMismatch(f"{path.name}: {exc}") from exc
    if problems:
        raise ContractMismatch(f"{path.name}: {problems[0]}")
    return definition


def _definition(read: _File) -> Definition:
    tolerance = dt.timedelta(seconds=read.clock_tolerance_s)
    stream = _topic(read.stream, REBUILD_WINDOW_DAYS, tolerance, "stream")
    table = _topic(read.table, None, tolerance, "table")
    columns = [*_columns(read.output.columns)]
    output: dict[str, Field] = {}
    for column, given in zip(columns, read.output.columns, strict=True):
        source = _field(
            stream if column.side == "stream" else table, column.source, f"[output] columns {column.output}"
        )
        output[column.output] = replace(
            source,
            name=column.output,
            column=snake_case(column.output),
            description=given.description or source.description,
        )

    def of(role: str, name: str) -> str:
        for column in columns:
            if (column.side, column.source) == ("stream", name):
                return column.output
        raise ContractMismatch(f'[output] columns: the stream\'s {role} is missing; add {{ stream = "{name}" }}')

    of("join field", read.stream.joined_by), of("day", read.stream.day)
    return Definition(
        name=read.name,
        stream=stream,
        table=table,
        output=Topic(
            read.output.topic, read.output.description, of("key", stream.key_field),
            of("version", stream.version_field), (*output.values(), *_COORDINATES), REBUILD_WINDOW_DAYS,
        ),
        join_field=_field(stream, read.stream.joined_by, "[stream] joined_by").name,
        day_field=_field(stream, read.stream.day, "[stream] day").name,
        columns=tuple(columns),
    )  # fmt: skip


def _topic(read: _Table, retention_days: int | None, tolerance: dt.timedelta, section: str) -> Topic:
    # No other name of the stream and the rebuild ends with an underscore: a field may be called "offset".
    fields = tuple(Field(column=f"{snake_case(f.name)}_", **msgspec.structs.asdict(f)) for f in read.fields)
    try:
        return Topic(read.topic, read.description, read.key, read.version, fields, retention_days, tolerance)
    except ContractMismatch as exc:
        raise ContractMismatch(f"[{section}] {exc}") from exc


def _columns(read: Sequence[_Column]) -> Iterator[Column]:
    for number, given in enumerate(read, 1):
        side: Side = "stream" if given.stream is not None else "table"
        source = given.stream if given.stream is not None else given.table
        if source is None or (given.stream is not None and given.table is not None):
            raise ContractMismatch(
                f'[output] columns, number {number}: give one source, {{ stream = "…" }} or {{ table = "…" }}'
            )
        yield Column(side, source, given.name or source)


def _problems(read: _File, definition: Definition, stem: str) -> Iterator[str]:
    if read.name != stem:
        yield f'name = "{read.name}": the file is named {stem}.toml; give both the same name'
    if read.name in _KEY_WORDS:
        yield f'name = "{read.name}": a key word of PostgreSQL; give the pipeline another name'
    if read.name in _OWN_NAMES or read.name.startswith("pg_"):
        yield f'name = "{read.name}": the database has an object or a role of that name; give the pipeline another name'
    for side, topic in (("stream", definition.stream), ("table", definition.table)):
        if topic.source_header in (ACCEPTED_AT, REPLAYED_AT):
            yield f"[{side}] topic: records have another header {topic.source_header}; give the topic another name"
    join, key = definition.stream.field(definition.join_field), definition.table.field(definition.table.key_field)
    if join.type != key.type or join.nullable:
        yield f"[stream] joined_by = {join.name!r}: not a {key.type} that is never null, as the table's key is"
    if join.name == definition.stream.key_field:
        yield f"[stream] joined_by = {join.name!r}: the key too; name another field that holds the table's key"
    day = definition.stream.field(definition.day_field)
    if day.type != "timestamp" or day.nullable:
        yield f"[stream] day = {day.name!r}: not a timestamp that is never null; name a field that never changes"
    for section, names in (
        ("stream", [f.name for f in read.stream.fields]),
        ("table", [f.name for f in read.table.fields]),
        ("output", [column.output for column in definition.columns]),
    ):
        for name, column in ((name, snake_case(name)) for name in names):
            if [snake_case(other) for other in names].count(column) > 1:
                yield f"[{section}] {name}: another field has the same name in PostgreSQL, {column}; rename one"
            if section == "output" and column in _KEY_WORDS:
                yield f"[output] {name}: {column} is a key word of PostgreSQL; give it another name"
            if section == "output" and len(column) > _LONGEST_NAME:
                yield (
                    f"[output] {name}: {column} has {len(column)} characters, PostgreSQL keeps {_LONGEST_NAME}; "
                    "give it a shorter name"
                )
            if section == "output" and column in _SYSTEM_COLUMNS:
                yield f"[output] {name}: every table of PostgreSQL has a column {column}; give it another name"
            if section == "output" and column in _RESERVED:
                yield f"[output] {name}: the pipeline has a column {column} of its own; give it another name"
    if not any(column.side == "table" for column in definition.columns):
        yield '[output] columns: none is of the table; add { table = "…" }'
    for field in definition.output.fields:
        if field.personal and field.type != "string":
            yield f"[output] {field.name}: a personal {field.type} cannot be masked; leave it out, or make it a string"


def _field(topic: Topic, name: str, place: str) -> Field:
    try:
        return topic.field(name)
    except KeyError as exc:
        names = ", ".join(field.name for field in topic.fields)
        raise ContractMismatch(f"{place} = {name!r}: topic {topic.name} has no such field; use one of {names}") from exc


PIPELINES: Mapping[str, Definition] = load_definitions(definitions_folder())

TOPICS: Mapping[str, Topic] = {
    topic.name: topic for each in PIPELINES.values() for topic in (each.table, each.stream, each.output)
}
# Topics that clients may send to through the gateway. Only a pipeline writes its output.
RAW_TOPICS: Mapping[str, Topic] = {
    topic.name: topic for each in PIPELINES.values() for topic in (each.table, each.stream)
}

SITE_PIPELINE = PIPELINES[
    "board_detail"
]  # its topics are fed by the tables of the site's API; the default of PIPELINES
MEMBER, BOARD = SITE_PIPELINE.table, SITE_PIPELINE.stream
BOARD_DETAIL = SITE_PIPELINE.output
