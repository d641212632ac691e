"""One member is removed everywhere: no value of theirs is left in a table or a file, and no rebuild brings it back."""

import datetime as dt
import itertools
from pathlib import Path

import psycopg2
import pyarrow.parquet as pq
import pytest

from include.adapters.files.cluster_file import ClusterFile
from include.adapters.postgres.generation_store import GenerationStore
from include.contracts.site import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import DayBusy, ForeignCluster
from include.integrity.comparison import verify
from include.integrity.pruning import collect_orphans
from spark_jobs.archive.check import verify_archive
from spark_jobs.archive.source import archive_sources
from spark_jobs.batch.rebuild import build, rebuild_day
from spark_jobs.batch.sources import Known, fix_ranges, splits_of, topic_sources
from spark_jobs.batch.splits import read_topic
from spark_jobs.forget_member import count, forget
from tests.support.archive import DAY, STREAM, TABLE, Archive, a_board, a_member, event
from tests.support.pipeline import rows
from tests.support.publication import publish

CANARY = "kestrel-4711"
PERSON, OTHER = 7, 8
_runs = itertools.count(1)


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path):
    return Archive(kafka, postgres, spark, "forget", tmp_path)


def of(text):
    return f"{CANARY}-{text}"


def a_life(archive):
    """A member and their boards in every place that holds some: two archived nights, a published day, and more."""
    person = {"nickname": of("nick"), "city": of("city"), "phone": of("phone"), "email": of("mail")}
    archive.send([a_member(PERSON, **person), a_member(OTHER), a_member(PERSON, hours=1, **person)])
    archive.send([
        a_board(1, memberId=PERSON, title=of("title"), body=of("body")), a_board(2, memberId=OTHER),
        a_board(77, memberId=OTHER, title="of a member whose id begins alike"),
        (TABLE, PERSON, f'{{"id": {PERSON}, "phone": "{of("broken")}"'.encode(), event("broken")),
        (STREAM, 3, f'{{"id": 3, "memberId": "{PERSON}", "title": "{of("broken")}"}}'.encode(), event("broken too")),
    ])  # fmt: skip
    archive.run()
    archive.send([a_board(4, 1, memberId=PERSON, body=of("later")), a_board(5, 1, memberId=PERSON, modified=2)])
    settings, run_id = archive.settings, rebuilt(archive, from_topic(archive))
    live = ("INSERT INTO detail_live (board_id, member_id, nickname, title, modified_at, created_at, "
            "stream_partition, stream_offset, day) VALUES (%s, %s, %s, %s, %s, %s, 0, 9, %s)")  # fmt: skip
    for board_id, day in ((1, DAY.date), (90, DAY.before(1).date)):
        rows(settings, "INSERT INTO day_publication (day) VALUES (%s) ON CONFLICT DO NOTHING", (day,))
        rows(settings, live, (board_id, PERSON, of("live"), of("live"), DAY.start, DAY.start, day))
    verify(settings, DAY, run_id)
    publish(settings, DAY, run_id)
    rows(settings, "INSERT INTO detail_covered SELECT l.*, 1, now() FROM detail_live l")
    rows(settings, "INSERT INTO site.member VALUES (%s, %s, %s, %s, %s, now(), now())", (PERSON, *person.values()))
    document = "INSERT INTO site.board_document VALUES (91, jsonb_build_object('memberId', %s, 'title', %s), now())"
    rows(settings, document, (PERSON, of("document")))
    rows(settings, "INSERT INTO site.change_key (scope, key, fingerprint, topic, row_id, value, made_at)"
                   " VALUES ('a', 'k', '', 'member', %s, jsonb_build_object('phone', %s), now())",
         (PERSON, of("key")))  # fmt: skip
    rows(settings, 'INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value,'
                   " kafka_timestamp, version_at) VALUES ('board', 3, 9000, 92, %s, %s, %s, now(), now())",
         (PERSON, DAY.date, of("pending").encode()))  # fmt: skip


def from_topic(archive):
    return topic_sources(fix_ranges(archive.offsets, DAY, PIPELINE, Known()), PIPELINE)


def from_archive(archive):
    now = DAY.end + dt.timedelta(days=90)
    return archive_sources(archive.offsets, DAY, PIPELINE, 14, now, Known(), archive.source, True)


def rebuilt(archive, sources):
    run_id = f"run-{next(_runs)}"
    with GenerationStore(archive.settings.database).hold(DAY):
        build(archive.context(), archive.settings, PIPELINE, DAY, run_id, None, sources)
    return run_id


def boards_of(archive, run_id):
    text = ("SELECT board_id FROM detail_final JOIN generation g ON g.id = generation_id"
            " WHERE run_id = %s ORDER BY 1")  # fmt: skip
    return [board_id for (board_id,) in rows(archive.settings, text, (run_id,))]


def tables_with_the_canary(postgres, database):
    """Names of tables and the first value found in each, bytes as text."""
    connection = psycopg2.connect(postgres.superuser_dsn(database))
    found = {}
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
                           " AND relnamespace::regnamespace::text IN ('public', 'generations', 'site')")  # fmt: skip
            for (table,) in cursor.fetchall():
                cursor.execute(f"SELECT * FROM {table}")
                for row in cursor:
                    values = [bytes(value) if isinstance(value, memoryview) else value for value in row]
                    if CANARY in str(values):
                        found[table] = values
    finally:
        connection.close()
    return found


def files_with_the_canary(folder):
    return [path.name for path in Path(folder).rglob("*.parquet") if CANARY in str(pq.read_table(path).to_pylist())]


def test_a_member_is_gone_from_every_table_and_file_and_stays_gone(archive, postgres):
    a_life(archive)
    settings = archive.settings
    before = tables_with_the_canary(postgres, "forget")
    assert {"site.member", "site.board_document", "site.change_key", "pending_record", "reject", "detail_live",
            "detail_covered", "detail_correction",
            "generations.detail_final_g1"} <= before.keys()  # fmt: skip
    assert files_with_the_canary(archive.folder.location)

    counted = count(settings, PERSON)
    assert tables_with_the_canary(postgres, "forget").keys() == before.keys()  # nothing changed yet
    removed = forget(archive.context, settings, PERSON, "asked for it", "test")

    assert all(removed[place] > 0 for place in counted)
    places = ("archived records", "archive files", "tombstones")  # more of them: what was not archived yet
    assert {k: v for k, v in removed.items() if k not in places} == {
        k: v for k, v in counted.items() if k not in places
    }
    assert tables_with_the_canary(postgres, "forget") == {}
    assert files_with_the_canary(archive.folder.location) == []
    assert verify_archive(archive.context, settings, PIPELINE) > 0
    assert {key: value for key, value in newest(archive, TABLE).items() if key == PERSON} == {PERSON: None}
    assert {key for key, value in newest(archive, STREAM).items() if value is None} == {1, 3, 4, 5, 90, 91, 92}

    for sources in (from_topic(archive), from_archive(archive)):
        assert boards_of(archive, rebuilt(archive, sources)) == [2, 77]
    archive.run()
    assert tables_with_the_canary(postgres, "forget") == {}
    again = forget(archive.context, settings, PERSON, "once more", "test")
    assert {place for place, number in again.items() if number} <= {"tombstones"}
    ((reason, kept),) = rows(settings, "SELECT reason, removed FROM forgotten_key")
    assert (reason, kept["tombstones"]) == ("once more", again["tombstones"])


def newest(archive, topic):
    """Key → the value of its newest record."""
    splits = splits_of(topic, archive.offsets.earliest(topic), archive.offsets.ends(topic))
    found = [row for table in read_topic(splits, archive.log.bootstrap_servers) for row in table.to_pylist()]
    return {int(row["key"]): row["value"] for row in sorted(found, key=lambda row: row["offset"])}


def test_the_shown_day_still_adds_up(archive):
    a_life(archive)
    forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    ((counted, shown, distinct, pending, rejected),) = rows(
        archive.settings,
        "SELECT (SELECT count(*) FROM detail_final f WHERE f.generation_id = p.generation_id), row_count,"
        " raw_distinct, pending_count, rejected_count FROM day_publication p WHERE generation_id IS NOT NULL",
    )
    assert counted == shown == 2
    assert distinct == shown + pending + rejected


def test_it_waits_for_a_rebuild_that_began_before(archive):
    archive.send([a_member(PERSON)])
    store = GenerationStore(archive.settings.database)
    store.begin(DAY, "under way", None, {}, {})
    with pytest.raises(DayBusy, match="a rebuild is under way"):
        forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    assert store.forgotten() == {PERSON}  # and one that begins now leaves the member out


def test_builds_that_were_given_up_go_with_their_corrections(archive):
    a_life(archive)
    settings = archive.settings
    run_id = rebuilt(archive, from_topic(archive))
    rows(settings, "UPDATE detail_live SET title = 'other'")
    verify(settings, DAY, run_id)
    rows(
        settings, "UPDATE generation SET built_at = now() - interval '40 days', created_at = now() - interval '40 days'"
    )
    collect_orphans(settings)
    assert rows(settings, "SELECT run_id FROM generation WHERE run_id = %s", (run_id,)) == []
    assert rows(settings, "SELECT count(*) FROM generation") == [(1,)]  # the shown one, with its corrections
    assert rows(settings, "SELECT count(*) > 0 FROM detail_correction") == [(True,)]


def test_jobs_refuse_another_cluster_than_that_of_the_gateways_store(archive):
    settings = archive.settings
    settings.gateway.fallback_dir.mkdir(parents=True, exist_ok=True)
    ClusterFile(settings.gateway.fallback_dir).write("former")
    for job in (
        archive.run,
        lambda: rebuild_day(archive.context, settings, PIPELINE, DAY, "foreign", None),
        lambda: forget(archive.context, settings, PERSON, "asked", "tester"),
    ):
        with pytest.raises(ForeignCluster, match="former"):
            job()
