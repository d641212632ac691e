"""Migrations are frozen text: they make the same schema, however the definition has changed since."""

import contextlib
import dataclasses
import datetime as dt
from pathlib import Path

import psycopg2
import psycopg2.errors
import pytest

from include.airflow_support import steps
from include.contracts.definition import Column, Definition
from include.contracts.fields import Field
from include.contracts.site import BOARD_DETAIL_PIPELINE
from include.errors import ContractMismatch
from include.integrity.__main__ import main as command
from include.settings import Settings
from include.sql.migrate import migrate
from stack.restore import NOTE_WITHOUT_TIMELINES
from tests.support.catalogue import catalogue
from tests.support.database import database_environment
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as

# The catalogue that revisions 0001 to 0008 made when 0001 and 0004 still rendered the definition, on PostgreSQL 18.
# It is never made again: a migration that was released is not edited.
FROZEN = "0008"
GOLDEN = Path(__file__).with_name(f"catalogue_{FROZEN}.txt")
GOLDEN_MAJOR = 18


def with_one_more_field() -> Definition:
    today = BOARD_DETAIL_PIPELINE
    field = Field("language", "language", "string", "Language of the post.", 8, nullable=True)
    more = {
        side: dataclasses.replace(topic, fields=(*topic.fields, field))
        for side, topic in (("stream", today.stream), ("output", today.output))
    }
    return dataclasses.replace(today, **more, columns=(*today.columns, Column("stream", "language", "language")))


@pytest.mark.parametrize("changed", [BOARD_DETAIL_PIPELINE, with_one_more_field()], ids=["today", "one more field"])
def test_a_fresh_database_is_the_same_whatever_the_definition_says_today(postgres, changed):
    dsn = postgres.new_database("frozen")
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", **database_environment(postgres, "frozen")}
    settings = Settings.from_environment(environment)
    settings = dataclasses.replace(settings, database=dataclasses.replace(settings.database, pipeline=changed))
    assert migrate(settings, FROZEN) == FROZEN
    connection = psycopg2.connect(dsn)
    try:
        if connection.server_version // 10_000 != GOLDEN_MAJOR:
            pytest.skip(f"PostgreSQL {GOLDEN_MAJOR} prints the catalogue in its own words")
        assert catalogue(connection) == GOLDEN.read_text(encoding="utf-8").splitlines()
    finally:
        connection.close()


def test_live_rows_of_a_year_that_no_client_can_read_become_rejects(postgres):
    """0008 failed on them, and it was made for them."""
    postgres.new_database("far_years")
    settings = Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                                          **database_environment(postgres, "far_years")})  # fmt: skip
    migrate(settings, "0007")
    rows(
        settings,
        """
        INSERT INTO day_publication (day) VALUES ('10000-01-01'), ('2026-11-20');
        INSERT INTO board_detail_live (board_id, title, day, kafka_partition, kafka_offset)
        VALUES (1, 'far', '10000-01-01', 3, 5), (2, 'near', '2026-11-20', 3, 6), (3, 'deleted', NULL, 3, 7)""",
    )
    migrate(settings)
    assert rows(settings, "SELECT board_id, day FROM detail_live ORDER BY board_id") == [
        (2, dt.date(2026, 11, 20)), (3, None),
    ]  # fmt: skip
    assert rows(settings, "SELECT day FROM day_publication") == [(dt.date(2026, 11, 20),)]
    ((topic, partition, offset, reason, key),) = rows(
        settings, """SELECT topic, partition, "offset", reason, convert_from(key, 'UTF8') FROM reject"""
    )
    assert (topic, partition, offset, key) == ("board-detail", 3, 5, "1")
    assert "board_detail_live_has_a_year" in reason  # its name at 0008


# As 0008 knew it: two generations of a published day, one of them shown, rows of the speed layer, and one covered.
DATA_OF_0008 = """
INSERT INTO generation (day, run_id, status, cut, row_count)
SELECT '2026-11-20', run, status, '{"board": {"0": 5, "2": 7}, "member": {"0": 0}}', 2
  FROM (VALUES ('a', 'superseded'), ('b', 'published')) v (run, status);
DO $$
BEGIN
    FOR id IN 1..2 LOOP
        EXECUTE format('CREATE TABLE board_detail_final_g%1$s (LIKE board_detail_final INCLUDING DEFAULTS'
                       ' INCLUDING CONSTRAINTS, CHECK (generation_id = %1$s AND day = ''2026-11-20''))', id);
        EXECUTE format('INSERT INTO board_detail_final_g%1$s (generation_id, day, board_id, title, board_partition,'
                       ' board_offset) SELECT %1$s, ''2026-11-20'', 40 + n, ''final %1$s'', 0, n'
                       ' FROM generate_series(1, 2) n', id);
        EXECUTE format('ALTER TABLE board_detail_final_g%1$s ADD PRIMARY KEY (board_id)', id);
        EXECUTE format('ALTER TABLE board_detail_final_g%1$s OWNER TO batch', id);
        EXECUTE format('ALTER TABLE board_detail_final ATTACH PARTITION board_detail_final_g%1$s FOR VALUES IN (%1$s)',
                       id);
    END LOOP;
END
$$;
INSERT INTO day_publication (day, generation_id, cut, status)
SELECT day, id, cut, 'certified' FROM generation WHERE id = 2;
INSERT INTO day_publication (day) VALUES ('2026-11-21');
INSERT INTO board_detail_live (board_id, title, day, board_partition, board_offset, member_partition, member_offset)
VALUES (41, 'newer', '2026-11-20', 0, 9, 0, 0), (50, 'live', '2026-11-21', 0, 1, 0, 0),
       (51, 'of a new partition', '2026-11-20', 1, 1, 0, 0);
INSERT INTO board_detail_covered (board_id, title, day, board_partition, board_offset, deleted, written_at,
                                  generation_id)
VALUES (42, 'was live', '2026-11-20', 0, 2, false, now(), 2);
"""
SHOWN = "SELECT board_id, title, kafka_offset, day, finality FROM board_detail ORDER BY day, board_id"


def test_rows_of_a_database_that_is_in_use_stay_through_a_migration(postgres):
    dsn = postgres.new_database("in_use")
    settings = Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                                          **database_environment(postgres, "in_use")})  # fmt: skip
    migrate(settings, "0008")
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            cursor.execute(DATA_OF_0008)
            cursor.execute(SHOWN)
            shown = cursor.fetchall()
            assert len(shown) == 4
            cursor.execute("SELECT relfilenode FROM pg_class WHERE relname ~ 'final_g[12]$' ORDER BY relname")
            files = cursor.fetchall()
            migrate(settings)
            cursor.execute(SHOWN)
            assert cursor.fetchall() == shown
            cursor.execute("SELECT relfilenode FROM pg_class WHERE relname ~ 'final_g[12]$' ORDER BY relname")
            assert cursor.fetchall() == files  # attached as they were, and not written again
            cursor.execute("SELECT stream_ends, table_ends, first_key, last_key FROM generation WHERE id = 2")
            assert cursor.fetchone() == ([5, None, 7], [0], 41, 42)
            cursor.execute("SELECT count(*), min(stream_offset) FROM detail_covered")
            assert cursor.fetchone() == (1, 2)
    finally:
        connection.close()


def test_a_backup_without_timelines_that_was_restored_is_not_reconciled(postgres):
    """`make restore` moved its sequences and left a note, which the migration that brings timelines finds."""
    postgres.new_database("restored_early")
    settings = Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                                          **database_environment(postgres, "restored_early")})  # fmt: skip
    migrate(settings, "0047")
    with contextlib.closing(psycopg2.connect(postgres.superuser_dsn("restored_early"))) as connection, connection:
        connection.cursor().execute(NOTE_WITHOUT_TIMELINES)
    migrate(settings)
    assert rows(settings, "SELECT replayed_until, reconciled_at FROM database_timeline") == [(None, None)]
    assert rows(settings, "SELECT count(*) FROM pipeline_setting WHERE name = 'restored'") == [(0,)]
    [(next_id,)] = rows(settings, "SELECT nextval('site.member_id_seq')")
    assert next_id > 1_000_000


def test_a_database_that_is_only_updated_has_lost_no_rows(postgres):
    postgres.new_database("updated")
    settings = Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                                          **database_environment(postgres, "updated")})  # fmt: skip
    migrate(settings, "0047")
    migrate(settings)
    assert rows(settings, "SELECT reconciled_at IS NOT NULL FROM database_timeline") == [(True,)]


def test_generations_of_an_earlier_version_get_their_owner(postgres):
    """Two attached ones, one that `batch` had begun to detach while somebody read it, and one that is being built."""
    postgres.new_database("owners")
    settings = Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                                          **database_environment(postgres, "owners")})  # fmt: skip
    migrate(settings, "0008")
    with contextlib.closing(psycopg2.connect(postgres.superuser_dsn("owners"))) as connection:
        connection.autocommit = True
        connection.cursor().execute(DATA_OF_0008)
    migrate(settings, "0024")
    rows(settings, "CREATE TABLE board_detail_final_g3 (LIKE board_detail_final)", role="batch")
    with contextlib.closing(open_as(settings, "pipeline_owner")) as reader:
        reader.cursor().execute("SELECT FROM board_detail_final")
        with contextlib.closing(open_as(settings, "batch")) as batch, batch.cursor() as cursor:
            batch.autocommit = True
            cursor.execute("SET lock_timeout = '100ms'")
            with pytest.raises(psycopg2.errors.LockNotAvailable):
                cursor.execute("ALTER TABLE board_detail_final DETACH PARTITION board_detail_final_g1 CONCURRENTLY")
    shown = rows(settings, SHOWN)
    migrate(settings)
    assert rows(settings, SHOWN) == shown != []
    found = rows(settings, """SELECT relname, relnamespace::regnamespace::text, relowner::regrole::text FROM pg_class
                               WHERE relname ~ '^(board_)?detail_final(_g[0-9]+)?$' ORDER BY 1""")  # fmt: skip
    assert found == [
        ("detail_final", "public", "pipeline_owner"),
        *[(f"detail_final_g{id_}", "generations", "pipeline_owner") for id_ in (1, 2, 3)],
    ]
    for id_ in (1, 3):
        table = f"generations.detail_final_g{id_}"
        rows(settings, f"INSERT INTO {table} SELECT * FROM detail_final WHERE false", role="batch")
        rows(settings, f"SELECT generations.drop_table({id_})", role="batch")
    assert rows(settings, SHOWN) == shown


def test_a_database_of_a_later_version_is_refused_with_the_way_on(postgres, tmp_path):
    settings = migrated(None, postgres, "later_version", tmp_path)
    rows(settings, "UPDATE alembic_version SET version_num = '9999'", role="pipeline_owner")
    with pytest.raises(
        ContractMismatch, match=r"a later version migrated the database \(Can't locate .*'9999'.*backup"
    ):
        migrate(settings)


def test_commands_and_tasks_name_a_database_that_is_behind(postgres, tmp_path, monkeypatch):
    settings = migrated(None, postgres, "behind_version", tmp_path)
    rows(settings, "UPDATE alembic_version SET version_num = '0001'", role="pipeline_owner")
    monkeypatch.setattr(Settings, "from_environment", lambda *_: settings)
    for step, arguments in ((steps.days_of_the_night, ("2026-11-20", "scheduled")), (steps.collect_orphans, ())):
        with pytest.raises(ContractMismatch, match="the database is behind this version; run the migrations"):
            step("board_detail", *arguments)
    assert command(["status"]) == 78
