"""A definition that has changed since its database was made: new columns are added, other changes are refused."""

import contextlib
import dataclasses
import difflib
import re
from pathlib import Path

import psycopg2
import pytest

from include.contracts.errors import ContractMismatch, DatabaseUnavailable
from include.contracts.evolution import compare, kept_form
from include.contracts.pipelines import load_definition
from include.database import migrate as migration
from include.database.migrate import migrate
from include.database.schema_check import require_schema
from include.runtime.settings import Settings
from tests.support.catalogue import catalogue
from tests.support.database import database_environment
from tests.support.evolved import NEW_COLUMNS, evolved
from tests.support.pipeline import rows


def definition(folder: Path, *changes: tuple[str, str]):
    path = folder / "order_detail.toml"
    path.write_text(evolved(*changes), encoding="utf-8")
    return load_definition(path)


def settings_of(postgres, name, pipeline):
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "PIPELINE": "order_detail", "PIPELINE_TIMEZONE": "UTC"}
    settings = Settings.from_environment(environment | database_environment(postgres, name))
    return dataclasses.replace(settings, database=dataclasses.replace(settings.database, pipeline=pipeline))


@pytest.fixture
def made(postgres, tmp_path):
    """Makes a database from a definition, and returns settings with a changed one."""

    def make(name, *changes):
        postgres.new_database(name)
        migrate(settings_of(postgres, name, definition(tmp_path)))
        return settings_of(postgres, name, definition(tmp_path, *changes))

    return make


def without_places(settings, schema):
    """The catalogue of a schema, in which the columns of tables have no number."""
    database = settings.database
    dsn = {"host": database.host, "port": database.port, "dbname": database.name, "user": "pipeline_owner"}
    with contextlib.closing(psycopg2.connect(**dsn, password=database.passwords["pipeline_owner"])) as connection:
        lines = catalogue(connection, schema)
    return sorted(re.sub(r"^(column \| (?!order_detail)\w+) \| \d+ ", r"\1 ", line) for line in lines)


def test_a_database_with_added_columns_has_the_catalogue_of_a_new_one(made, postgres):
    settings = made("evolved", *NEW_COLUMNS)
    before = rows(settings, "SELECT * FROM detail_live")
    migrate(settings)
    postgres.new_database("from_new")
    new = settings_of(postgres, "from_new", settings.pipeline)
    migrate(new)
    for schema in ("public", "generations"):
        found, wanted = (without_places(each, schema) for each in (settings, new))
        assert not (diff := list(difflib.unified_diff(found, wanted, lineterm="", n=0))), "\n".join(diff)
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'order_detail'::regclass ORDER BY attnum"
    names = [name for (name,) in rows(settings, columns)]
    assert tuple(names[: len(settings.pipeline.columns)]) == settings.pipeline.relational_columns
    assert "customer_segment" in names
    assert before == rows(settings, "SELECT * FROM detail_live") == []
    require_schema(settings.database, "stream")
    migrate(settings)  # again changes nothing


def test_a_personal_column_is_masked_when_it_is_added(made):
    settings = made("evolved_personal", *NEW_COLUMNS)
    migrate(settings)
    rows(settings, "INSERT INTO day_publication (day) VALUES ('2026-11-20')")
    rows(settings, """INSERT INTO detail_live (order_number, day, channel, customer_segment)
                      VALUES (1, '2026-11-20', 'a shop', 'good customer')""")  # fmt: skip
    seen = "SELECT channel, customer_segment FROM order_detail_masked"
    assert rows(settings, seen, role="analyst") == [("a shop", "***********er")]


def test_a_description_may_be_any_text(made):
    text = r"$$; DROP TABLE detail_live; DO $$ $1 $body$ \\' %s %% {{columns}} -- "
    settings = made("evolved_text", ("The customer's note.", text.replace("\\", "\\\\")))
    migrate(settings)
    comment = "SELECT col_description('order_detail'::regclass, attnum) FROM pg_attribute WHERE attname = 'note'"
    assert (text,) in rows(settings, f"{comment} AND attrelid = 'order_detail'::regclass")


def test_the_views_of_an_earlier_version_are_made_again(made):
    settings = made("earlier_views")
    rows(settings, "GRANT SELECT ON order_detail_masked TO gateway")
    wanted = without_places(settings, "public")
    rows(settings, "DROP VIEW order_detail_certified; COMMENT ON VIEW order_detail_masked IS NULL")
    rows(settings, "UPDATE pipeline_setting SET value = 'of an earlier version' WHERE name = 'views'")
    migrate(settings)
    assert without_places(settings, "public") == wanted


def test_rights_that_were_given_on_the_view_stay(made):
    settings = made("evolved_grants", *NEW_COLUMNS)
    rows(settings, "GRANT SELECT ON order_detail_masked TO gateway WITH GRANT OPTION")
    migrate(settings)
    rights = "SELECT has_table_privilege('gateway', 'order_detail_masked', 'SELECT WITH GRANT OPTION')"
    assert rows(settings, rights) == [(True,)]


def test_builds_have_the_columns_too(made):
    settings = made("evolved_builds", *NEW_COLUMNS)
    rows(
        settings,
        """
        SELECT generations.create_table(n, '2026-11-20') FROM generate_series(1, 2) n;
        INSERT INTO generations.detail_final_g1 (generation_id, day, order_number, ordered_at)
        VALUES (1, '2026-11-20', 1, '2026-11-20 10:00+00');
        SELECT generations.index_table(1);
        SELECT generations.attach_table(1, '2026-11-20', 1, 1, '2026-11-20 10:00+00', '2026-11-20 10:00+00')""",
    )
    migrate(settings)
    rows(settings, "UPDATE generations.detail_final_g2 SET channel = NULL")  # is not attached
    assert rows(settings, "SELECT order_number, channel FROM detail_final") == [(1, None)]


def test_processes_refuse_a_database_without_the_columns(made):
    settings = made("behind", *NEW_COLUMNS)
    for role in ("stream", "batch"):
        message = r"database behind lacks columns .*\(customer_segment, channel\).*pipeline database migrate"
        with pytest.raises(ContractMismatch, match=message):
            require_schema(settings.database, role)


def test_a_process_of_the_earlier_definition_accepts_the_database(made, postgres, tmp_path):
    migrate(made("ahead", *NEW_COLUMNS))
    require_schema(settings_of(postgres, "ahead", definition(tmp_path)).database, "stream")


def test_a_database_that_is_read_is_tried_again_and_named(made, monkeypatch):
    settings = made("evolved_blocked", *NEW_COLUMNS)
    monkeypatch.setattr(migration, "MAX_WAIT_S", 0.1)
    database = settings.database
    reader = psycopg2.connect(host=database.host, port=database.port, dbname=database.name, user="batch",
                              password=database.passwords["batch"])  # fmt: skip
    with contextlib.closing(reader):
        reader.cursor().execute("SELECT FROM order_detail")
        with pytest.raises((migration.MigrationBlocked, DatabaseUnavailable), match="held by session"):
            migrate(settings)
    with pytest.raises(ContractMismatch, match="lacks columns"):
        require_schema(database, "batch")
    migrate(settings)
    require_schema(database, "batch")


def test_objects_that_depend_on_the_view_are_named(made):
    settings = made("evolved_dependent", *NEW_COLUMNS)
    rows(settings, "CREATE VIEW report AS SELECT order_number FROM order_detail")
    with pytest.raises(ContractMismatch, match=r"view report depends on view order_detail.*drop those"):
        migrate(settings)
    rows(settings, "DROP VIEW report")
    migrate(settings)


def test_a_description_is_changed_in_place(made):
    settings = made("described", ("The customer's country.", "Where the customer lives."))
    migrate(settings)
    comment = """SELECT col_description('order_detail'::regclass, attnum) FROM pg_attribute
                  WHERE attrelid = 'order_detail'::regclass AND attname = 'customer_country'"""
    assert rows(settings, comment) == [("Where the customer lives.",)]


NOTE = (
    '    { name = "note", type = "string", max_length = 4000, nullable = true,'
    ' description = "The customer\'s note." },\n'
)
CHANNEL = NOTE.replace('"note"', '"channel"')
NEVER_NULL = ("nullable = true, ", "")
REFUSED = {
    "dropped": (('    { stream = "note" },\n', ""), "columns: note is missing, and the database has note text; publi"),
    "renamed": (('{ stream = "note" }', '{ stream = "note", name = "remark" }'), "columns: note is missing, and the d"),
    "precision": (("precision = 12, scale = 2", "precision = 14, scale = 2"),
                  "amount is numeric(14,2), and the database has numeric(12,2); rows and records that exist"),
    "type": (('name = "isPaid", type = "boolean"', 'name = "isPaid", type = "string", max_length = 5'),
             "columns is_paid is text, and the database has boolean"),
    "day": (('day = "orderedAt"', 'day = "changedAt"'),
            "[stream] day = 'changedAt', and the database has 'orderedAt'; days that are built already hold other"),
    "topic": (('topic = "customer"', 'topic = "client"'), "[table] topic = 'client', and the database has 'customer'"),
    "version": (('version = "changedAt"\nday', 'version = "orderedAt"\nday'),
                "[stream] version = 'orderedAt', and the database has 'changedAt'"),
    "source": (('{ stream = "note" }', '{ table = "country", name = "note" }'),
               "columns note is of table country, and the database has it of stream note; published days"),
    "personal": (("personal = true, ", ""), "columns customer_name: personal = false, and the database has true; an"),
    "new field that is never null": ((NOTE, NOTE + CHANNEL.replace(*NEVER_NULL)),
                                     "[stream] fields channel is new and never null; records that exist lack it; give"),
    "no longer nullable": ((NOTE, NOTE.replace(*NEVER_NULL)),
                           "[stream] fields note is never null, and the database has nullable = true; records that"),
    "shorter": (("max_length = 4000", "max_length = 400"),
                "[stream] fields note: max_length = 400, and the database has 4000; records that were accepted"),
    "smaller tolerance": (('name = "order_detail"\n', 'name = "order_detail"\nclock_tolerance_s = 299\n'),
                          "clock_tolerance_s = 299, and the database has 300; records that were accepted would be"),
    "retyped field": (('name = "dueOn", type = "date"', 'name = "dueOn", type = "timestamp"'),
                      "columns due_on is timestamptz, and the database has date"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_changes_are_refused(tmp_path, case):
    before = definition(tmp_path)
    change, message = REFUSED[case]
    columns = {name: before.postgres_type(name) for name in before.relational_columns}
    assert compare(before, columns, kept_form(before)) == ((), ())
    found = compare(definition(tmp_path, change), columns, kept_form(before))
    assert message in found.refused[0]


def test_a_refused_change_changes_nothing(made):
    settings = made("refused", *NEW_COLUMNS, REFUSED["dropped"][0])
    before = without_places(settings, "public")
    with pytest.raises(ContractMismatch, match=r"^order_detail.toml: \[output\] columns: note is missing"):
        migrate(settings)
    assert without_places(settings, "public") == before


def test_a_bound_where_there_was_none_is_accepted(tmp_path):
    today = definition(tmp_path)
    columns = {name: today.postgres_type(name) for name in today.relational_columns}
    kept = {name: part for name, part in kept_form(today).items() if name != "clock_tolerance_s"}
    assert compare(today, columns, kept) == ((), ())


def test_wider_contracts_are_accepted(tmp_path):
    before = definition(tmp_path)
    after = definition(
        tmp_path,
        ("max_length = 4000", "max_length = 8000"),
        ('name = "currency", type', 'name = "currency", nullable = true, type'),
        ('name = "order_detail"\n', 'name = "order_detail"\nclock_tolerance_s = 3600\n'),
    )
    columns = {name: before.postgres_type(name) for name in before.relational_columns}
    assert compare(after, columns, kept_form(before)) == ((), ())
