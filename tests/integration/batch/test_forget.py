"""A person is removed everywhere: no value of theirs is left in a table or a file, and no rebuild brings it back."""

import dataclasses
import datetime as dt
import itertools
import json
from pathlib import Path
from unittest.mock import Mock

import psycopg2
import pyarrow.parquet as pq
import pytest

from demo.records import GeneratedRecords
from include.contracts.errors import DayBusy, ForeignCluster
from include.contracts.pipelines import PIPELINES, load_definition
from include.contracts.topics import Topic
from include.database.forgotten import ForgottenStore
from include.database.generation_store import GenerationStore
from include.database.migrate import migrate
from include.gateway.home_cluster import ClusterFile
from include.integrity.days.comparison import verify
from include.integrity.days.pruning import collect_orphans
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import Settings
from spark_jobs.archive.check import verify_archive
from spark_jobs.archive.rewriting import count, forget
from spark_jobs.batch.rebuild import build, rebuild_day
from spark_jobs.batch.sources import EXTRACTS, Known, archive_sources, fix_ranges, splits_of, topic_sources
from spark_jobs.connectors.archive_files import ArchiveFolder
from spark_jobs.connectors.splits import read_topic
from tests.support.archive import DAY, Archive, event
from tests.support.evolved import evolved
from tests.support.pipeline import environment, rows, run_module
from tests.support.publication import publish

CANARY = "kestrel-4711"
PERSON, OTHER = -7, -71
_runs = itertools.count(1)


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path, request):
    return Archive(kafka, postgres, spark, "forget", tmp_path, pipeline=getattr(request, "param", "board_detail"))


of_each_pipeline = pytest.mark.parametrize("archive", sorted(PIPELINES), indirect=True)


def of(text):
    return f"{CANARY}-{text}"


def texts(topic: Topic) -> dict[str, str]:
    """The canary in each string of a value that has room for it."""
    return {field.name: of(field.name) for field in topic.fields if (field.max_length or 0) > 30}


def a_life(archive):
    """A person and their records in every place that holds some: two archived nights, a published day, and more."""
    settings, p = archive.settings, archive.settings.pipeline
    made = GeneratedRecords(pipeline=p, day=DAY, first_key=0)

    def a_record(number, of_key=PERSON):
        value = made.stream_value(number, of_key) | (texts(p.stream) if of_key == PERSON else {})
        return (p.stream.name, number, value, event(f"e{number}"))

    def a_version(number, hour):
        value = made.table_value(number, hour) | (texts(p.table) if number == PERSON else {})
        return (p.table.name, number, value, event(f"m{hour}"))

    broken = f'{{"{p.table.key_field}": {PERSON}, "text": "{of("broken")}"'
    no_long = f'{{"{p.stream.key_field}": 3, "{p.join_field}": "{PERSON}", "text": "{of("broken")}"}}'
    archive.send([a_version(PERSON, 1), a_version(OTHER, 1), a_version(PERSON, 2)])
    archive.send([
        a_record(1), a_record(2, OTHER), a_record(77, OTHER),
        (p.table.name, PERSON, broken.encode(), event("broken")),
        (p.stream.name, 3, no_long.encode(), event("broken too")),
    ])  # fmt: skip
    archive.run()
    *record, value, headers = a_record(5)
    escaped = json.dumps(value).replace(f'"{p.join_field}"', f'"\\u{ord(p.join_field[0]):04X}{p.join_field[1:]}"')
    cut = f'{{"{p.stream.key_field}": 1, "text": "{of("cut off before the join field")}'
    archive.send([a_record(4), (*record, escaped.encode(), headers), (p.stream.name, 1, cut.encode(), event("cut"))])
    run_id = rebuilt(archive, from_topic(archive))
    strings = [field.column for field in p.output.fields if (field.max_length or 0) > 30]
    columns = [p.key_column, p.join_column, *strings, p.version_column, p.day_column]
    live = (f"INSERT INTO detail_live ({', '.join(columns)}, stream_partition, stream_offset, day)"
            f" VALUES ({', '.join(['%s'] * len(columns))}, 0, 9, %s)")  # fmt: skip
    for number, day in ((1, DAY.date), (90, DAY.before(1).date)):
        rows(settings, "INSERT INTO day_publication (day) VALUES (%s) ON CONFLICT DO NOTHING", (day,))
        rows(settings, live, (number, PERSON, *[of("live")] * len(strings), DAY.start, DAY.start, day))
    verify(settings, DAY, run_id)
    publish(settings, DAY, run_id)
    rows(settings, "INSERT INTO detail_covered SELECT l.*, 1, now() FROM detail_live l")
    rows(settings, f'INSERT INTO pending_record (topic, partition, "offset", {p.key_column}, {p.join_column},'
                   " day, value, kafka_timestamp, version_at) VALUES (%s, 3, 9000, 92, %s, %s, %s, now(), now())",
         (p.stream.name, PERSON, DAY.date, of("pending").encode()))  # fmt: skip
    if p.name == "board_detail":
        saved_by_the_site(settings)
    half_a_build(archive, strings[0])


def saved_by_the_site(settings):
    rows(settings, "INSERT INTO site.member VALUES (%s, %s, %s, %s, %s, now(), now())",
         (PERSON, of("nick"), of("city"), of("phone"), of("mail")))  # fmt: skip
    document = "INSERT INTO site.board_document VALUES (91, jsonb_build_object('memberId', %s, 'title', %s), now())"
    rows(settings, document, (PERSON, of("document")))
    rows(settings, "INSERT INTO site.change_key (scope, key, fingerprint, topic, row_id, value, made_at)"
                   " VALUES ('a', 'k', '', 'member', %s, jsonb_build_object('phone', %s), now())",
         (PERSON, of("key")))  # fmt: skip


def half_a_build(archive, column):
    """A build whose driver died, after it was given up: its table is part of no view, and no run has dropped it."""
    settings, p = archive.settings, archive.settings.pipeline
    number = GenerationStore(settings.database).begin(DAY.before(1), "half", None, {}, {})
    rows(settings, f"INSERT INTO generations.detail_final_g{number}"
                   f" (generation_id, day, {p.key_column}, {p.join_column}, {column}, replayed)"
                   " VALUES (%s, %s, 6, %s, %s, false)",
         (number, DAY.before(1).date, PERSON, of("half")))  # fmt: skip
    rows(settings, "UPDATE generation SET status = 'discarded' WHERE id = %s", (number,))


def from_topic(archive):
    return topic_sources(
        fix_ranges(archive.offsets, DAY, archive.settings.pipeline, Known()), archive.settings.pipeline
    )


def from_archive(archive):
    now = DAY.end + dt.timedelta(days=90)
    return archive_sources(archive.offsets, DAY, archive.settings.pipeline, 14, now, Known, archive.source, True)


def rebuilt(archive, sources):
    run_id = f"run-{next(_runs)}"
    with GenerationStore(archive.settings.database).hold(DAY):
        build(archive.context(), archive.settings, archive.settings.pipeline, DAY, run_id, None, sources)
    return run_id


def keys_of(archive, run_id):
    text = (f"SELECT {archive.settings.pipeline.key_column} FROM detail_final JOIN generation g ON g.id = generation_id"
            " WHERE run_id = %s ORDER BY 1")  # fmt: skip
    return [key for (key,) in rows(archive.settings, text, (run_id,))]


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
    return [path for path in Path(folder).rglob("*.parquet") if CANARY in str(pq.read_table(path).to_pylist())]


@of_each_pipeline
def test_a_person_is_gone_from_every_table_and_file_and_stays_gone(archive, kafka, postgres, tmp_path):
    a_life(archive)
    settings, p = archive.settings, archive.settings.pipeline
    rebuilt(archive, from_archive(archive))  # it copies records to a file of its own
    of_site = {"site.member", "site.board_document", "site.change_key"} if p.name == "board_detail" else set()
    before = tables_with_the_canary(postgres, "forget")
    assert {"pending_record", "reject", "detail_live", "detail_covered", "detail_correction",
            "generations.detail_final_g1", "generations.detail_final_g2", *of_site} <= before.keys()  # fmt: skip
    assert EXTRACTS in {path.parent.name for path in files_with_the_canary(archive.folder.location)}

    counted = count(settings, PERSON)
    assert tables_with_the_canary(postgres, "forget").keys() == before.keys()  # nothing changed yet
    variables = environment(kafka, postgres, "forget", tmp_path) | {
        "PIPELINE": p.name, "ARCHIVE_DIR": settings.batch.archive_dir,
    }  # fmt: skip
    printed = run_module(
        ["-m", "pipeline", "days", "forget", "--key", str(PERSON), "--reason", "asked for it"], variables
    )
    shown = dict(line.rsplit(maxsplit=1) for line in printed.splitlines()[1 : 1 + len(counted)])
    assert {place.strip(): int(number) for place, number in shown.items()} == counted
    removed = forget(archive.context, settings, PERSON, "asked for it", "test")

    assert all(removed[place] > 0 for place in counted)
    places = ("archived records", "archive files", "tombstones")  # more of them: what was not archived yet
    assert {k: v for k, v in removed.items() if k not in places} == {
        k: v for k, v in counted.items() if k not in places
    }
    assert tables_with_the_canary(postgres, "forget") == {}
    assert files_with_the_canary(archive.folder.location) == []
    assert verify_archive(archive.context, settings, p) > 0
    assert {key: value for key, value in newest(archive, p.table.name).items() if key == PERSON} == {PERSON: None}
    deleted = {key for key, value in newest(archive, p.stream.name).items() if value is None}
    assert deleted == {1, 3, 4, 5, 90, 92} | ({91} if of_site else set())

    for sources in (from_topic(archive), from_archive(archive)):
        assert keys_of(archive, rebuilt(archive, sources)) == [2, 77]
    archive.run()
    assert tables_with_the_canary(postgres, "forget") == {}
    again = forget(archive.context, settings, PERSON, "once more", "test")
    assert {place for place, number in again.items() if number} <= {"tombstones"}
    ((reason, kept),) = rows(settings, "SELECT reason, removed FROM forgotten_key")
    assert (reason, kept["tombstones"]) == ("once more", again["tombstones"])


def newest(archive, topic):
    """Key → the value of its newest record."""
    splits = splits_of(topic, archive.offsets.earliest(topic), archive.offsets.ends(topic))
    found = [
        row for table in read_topic(splits, KafkaConnection(archive.log.bootstrap_servers)) for row in table.to_pylist()
    ]
    return {int(row["key"]): row["value"] for row in sorted(found, key=lambda row: row["offset"])}


@of_each_pipeline
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
    store = GenerationStore(archive.settings.database)
    store.begin(DAY, "under way", None, {}, {})
    with pytest.raises(DayBusy, match="a rebuild is running"):
        forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    assert store.forgotten() == {PERSON}  # and one that begins now leaves the person out


def test_a_run_that_died_before_it_removed_the_old_files_is_completed_by_the_next(archive, postgres, monkeypatch):
    a_life(archive)
    with monkeypatch.context() as dying:
        dying.setattr(ArchiveFolder, "remove", Mock(side_effect=BrokenPipeError))
        with pytest.raises(BrokenPipeError):
            forget(archive.context, archive.settings, PERSON, "asked for it", "test")
    assert files_with_the_canary(archive.folder.location)
    forget(archive.context, archive.settings, PERSON, "once more", "test")
    assert files_with_the_canary(archive.folder.location) == []
    assert tables_with_the_canary(postgres, "forget") == {}


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
        lambda: rebuild_day(archive.context, settings, settings.pipeline, DAY, "foreign", None),
        lambda: forget(archive.context, settings, PERSON, "asked", "tester"),
    ):
        with pytest.raises(ForeignCluster, match="former"):
            job()


def test_a_reject_of_the_output_is_found_by_the_name_that_the_key_has_there(postgres, tmp_path):
    file = tmp_path / "order_detail.toml"
    file.write_text(evolved(('{ stream = "customerNumber" }', '{ stream = "customerNumber", name = "buyerNumber" }')))
    postgres.new_database("forget_output")
    settings = Settings.from_environment(environment(None, postgres, "forget_output", tmp_path), "order_detail")
    database = dataclasses.replace(settings.database, pipeline=load_definition(file))
    settings = dataclasses.replace(settings, database=database)
    migrate(settings)
    for number, (topic, name, key) in enumerate([
        ("order-detail", "buyerNumber", PERSON), ("order-detail", "buyerNumber", OTHER),
        ("order", "customerNumber", PERSON), ("customer", "number", PERSON),
    ]):  # fmt: skip
        rows(settings, 'INSERT INTO reject (topic, partition, "offset", reason, value, rejected_by)'
                       " VALUES (%s, 0, %s, 'broken', %s, 'serve')",
             (topic, number, f'{{"{name}": {key}, "note": "'.encode()))  # fmt: skip
    assert ForgottenStore(database).remove(PERSON, [], dry_run=False)["reject"] == 3
    assert rows(settings, 'SELECT "offset" FROM reject WHERE value IS NOT NULL') == [(1,)]
