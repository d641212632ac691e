"""The join rule by the column equals the rule in plain Python, for any history of members."""

import datetime as dt

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.batch.authors import authors
from spark_jobs.speed.json_columns import TIMES
from tests.support import oracle

START = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
MEMBERS = pa.schema([("id", pa.int64()), ("version_at", TIMES), ("offset", pa.int64()), ("partition", pa.int32()),
                     ("deleted", pa.bool_())])  # fmt: skip
BOARDS = pa.schema([("member_id", pa.int64()), ("version_at", TIMES)])


def at(hour):
    return START + dt.timedelta(hours=hour)


VERSIONS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.booleans()), max_size=12)
POSTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=8)


@given(versions=VERSIONS, posts=POSTS)
def test_each_board_has_the_author_that_the_rule_gives(versions, posts):
    history = [
        oracle.Version("member", key, offset, at(hour), f"e{offset}", deleted=deleted)
        for offset, (key, hour, deleted) in enumerate(versions)
    ]
    members = pa.Table.from_pylist(
        [{"id": v.key, "version_at": v.at, "offset": v.offset, "partition": 0, "deleted": v.deleted} for v in history],
        MEMBERS,
    )
    boards = pa.Table.from_pylist([{"member_id": key, "version_at": at(hour)} for key, hour in posts], BOARDS)
    found, places = authors(boards, members, "member_id", "id")
    chosen = found["offset"].take(places).to_pylist()
    expected = [oracle.author(oracle.Version("board", 1, 0, at(hour), "b", member=key), history) for key, hour in posts]
    assert chosen == [None if author is None else author.offset for author in expected]
