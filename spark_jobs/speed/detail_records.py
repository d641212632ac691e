"""Encodes joined rows as records of the output topic, by column, and moves them between processes."""

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts import headers as h
from include.contracts.definition import Definition
from include.contracts.fields import Field
from include.contracts.topics import SINK_SETTINGS, Topic
from spark_jobs.decoding.arrow import array, text_column

MAX_REQUEST_BYTES = int(str(SINK_SETTINGS["message.max.bytes"]))
_FRAMING = 20  # bytes that Kafka adds at most to a key, a value or a header
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))  # a text has no other controls
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class Encoded(NamedTuple):
    """Records of the output topic, and the reason why a row has none, by its index."""

    records: pa.Table
    refused: dict[int, str]


class DetailEncoder:
    """Makes records of rows of the stream and their matches in the table."""

    def __init__(self, definition: Definition) -> None:
        sources = definition.stream.source_header, definition.table.source_header
        names = ("key", "value", h.EVENT_ID, h.ACCEPTED_AT, *sources, h.TRACEPARENT)
        self._schema = pa.schema([(name, pa.binary()) for name in names])
        self._definition = definition
        self._sources = {column.output: column for column in definition.columns}

    def encode(self, rows: pa.Table, matches: pa.Table) -> Encoded:
        """Return a column of bytes for key, value (null for a tombstone), and each header (null: no such header).

        `rows` are those of `Joiner`; `matches` has as many, with null where a row is a tombstone. Timestamps of the
        stream keep the text they were sent with, which the contract has checked. A record that is larger than a request
        may be is refused.
        """
        definition, deleted = self._definition, array(rows["deleted"])
        # a tombstone has no value, so its version is in a header; as its text, which may be of a year before in UTC
        version = pc.if_else(deleted, _rfc3339(array(rows["version_at"])), None)
        columns = [
            array(rows[definition.stream.key_column]).cast(pa.string()),
            pc.if_else(deleted, None, self._values(rows, matches)),
            array(rows["event_id"]),
            pc.coalesce(array(rows["accepted_text"]), version),
            _coordinates(definition.stream, rows),
            _coordinates(definition.table, matches),
            array(rows["traceparent"]),
        ]
        records = pa.Table.from_arrays([each.cast(pa.binary()) for each in columns], schema=self._schema)
        sizes = sizes_of(records)
        if sizes.max(initial=0) <= MAX_REQUEST_BYTES:
            return Encoded(records, {})
        refused = {int(index): self._reason(matches.slice(index, 1), sizes[index])
                   for index in np.flatnonzero(sizes > MAX_REQUEST_BYTES)}  # fmt: skip
        return Encoded(records.filter(pa.array(sizes <= MAX_REQUEST_BYTES)), refused)

    def _reason(self, match: pa.Table, size: int) -> str:
        (joined,) = _coordinates(self._definition.table, match).to_pylist()
        return (f"/: joined with {joined} it has {size} bytes, more than the {MAX_REQUEST_BYTES} of a request; shorten "
                "a text of either record, and send it again")  # fmt: skip

    def _values(self, rows: pa.Table, matches: pa.Table) -> pa.Array:
        pieces: list[pa.Array | str] = []
        before = "{"
        for field in self._definition.output.fields:
            literals, mark = self._literals(field, rows, matches)
            pieces += [f'{before}"{field.name}":{mark}', literals]
            before = f"{mark},"
        return pc.binary_join_element_wise(*pieces, before[:-1] + "}", "")

    def _literals(self, field: Field, rows: pa.Table, matches: pa.Table) -> tuple[pa.Array, str]:
        """Return the field's values in JSON, without the mark that stands around each."""
        source = self._sources.get(field.name)
        if source is None:
            return pa.repeat("null", rows.num_rows), ""
        if source.side == "table":
            of = self._definition.table.field(source.source)
            texts = _texts(array(matches[of.column]), of)
        else:
            of = self._definition.stream.field(source.source)
            is_sent = of.type == "timestamp"
            texts = array(rows[text_column(of)]) if is_sent else _texts(array(rows[of.column]), of)
        mark = "" if of.type in ("long", "boolean") else '"'
        if not texts.null_count:
            return texts, mark
        return pc.coalesce(pc.binary_join_element_wise(mark, texts, mark, ""), "null"), ""


def _texts(values: pa.Array, field: Field) -> pa.Array:
    """Return values of the contract as JSON has them, without quotes."""
    match field.type:
        case "timestamp":
            return _rfc3339(values)
        case "decimal":  # Arrow writes small numbers with an exponent
            return pa.array([None if each is None else f"{each:f}" for each in values.to_pylist()], pa.string())
        case "string":
            return _escaped(values)
        case _:
            return values.cast(pa.string())


def _escaped(texts: pa.Array) -> pa.Array:
    held = pa.concat_arrays([texts]).buffers()[2]
    data = b"" if held is None else held.to_pybytes()
    for plain, escape in _ESCAPES:
        if plain.encode() in data:
            texts = pc.replace_substring(texts, plain, escape)
    return texts


def _rfc3339(instants: pa.Array) -> pa.Array:
    return pc.strftime(instants, "%Y-%m-%dT%H:%M:%SZ")  # with microseconds, the unit of the type


def _coordinates(topic: Topic, rows: pa.Table) -> pa.Array:
    """Return topic/partition/offset; null without a record."""
    partitions, offsets = (array(rows[name]).cast(pa.string()) for name in ("partition", "offset"))
    return pc.binary_join_element_wise(f"{topic.name}/", partitions, "/", offsets, "")


def sizes_of(records: pa.Table) -> np.ndarray:
    """Return the bytes that each record has in a request, at most."""
    sizes = np.full(records.num_rows, sum(_FRAMING + len(name) for name in records.schema.names))
    for column in records.columns:
        sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return sizes


def packed(table: pa.Table) -> bytes:
    """Return the rows in Arrow's format, compressed: they pass through the JVM."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> pa.Table:
    """Return the rows of `packed`, in one chunk."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all().combine_chunks()


def iter_messages(records: pa.Table) -> Iterator[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]:
    """Yield key, value and headers of each record."""
    keys, values, *headers = (array(each).to_numpy(zero_copy_only=False).tolist() for each in records.columns)
    named = [
        zip(repeat(name), each, strict=False) for name, each in zip(records.column_names[2:], headers, strict=True)
    ]
    for key, value, *pairs in zip(keys, values, *named, strict=True):
        yield key, value, [pair for pair in pairs if pair[1] is not None]
