"""Both forms of the join rule, and the rule in plain Python, give each board the same author, for any history.

Every history of a member up to three versions is tried, with every board beside it.
"""

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.decoding.arrow import TIMES
from spark_jobs.joining import matches_of_history, matches_of_newest
from spark_jobs.state import segments
from spark_jobs.state.segments import Origin, SegmentStore
from tests.support import oracle

START = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
HOURS = (0, 1, 2)  # of versions; boards are written at these hours, before and after
VERSIONS = tuple(itertools.product(HOURS, (False, True), (0, 1)))  # hour, deleted, partition
HISTORIES = [history for count in range(4) for history in itertools.product(VERSIONS, repeat=count)]
MEMBERS = pa.schema([
    ("id_", pa.int64()), ("nickname_", pa.string()), ("city_", pa.string()), ("phone_", pa.string()),
    ("version_at", TIMES), ("partition", pa.int32()), ("offset", pa.int64()), ("deleted", pa.bool_()),
])  # fmt: skip
BOARDS = pa.schema([("board_id", pa.int64()), ("member_id_", pa.int64()), ("version_at", TIMES)])


def at(hour):
    return START + dt.timedelta(hours=hour)


def log_of(key, history):
    """The member's records; offsets count by partition, so records of two partitions may have the same."""
    counts = [itertools.count(), itertools.count()]
    return [
        oracle.Version("member", key, next(counts[partition]), at(hour), f"{key}.{number}", deleted=deleted,
                       partition=partition)
        for number, (hour, deleted, partition) in enumerate(history)
    ]  # fmt: skip


LOGS = {key: log_of(key, history) for key, history in enumerate(HISTORIES)}
ALL_BOARDS = [
    oracle.Version("board", number, number, at(hour), "", member=key)
    for number, (key, hour) in enumerate(itertools.product(LOGS, (-1, *HOURS, 3)))
]


def members_of(versions):
    return pa.Table.from_pylist(
        [{"id_": v.key, "nickname_": v.event_id, "city_": "", "phone_": "", "version_at": v.at,
          "partition": v.partition, "offset": v.offset, "deleted": v.deleted} for v in versions],
        MEMBERS,
    )  # fmt: skip


def boards_of(boards):
    return pa.Table.from_pylist(
        [{"board_id": b.key, "member_id_": b.member, "version_at": b.at} for b in boards], BOARDS
    )


def by_history(versions):
    """Board → its author's version, by the form of the batch layer."""
    members, indexes = matches_of_history(boards_of(ALL_BOARDS), members_of(versions), "member_id_", "id_")
    return dict(zip((b.key for b in ALL_BOARDS), members["nickname_"].take(indexes).to_pylist(), strict=True))


def by_newest(store):
    """The same, by the form of the stream, with the rows that a lookup in the segments finds."""
    members = segments.newest_of(store.find(np.array(sorted(LOGS))), MEMBERS)
    indexes = matches_of_newest(boards_of(ALL_BOARDS)["member_id_"].combine_chunks(), members, "id_")
    return dict(zip((b.key for b in ALL_BOARDS), members["nickname_"].take(indexes).to_pylist(), strict=True))


def in_plain_python(logs):
    """The same, by the oracle."""
    authors = {board.key: oracle.author(board, logs[board.member]) for board in ALL_BOARDS}
    return {key: None if author is None else author.event_id for key, author in authors.items()}


def newest_of(log):
    return [max(log, key=lambda version: version.version)] if log else []


NEWEST = {key: newest_of(log) for key, log in LOGS.items()}


def test_the_form_of_history_is_the_rule():
    assert by_history(itertools.chain(*LOGS.values())) == in_plain_python(LOGS)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Segments as the stream writes them: each has a key at most once."""
    folder = tmp_path_factory.mktemp("segments")
    store = SegmentStore(folder, Origin("cluster", "member", "id", "definition", "timeline"), MEMBERS)
    for number in range(3):
        rows = members_of(log[number] for log in LOGS.values() if len(log) > number)
        store.append(rows, {0: number}, {0: number + 1})
    yield store
    store.close()


def test_both_forms_agree_on_newest_versions(store):
    expected = by_history(itertools.chain(*NEWEST.values()))
    assert expected == in_plain_python(NEWEST)
    assert by_newest(store) == expected
    store.merge()
    assert by_newest(store) == expected


def test_both_forms_agree_on_history_where_no_newer_version_changed_the_author(store):
    shown, exact = by_newest(store), by_history(itertools.chain(*LOGS.values()))
    unchanged = [b.key for b in ALL_BOARDS if all(newest.at <= b.at for newest in NEWEST[b.member])]
    assert len(unchanged) > len(HISTORIES)
    assert [shown[key] for key in unchanged] == [exact[key] for key in unchanged]


LONGS = st.one_of(st.integers(-2, 2), st.sampled_from([-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1]))


@settings(max_examples=500)
@given(wanted=st.lists(st.one_of(st.none(), LONGS)), newest=st.dictionaries(LONGS, st.booleans()))
@example(wanted=[None, 0], newest={})
@example(wanted=[None, 0, None], newest={0: False})
@example(wanted=[], newest={0: False})
def test_both_forms_agree_on_any_ids(wanted, newest):
    """`newest`: whether the newest version of a key is a tombstone; it is the only one."""
    versions = members_of(
        oracle.Version("member", key, number, START, f"{key}", deleted=deleted)
        for number, (key, deleted) in enumerate(sorted(newest.items()))
    )
    ids = pa.array(wanted, pa.int64())
    expected = [None if newest.get(each, True) else str(each) for each in wanted]
    found = matches_of_newest(ids, versions, "id_")
    assert (found.type, len(found)) == (pa.int64(), len(wanted))
    assert versions["nickname_"].take(found).to_pylist() == expected
    boards = pa.table({"member_id_": ids, "version_at": pa.array([START] * len(wanted), TIMES)})
    members, indexes = matches_of_history(boards, versions, "member_id_", "id_")
    assert members["nickname_"].take(indexes).to_pylist() == expected
