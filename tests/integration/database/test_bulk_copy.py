"""Binary COPY writes rows into PostgreSQL without a change of value."""

import datetime as dt
from decimal import Decimal

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include.database.bulk_copy import PIECE_ROWS, copy_rows

COPY = "COPY copied FROM STDIN (FORMAT binary)"
COLUMNS = (
    "small integer, large bigint, words text, at timestamptz, day date, flag boolean, price numeric(12,2),"
    " share numeric(38,38), whole numeric(38,0), weight numeric(38,18)"
)
READ = (
    "SELECT small, large, words, (extract(epoch FROM at) * 1000000)::bigint, day - date '1970-01-01', flag,"
    " price, share, whole, weight FROM copied"
)
SCHEMA = pa.schema([
    ("small", pa.int32()), ("large", pa.int64()), ("words", pa.string()), ("at", pa.timestamp("us", "UTC")),
    ("day", pa.date32()), ("flag", pa.bool_()), ("price", pa.decimal128(12, 2)), ("share", pa.decimal128(38, 38)),
    ("whole", pa.decimal128(38)), ("weight", pa.decimal128(38, 18)),
])  # fmt: skip
NO_DECIMALS = (None,) * 4


def decimals(precision, scale):
    """Numbers of at most so many digits, also the largest, the smallest and powers of ten."""
    largest = 10**precision - 1
    edges = [sign * 10**digits for digits in range(precision) for sign in (1, -1)]
    numbers = st.integers(-largest, largest) | st.sampled_from([0, largest, -largest, *edges])
    # exact: arithmetic would round to the 28 digits of Python's context
    return st.none() | numbers.map(lambda n: Decimal((int(n < 0), [int(digit) for digit in str(abs(n))], -scale)))


YEAR_1, YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | TEXTS | st.sampled_from(["", "\\N", "\\.", "a\tb\nc\rd\\e가😀"]),
        st.none() | st.integers(YEAR_1, YEAR_10000 - 1),
        st.none() | st.integers(YEAR_1 // 86_400_000_000, YEAR_10000 // 86_400_000_000 - 1),
        st.none() | st.booleans(),
        decimals(12, 2),
        decimals(38, 38),
        decimals(38, 0),
        decimals(38, 18),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def cursor(postgres):
    connection = psycopg2.connect(postgres.superuser_dsn("postgres"))
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE copied ({COLUMNS})")
        yield cursor
    connection.close()


def table(rows, schema=SCHEMA):
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(each, f.type) for each, f in zip(columns, schema, strict=True)], schema=schema)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.integers(0, 8))
def test_what_is_copied_is_what_is_read(cursor, rows, cut):
    whole = table(rows)
    cursor.execute("TRUNCATE copied")
    copy_rows(cursor, COPY, pa.concat_tables([whole.slice(0, cut), whole.slice(cut)]))  # in chunks, and cut out
    cursor.execute(READ)
    assert sorted(cursor.fetchall(), key=repr) == sorted(rows, key=repr)


def test_rows_of_several_pieces_are_copied(cursor):
    rows = [(number, number, "x" * 3_000, dt.datetime(2026, 11, 20, tzinfo=dt.UTC), dt.date(2026, 11, 20), True,
             *NO_DECIMALS) for number in range(3 * PIECE_ROWS)]  # fmt: skip
    cursor.execute("TRUNCATE copied")
    copy_rows(cursor, COPY, table(rows))
    cursor.execute("SELECT small, count(*) OVER () FROM copied ORDER BY small DESC LIMIT 1")
    assert cursor.fetchall() == [(3 * PIECE_ROWS - 1, 3 * PIECE_ROWS)]


def test_an_error_of_the_encoder_is_not_one_of_postgresql(cursor):
    right, wrong = ((1, 1, "a", at, 0, True, *NO_DECIMALS) for at in (0, -(2**63)))
    cursor.execute("TRUNCATE copied")
    with pytest.raises(ValueError, match="Underflow"):
        copy_rows(cursor, COPY, table([right] * PIECE_ROWS + [wrong]))
    cursor.execute("SELECT count(*) FROM copied")
    assert cursor.fetchone() == (0,)


def test_nothing_is_copied_of_no_rows(cursor):
    cursor.execute("TRUNCATE copied")
    copy_rows(cursor, "this is no statement", table([]))


@pytest.mark.parametrize(("row", "error"), [
    ((1, 1, "a\x00b", 0, 0, True, *NO_DECIMALS), psycopg2.errors.CharacterNotInRepertoire),
    ((1, 1, "a", -(2**62), 0, True, *NO_DECIMALS), psycopg2.errors.DatetimeFieldOverflow),
    ((1, 1, "a", 0, 2**31 - 1, True, *NO_DECIMALS), psycopg2.errors.DatetimeFieldOverflow),
])  # fmt: skip
def test_what_postgresql_cannot_hold_is_an_error_of_the_row(cursor, row, error):
    with pytest.raises(error):
        copy_rows(cursor, COPY, table([row]))


def test_a_column_of_another_width_is_refused_and_not_misread(cursor):
    wide = SCHEMA.set(0, pa.field("small", pa.int64()))
    with pytest.raises(psycopg2.errors.InvalidBinaryRepresentation):
        copy_rows(cursor, COPY, table([(1, 1, "a", 0, 0, True, *NO_DECIMALS)], wide))


def test_the_years_around_the_epochs_are_told_apart(cursor):
    cursor.execute("TRUNCATE copied")
    row = (1, 1, "", dt.datetime(1999, 12, 31, tzinfo=dt.UTC), dt.date(2000, 1, 1), None, *NO_DECIMALS)
    copy_rows(cursor, COPY, table([row]))
    cursor.execute("SELECT (at AT TIME ZONE 'UTC')::text, day FROM copied")
    assert cursor.fetchall() == [("1999-12-31 00:00:00", dt.date(2000, 1, 1))]
