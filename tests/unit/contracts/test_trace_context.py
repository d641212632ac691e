"""`traceparent` as W3C Trace Context defines it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.headers import TraceContext, parse

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def value(version="00", trace_id=TRACE, span_id=SPAN, flags="01", rest=""):
    return f"{version}-{trace_id}-{span_id}-{flags}{rest}".encode()


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (value(), 1),
        (value(flags="00"), 0),
        (value(flags="03"), 3),
        (value(flags="ff"), 3),  # reserved flags are not passed on
        (value(version="cc"), 1),
        (value(version="01", rest="-anything-more"), 1),
        (value(version="fe", flags="08", rest="-"), 0),
    ],
)
def test_valid_values(given, flags):
    found = parse(given)
    assert found == TraceContext(TRACE, SPAN, flags)
    assert found.header == f"00-{TRACE}-{SPAN}-{flags:02x}".encode()
    assert found.is_sampled == bool(flags & 1)


@pytest.mark.parametrize(
    "given",
    [
        None, b"", b"-", value(version="ff"), value(version="0"), value(version="0G"), value(version="000"),
        value(trace_id="0" * 32), value(trace_id=TRACE.upper()), value(trace_id=TRACE[1:]), value(trace_id=TRACE + "0"),
        value(span_id="0" * 16), value(span_id=SPAN[1:]), value(span_id="zzad6b7169203331"), value(flags="1"),
        value(flags="0g"), value(flags="001"), value(rest="-"), value(rest="-more"), value(version="01", rest="more"),
        value(rest=" "), b" " + value(), value() + b"\n", value() + b"," + value(), value().replace(b"-", b"_"),
        value(version="01", rest="-" + "x" * 1000), "00-０af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01".encode(),
    ],
)  # fmt: skip
def test_values_that_are_ignored(given):
    assert parse(given) is None


contexts = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1).map("{:032x}".format),
    st.integers(1, 2**64 - 1).map("{:016x}".format),
    st.integers(0, 3),
)


@given(contexts)
def test_what_is_written_is_read(context):
    assert parse(context.header) == context


@given(
    st.binary(max_size=80) | st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", fullmatch=True)
)
def test_any_bytes_are_read_or_ignored(data):
    found = parse(data)
    if found is None:
        return
    # what a strict reader of version 00 accepts
    assert re.fullmatch(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[0-3]", found.header)
    assert data[3:52] == found.header[3:52]


@given(contexts, st.data())
def test_a_changed_byte_never_makes_another_trace_of_invalid_digits(context, data):
    at = data.draw(st.integers(0, 54))
    changed = bytearray(context.header)
    changed[at] = data.draw(st.integers(0, 255).filter(lambda byte: chr(byte) not in "0123456789abcdef-"))
    assert parse(bytes(changed)) is None
