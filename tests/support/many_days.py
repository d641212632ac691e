"""Years of published days: each a generation of its own, made inside the server."""

import contextlib

import psycopg2

from include.contracts.day import Day
from include.runtime.settings import Settings
from tests.support.publication import open_as
from tests.support.sessions import session

BOARDS_A_DAY = 10

# Tables as the rebuild makes them. Committed now and then: one transaction may not hold so many locks.
_DAYS = """
DO $$
DECLARE
    of_day date;
    id bigint;
BEGIN
    FOR number IN {first}..{days} LOOP
        of_day := date '{last}' - number;
        INSERT INTO generation (day, run_id, status, cut, raw_distinct, row_count, pending_count, rejected_count,
                                duplicate_count, content_hash, built_at, published_at, first_key, last_key)
        VALUES (of_day, 'years', 'published', '{{"board": {{"0": 1000000}}, "member": {{"0": 0}}}}', {boards},
                {boards}, 0, 0, 0, 'h', now(), now(), number * 1000 + 1, number * 1000 + {boards})
        RETURNING generation.id INTO id;
        EXECUTE format('CREATE TABLE generations.detail_final_g%1$s (LIKE detail_final INCLUDING DEFAULTS'
                       ' INCLUDING CONSTRAINTS, CHECK (generation_id = %1$s AND day = %2$L))', id, of_day);
        EXECUTE format('GRANT SELECT, INSERT ON generations.detail_final_g%1$s TO batch', id);
        EXECUTE format('INSERT INTO generations.detail_final_g%1$s (generation_id, day, board_id, title,'
                       ' modified_at, created_at, stream_partition, stream_offset)'
                       ' SELECT %1$s, %2$L, %3$s * 1000 + n, ''title'', %2$L, %2$L, 0, %3$s * 100 + n'
                       ' FROM generate_series(1, {boards}) n', id, of_day, number);
        EXECUTE format('ALTER TABLE generations.detail_final_g%1$s ADD PRIMARY KEY (board_id),'
                       ' ADD CHECK (board_id BETWEEN %2$s AND %3$s AND created_at BETWEEN %4$L AND %4$L)',
                       id, number * 1000 + 1, number * 1000 + {boards}, of_day::timestamptz);
        EXECUTE format('CREATE INDEX ON generations.detail_final_g%1$s (member_id)', id);
        EXECUTE format('ALTER TABLE detail_final ATTACH PARTITION generations.detail_final_g%1$s'
                       ' FOR VALUES FROM (%2$L, %1$s) TO (%2$L, %3$s)', id, of_day, id + 1);
        INSERT INTO day_publication (day, generation_id, cut, status, row_count, published_at)
        SELECT g.day, g.id, g.cut, 'rebuilt', g.row_count, now() FROM generation g WHERE g.day = of_day;
        IF number % 50 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END
$$
"""


def publish_days(settings: Settings, last: str, days: int, first: int = 1, boards: int = BOARDS_A_DAY) -> None:
    """Publish the days from `first` to `days` days before `last`, without rows of the speed layer.

    Board ids grow towards the past, a thousand for each day.
    """
    connection = open_as(settings, "pipeline_owner")
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(_DAYS.format(last=last, first=first, days=days, boards=boards))
        cursor.execute("ANALYZE day_publication, generation")


# The history of each day: an earlier build whose table was dropped, and a deletion that its cut covers.
_HISTORY = """
WITH before AS (
    INSERT INTO generation (day, run_id, status, cut, created_at, newest_version_at)
    SELECT day, 'before', 'discarded', '{}', now() - interval '400 days', 'epoch'
      FROM day_publication WHERE day >= %(first)s AND day < %(end)s
    RETURNING id, day
), moved AS (
    INSERT INTO publication (day, action, from_generation_id, to_generation_id, made_by, covered_rows, restored_rows)
    SELECT b.day, 'publish', change.from_id, change.to_id, 'test', 0, 0
      FROM before b JOIN day_publication p USING (day)
     CROSS JOIN LATERAL (VALUES (NULL, b.id), (b.id, p.generation_id)) AS change (from_id, to_id)
)
INSERT INTO detail_covered (board_id, modified_at, stream_partition, stream_offset, day, deleted, written_at,
                                  generation_id, covered_at)
SELECT g.last_key + 1, g.day, 0, 0, g.day, true, g.day, g.id, g.day
  FROM day_publication p JOIN generation g ON g.id = p.generation_id
 WHERE p.day >= %(first)s AND p.day < %(end)s
"""


def age(settings: Settings, first: Day, end: Day) -> None:
    """Leave of the published days from `first` on, before `end`, what years of nights leave."""
    with contextlib.closing(open_as(settings, "batch")) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_HISTORY, {"first": first.date, "end": end.date})
    connection = session(settings)
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def locks_held(connection: psycopg2.extensions.connection) -> int:
    """Return the number of locks on relations that the connection's transaction holds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'")
        return int(cursor.fetchone()[0])
