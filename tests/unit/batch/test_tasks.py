"""The blobs that tasks of a rebuild send to one another: their sizes and numbers."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts.clock import rfc3339
from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.record_table import RAW
from include.runtime.settings import DatabaseSettings
from spark_jobs.batch import tasks
from spark_jobs.batch.tasks import Kind, needed_rows, steps
from spark_jobs.connectors.splits import ROWS, FileSplit
from tests.fakes.events import board, member
from tests.support.spark import encoded

DAY = Day.parse("2026-11-20", "Asia/Seoul")
NOWHERE = DatabaseSettings("127.0.0.1", 1, "none", {}, PIPELINE)  # nothing is rejected or excluded, so nothing is saved
BODY = "x" * 500


def work(buckets):
    return tasks.RebuildContext(PIPELINE, DAY, 1, buckets, True, NOWHERE, "127.0.0.1:1")


def raw_file(folder, topic, values):
    times = {"createdAt": rfc3339(DAY.start), "modifiedAt": rfc3339(DAY.start)}
    rows = [
        {"partition": 0, "offset": offset, "timestamp": DAY.start, "key": str(value["id"]).encode(),
         "value": encoded({**value, **times}), "headers": None}
        for offset, value in enumerate(values)
    ]  # fmt: skip
    path = folder / f"{topic}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, RAW), path)
    return FileSplit(topic, str(path))


def shuffled(blobs):
    """Partition → its blobs."""
    found = {}
    for partition, blob in blobs:
        found.setdefault(partition, []).append((partition, blob))
    return found


def bytes_of(blobs):
    return sum(len(data) for _, (_, data) in blobs)


@settings(max_examples=10, deadline=None)
@given(authors=st.lists(st.integers(1, 2**40), min_size=1, max_size=30), skew=st.sampled_from([1, 2, 400]))
def test_no_task_holds_many_more_texts_than_another_however_boards_are_spread_over_members(
    tmp_path_factory, authors, skew
):
    folder, buckets, count = tmp_path_factory.mktemp("skew"), 8, 1200
    written_by = [authors[0] if number % skew == 0 else authors[number % len(authors)] for number in range(count)]
    boards = raw_file(folder, "board", [board(n, by, body=BODY) for n, by in enumerate(written_by, 1)])
    members = raw_file(folder, "member", [member(key) for key in dict.fromkeys(authors)])

    deciding, finding, loading = steps(buckets)
    raw = shuffled(tasks.read([boards, members], work(buckets), lambda _: None))
    chosen = shuffled(
        blob for number, at in enumerate(deciding) for blob in tasks.choose(number, raw.get(at, ()), work(buckets))
    )
    found = shuffled(
        blob for at in finding for blob in tasks.find([*raw.get(at, ()), *chosen.get(at, ())], work(buckets))
    )
    loaded = [bytes_of([*raw.get(at, ()), *chosen.get(at, ()), *found.get(at, ())]) for at in loading]
    assert sum(loaded) > count * len(BODY)
    assert max(loaded) < 2 * sum(loaded) / buckets
    others = [bytes_of([*raw.get(at, ()), *chosen.get(at, ())]) for at in (*deciding, *finding)]
    assert max(others) < max(loaded)  # without texts


@pytest.mark.parametrize("buckets", [4, 4_000])
def test_blobs_are_no_more_than_buckets_until_they_are_worth_it(tmp_path, buckets):
    count = 3 * ROWS + 1  # four tables are read
    boards = raw_file(tmp_path, "board", (board(n, n) for n in range(1, count + 1)))
    kinds = Counter(kind for _, (kind, _) in tasks.read([boards], work(buckets), lambda _: None))
    tables = 4 if buckets == 4 else 1
    assert 0.9 * buckets < kinds[Kind.CANDIDATES] <= buckets * tables
    assert 0.9 * buckets < kinds[Kind.VERSIONS] <= buckets * tables


def test_versions_go_to_every_bucket_that_wants_them_and_to_no_other():
    ids, wanted = pa.chunked_array([[7, 8, 7, 9]]), pa.chunked_array([[7, 9, 7, 404]])
    found = set()
    for rows, buckets in needed_rows(ids, wanted, pa.chunked_array([[2, 0, 0, 1]])):
        found |= set(zip(rows.tolist(), buckets.tolist(), strict=True))
    assert found == {(0, 2), (2, 2), (3, 0), (0, 0), (2, 0)}


def test_versions_wanted_by_many_are_handed_on_some_at_a_time():
    ids, wanted = pa.chunked_array([[1] * 9_000]), pa.chunked_array([[1] * 5])
    sizes = [len(rows) for rows, _ in needed_rows(ids, wanted, pa.chunked_array([[0, 1, 2, 3, 4]]))]
    assert sizes == [9_000] * 5
