"""Identities: one event has one, two events have two, and both for ever."""

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st

from include.gateway.event_ids import keyed_event_ids, row_event_id

AT = dt.datetime(2026, 11, 20, 9, tzinfo=dt.UTC)

senders = st.sampled_from(["site", "site ", "app"])
keys = st.sampled_from(["k", "k1", "1"])
calls = st.tuples(senders, keys, st.sampled_from([b"a" * 32, b"b" * 32, b"1" + b"a" * 31]))


def test_identities_are_written_down_because_others_after_an_update_would_be_other_events():
    assert keyed_event_ids("site", "key", b"f" * 32, 2) == [
        "c2a04d78-2368-8115-ac15-d8ca1af7bf47",
        "8bb89872-6c36-8ade-829d-f6896c36e768",
    ]
    assert row_event_id("member", 7, AT) == "218a635b-0b8e-5976-b236-839b26a13efc"


@given(calls, calls, st.integers(1, 12))
def test_calls_that_differ_share_no_identity_and_the_same_call_has_the_same(one, other, count):
    first, second = keyed_event_ids(*one, count), keyed_event_ids(*other, count)
    assert len(set(first)) == count
    assert (first == second) if one == other else not set(first) & set(second)
    assert keyed_event_ids(*one, count + 1)[:count] == first
