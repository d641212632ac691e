"""Rows made from records that the contract rejects by now are taken out of the way: on real servers."""

import dataclasses
import datetime as dt

import pytest

from include.contracts.clock import rfc3339
from include.contracts.errors import LOOK
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.driver_lease import DriverAlive, DriverLease
from include.integrity.days.comparison import verify
from include.integrity.days.due_days import dirty_days
from include.integrity.pages.day_page import load_day
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.archive.check import verify_archive
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.recheck import Recheck, StreamBehind, lines
from tests.fakes.events import board, member
from tests.property.test_stream import Driver
from tests.support.archive import DAY, NOON, Archive, at, event
from tests.support.certifying import certify_alone, take_everything
from tests.support.pipeline import environment, rows, run_module
from tests.support.publication import publish
from tests.support.serving import opened_store, pending, row, serve

YEAR_2200 = "2200-01-01T00:00:00Z"
AHEAD = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
TODAY = DAY.before(-1)  # not published
VIEW = "SELECT board_id, nickname, title, finality FROM board_detail ORDER BY board_id"


def without_bound(definition):
    """The contract as it was."""
    sides = {side: dataclasses.replace(getattr(definition, side), clock_tolerance=None) for side in ("stream", "table")}
    return dataclasses.replace(definition, **sides)


FORMER = without_bound(PIPELINE)


def a_version(board_id, title, modified, day=DAY, author=8):
    created = rfc3339(day.start + dt.timedelta(hours=1))
    made = board(board_id, author, title=title, createdAt=created, modifiedAt=modified)
    return ("board", board_id, made, event(f"{board_id}-{title}"))


def a_member(member_id, name, modified):
    made = member(member_id, nickname=name, createdAt=at(-100), modifiedAt=modified)
    return ("member", member_id, made, event(f"m{member_id}-{name}"))


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path):
    """A published and archived day, and a day that only the stream shows, both from before the bound.

    Board 1 has a version of 2200 and a correction, 2 a deletion of 2200, 3 a version of 2200 alone, 4 an author of whom
    a version is of 2200, 5 nothing of it. Boards 11 to 15 are the same of the other day.
    """
    made = Archive(kafka, postgres, spark, "recheck", tmp_path)
    made.send([a_member(7, "right", at(-10)), a_member(7, "ahead", YEAR_2200), a_member(8, "right", at(-10))])
    for first, day in ((0, DAY), (10, TODAY)):
        made.send([
            a_version(first + 1, "first", at(-3), day), a_version(first + 1, "ahead", YEAR_2200, day),
            a_version(first + 1, "corrected", at(-1), day), a_version(first + 2, "kept", at(-3), day),
            ("board", first + 2, None, [*event(f"{first}-gone"), ("accepted-at", YEAR_2200.encode())]),
            a_version(first + 3, "ahead", YEAR_2200, day), a_version(first + 4, "right", at(-3), day, author=7),
            a_version(first + 5, "right", at(-3), day),
        ])  # fmt: skip
    settings, context = made.settings, made.context
    archive_topics(context, settings, FORMER, "former")
    rebuild_day(context, settings, FORMER, DAY, "former", None)
    publish(settings, DAY, "former")
    take_everything(settings)
    return made


def coordinates(archive, key, number):
    """Partition and offset of the `number`th record of the key in the stream's topic."""
    raw = archive.rows("board").select(["key", "partition", "offset"]).to_pylist()
    found = [(each["partition"], each["offset"]) for each in raw if each["key"] == str(key).encode()]
    return found[number]


def member_coordinates(archive, number):
    raw = archive.rows("member").select(["key", "partition", "offset"]).to_pylist()
    return [(each["partition"], each["offset"]) for each in raw if each["key"] == b"7"][number]


def live(archive, key, number, title, at_=AHEAD, author=None, **fields):
    """The row that the stream showed of a record."""
    partition, offset = coordinates(archive, key, number)
    table_partition, table_offset = author or (None, None)
    shown = {"title": title, "modified_at": at_, "day": TODAY.date, "member_id": 8, "nickname": "right"}
    shown |= {"kafka_offset": 100 + key}
    made_from = {"stream_partition": partition, "table_partition": table_partition, "table_offset": table_offset}
    return row(key, offset, **shown | made_from | fields)


def as_the_stream_showed_it(archive):
    """The live rows of the day that is not published, and what waits."""
    settings = archive.settings
    early = NOON - dt.timedelta(hours=3)
    nothing = dict.fromkeys(("member_id", "nickname", "city", "title", "body", "created_at", "day"))
    partition, offset = coordinates(archive, 12, 1)
    store = opened_store(settings)
    try:
        serve(store, [
            live(archive, 11, 1, "ahead"), live(archive, 13, 0, "ahead"),
            live(archive, 14, 0, "right", early, member_coordinates(archive, 1), nickname="ahead", member_id=7),
            live(archive, 15, 0, "right", early),
        ])  # fmt: skip
        serve(
            store,
            [row(12, offset, stream_partition=partition, modified_at=AHEAD, deleted=True, kafka_offset=200, **nothing)],
        )
    finally:
        store.close()


def view(settings):
    return {key: tuple(rest) for key, *rest in rows(settings, VIEW)}


BEFORE = {
    1: ("right", "ahead", "final"), 3: ("right", "ahead", "final"), 4: ("right", "right", "final"),
    5: ("right", "right", "final"), 11: ("right", "ahead", "live"), 13: ("right", "ahead", "live"),
    14: ("ahead", "right", "live"), 15: ("right", "right", "live"),
}  # fmt: skip


def test_rows_of_records_dated_ahead_are_named_and_taken_out_of_the_way(archive, spark):
    settings = archive.settings
    as_the_stream_showed_it(archive)
    assert view(settings) == BEFORE

    recheck = Recheck(settings)
    rejected, found = recheck.look(keep=False)
    assert [(one.topic.name, len(one.reasons)) for one in rejected] == [("board", 6), ("member", 1)]
    assert sorted((made.place, made.key) for made in found) == [
        ("deleted", 2), ("final", 1), ("final", 3), ("live", 11), ("live", 12), ("live", 13), ("live", 14),
    ]  # fmt: skip
    said = "\n".join(lines(rejected, found))
    assert f"live of {TODAY}: key 11, version 2200-01-01T00:00:00.000Z, of board/" in said
    assert "/modifiedAt: 2200-01-01T00:00:00Z is more than 300 s later than the time of the record" in said
    assert view(settings) == BEFORE
    assert rows(settings, "SELECT count(*) FROM reject") == [(0,)]

    _, found = recheck.look(keep=True)
    removed = recheck.remove(rejected, found)
    assert removed == {
        "pending_record": 0, "detail_covered": 0, "detail_live": 4, "late_version": 0, "sent again": 3,
        "archived versions": 1,
    }  # fmt: skip
    assert rows(settings, "SELECT topic, count(*) FROM reject GROUP BY 1 ORDER BY 1") == [("board", 6), ("member", 1)]
    assert [(day.day, day.causes) for day in dirty_days(settings)] == [(DAY.date, {"rejected board": 3})]
    verify_archive(archive.context, settings, PIPELINE)
    # the stream's day: what stands in the way is gone, and the right versions wait until it runs
    assert {key for key in view(settings) if key > 10} == {15}
    driver = Driver(spark, settings)
    driver.start()
    driver.resolve()
    driver.serve()
    driver.close()
    assert {key: shown for key, shown in view(settings).items() if key > 10} == {
        11: ("right", "corrected", "live"), 12: ("right", "kept", "live"), 14: ("right", "right", "live"),
        15: ("right", "right", "live"),
    }  # fmt: skip
    # the published day: the night rebuilds it, with each difference explained
    rebuild_day(archive.context, settings, PIPELINE, DAY, "again", None)
    report = verify(settings, DAY, "again")
    assert report.corrections == {"missing": 1, "rejected": 2}
    publish(settings, DAY, "again")
    assert {key: shown for key, shown in view(settings).items() if key < 10} == {
        1: ("right", "corrected", "final"), 2: ("right", "kept", "final"), 4: ("right", "right", "final"),
        5: ("right", "right", "final"),
    }  # fmt: skip
    page = load_day(settings, DAY)
    assert [(each.kind, each.key) for each in page.corrections if each.kind == "rejected"] == [
        ("rejected", 1), ("rejected", 3)
    ]  # fmt: skip
    # board 3, which has no other version; the deletions have no board that can be read
    reasons = [each.reason.split(": ")[0] for each in page.left_out if each.kind == "rejected"]
    assert sorted(reasons) == ["/headers/accepted-at", "/modifiedAt"]
    assert all("later than the time of the record" in each.reason for each in page.left_out)
    assert certify_alone(settings, DAY).reason is None
    from_topics = rebuild_day(archive.context, settings, PIPELINE, DAY, "from topics", None)
    from_files = rebuild_day(archive.context, settings, PIPELINE, DAY, "from archive", None, True)
    assert from_topics.content_hash == from_files.content_hash
    assert recheck.look(keep=False)[1] == []
    assert recheck.count_archived(rejected) == 0


def test_a_newer_record_is_shown_at_once_after_it(archive, spark):
    """A row of 2200 that the day covers is above each newer record, too."""
    settings = archive.settings
    partition, offset = coordinates(archive, 1, 1)
    columns = ", ".join([*PIPELINE.relational_columns, "event_id", "stream_partition", "stream_offset", "day"])
    rows(settings, f"INSERT INTO detail_covered ({columns}, deleted, written_at, generation_id)"
                   f" SELECT {columns}, false, now(), generation_id FROM detail_final WHERE board_id = 1")  # fmt: skip
    assert rows(settings, "SELECT stream_partition, stream_offset FROM detail_covered") == [(partition, offset)]
    pending(settings, 3, 99, AHEAD)
    rows(settings, 'UPDATE pending_record SET (partition, "offset") = (%s, %s)', coordinates(archive, 3, 0))
    recheck = Recheck(settings)
    rejected, found = recheck.look(keep=True)
    removed = recheck.remove(rejected, found)
    assert (removed["detail_covered"], removed["pending_record"], removed["sent again"]) == (1, 1, 1)
    driver = Driver(spark, settings)
    driver.start()
    driver.resolve()
    driver.serve()
    driver.close()
    # the day's row of 2200 stays in front until the day is rebuilt, which the night does
    assert [day.day for day in dirty_days(settings)] == [DAY.date]
    rebuild_day(archive.context, settings, PIPELINE, DAY, "again", None)
    publish(settings, DAY, "again")
    assert view(settings)[1] == ("right", "corrected", "final")


def test_the_command_changes_nothing_unless_it_is_told_to(archive, kafka, postgres, tmp_path):
    settings = archive.settings
    as_the_stream_showed_it(archive)
    variables = environment(kafka, postgres, settings.database.name, tmp_path)
    variables |= {"ARCHIVE_DIR": settings.batch.archive_dir}
    shown = run_module(["-m", "pipeline", "stream", "recheck"], variables, exit_code=LOOK)
    assert "board: 6 records are rejected" in shown
    assert "7 rows were made from some of them" in shown
    assert "1 versions in the archive are of some of them" in shown
    assert view(settings) == BEFORE
    shown = run_module(["-m", "pipeline", "stream", "recheck", "--execute", "--force"], variables)
    assert "Start the stream." in shown
    again = run_module(["-m", "pipeline", "stream", "recheck"], variables, exit_code=LOOK)
    assert "live" not in again
    assert "3 rows were made" in again  # of the published day, which the night rebuilds


def test_archived_versions_alone_are_something_to_look_at(archive, kafka, postgres, tmp_path):
    """No row was made of them yet, or the command was interrupted before it came to the archive."""
    settings = archive.settings
    rows(settings, "TRUNCATE detail_live, day_publication, publication, generation CASCADE", role="pipeline_owner")
    variables = environment(kafka, postgres, settings.database.name, tmp_path)
    variables |= {"ARCHIVE_DIR": settings.batch.archive_dir}
    shown = run_module(["-m", "pipeline", "stream", "recheck"], variables, exit_code=LOOK)
    assert "0 rows were made from some of them\n1 versions in the archive are of some of them" in shown
    run_module(["-m", "pipeline", "stream", "recheck", "--execute", "--force"], variables)
    assert "0 versions in the archive" in run_module(["-m", "pipeline", "stream", "recheck"], variables)


def test_it_waits_for_the_stream_and_refuses_a_driver_that_is_alive(archive):
    settings = archive.settings
    recheck = Recheck(settings)
    rows(settings, "UPDATE offset_ledger SET next_offset = 0 WHERE consumer = 'join'")
    with pytest.raises(StreamBehind, match="join=16, serve=0"):
        recheck.remove(*recheck.look(keep=False))
    DriverLease(settings.database, "alive").take()
    with pytest.raises(DriverAlive):
        recheck.refuse_live_driver()
