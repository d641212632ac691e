"""Values that are not JSON because of their first bytes: gateway and readers of a topic name what they are, alike."""

import codecs
import gzip
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.pipelines import BOARD
from include.contracts.validation import Reject, encoding_violation
from include.gateway.calls.events import decode
from include.gateway.http.message import Fault
from include.runtime.settings import GatewayLimits
from spark_jobs.decoding.reference import read_record
from tests.fakes.events import board
from tests.support.any_record import AnyRecord, Message

LIMITS = GatewayLimits()
TEXT = json.dumps(board(), ensure_ascii=False)
VALUES = {
    "byte order mark": (codecs.BOM_UTF8 + TEXT.encode(), "not JSON: begins with a byte order mark"),
    "UTF-16 with a mark": (TEXT.encode("utf-16"), "not JSON: UTF-16 with a byte order mark"),
    "UTF-16, big-endian, with a mark": (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "not JSON: UTF-16 with a byte"),
    "UTF-16": (TEXT.encode("utf-16-le"), "not JSON: UTF-16;"),
    "UTF-16, big-endian": (TEXT.encode("utf-16-be"), "not JSON: UTF-16;"),
    "UTF-16 of an array": (f"[{TEXT}]".encode("utf-16-le"), "not JSON: UTF-16;"),
    "gzip": (gzip.compress(TEXT.encode()), "not JSON: compressed with gzip"),
    "zstd": (b"\x28\xb5\x2f\xfd\x00", "not JSON: compressed with zstd"),
    "schema registry": (
        struct.pack(">bI", 0, 7) + TEXT.encode(),
        "not JSON: begins with a zero byte, as the serializers",
    ),
}


def of_gateway(value):
    with pytest.raises(Fault) as caught:
        decode(value, LIMITS)
    assert caught.value.status == 400
    return caught.value


def of_reader(value):
    read = read_record(Message(AnyRecord("board", b"1", value), 0), BOARD)
    assert isinstance(read, Reject)
    return read.reason


@pytest.mark.parametrize(("value", "says"), VALUES.values(), ids=VALUES.keys())
def test_gateway_and_reader_name_it_with_the_remedy(value, says):
    assert of_reader(value).startswith(f"/: {says}")
    fault = of_gateway(value)
    assert of_reader(value) == str(fault.details[0])
    assert fault.error == fault.details[0].problem
    assert fault.details[0].remedy.startswith("send ")


JSON_TEXT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@given(JSON_TEXT, st.sampled_from([b"", b" ", b"\n\t"]))
def test_no_json_text_is_taken_for_another_encoding(text, before):
    assert encoding_violation(before + text) is None


@given(st.binary(max_size=12))
def test_whatever_is_named_is_refused_by_both(value):
    if encoding_violation(value) is not None:
        assert of_reader(value) == str(of_gateway(value).details[0])
