"""Years of published days: each a generation of its own, made inside the server."""

import contextlib

import psycopg2

from include.settings import Settings
from tests.support.publication import open_as

BOARDS_A_DAY = 10

# Tables as the rebuild makes them. Committed now and then: one transaction may not hold so many locks.
_DAYS = """
DO $$
DECLARE
    of_day date;
    id bigint;
BEGIN
    FOR number IN 1..{days} LOOP
        of_day := date '{last}' - number;
        INSERT INTO generation (day, run_id, status, cut, raw_distinct, row_count, pending_count, rejected_count,
                                duplicate_count, content_hash, built_at, published_at, first_key, last_key)
        VALUES (of_day, 'years', 'published', '{{"board": {{"0": 1000000}}, "member": {{"0": 0}}}}', {boards},
                {boards}, 0, 0, 0, 'h', now(), now(), number * 1000 + 1, number * 1000 + {boards})
        RETURNING generation.id INTO id;
        EXECUTE format('CREATE TABLE generations.board_detail_final_g%1$s (LIKE board_detail_final INCLUDING DEFAULTS'
                       ' INCLUDING CONSTRAINTS, CHECK (generation_id = %1$s AND day = %2$L))', id, of_day);
        EXECUTE format('GRANT SELECT, INSERT ON generations.board_detail_final_g%1$s TO batch', id);
        EXECUTE format('INSERT INTO generations.board_detail_final_g%1$s (generation_id, day, board_id, title,'
                       ' modified_at, created_at, board_partition, board_offset)'
                       ' SELECT %1$s, %2$L, %3$s * 1000 + n, ''title'', %2$L, %2$L, 0, %3$s * 100 + n'
                       ' FROM generate_series(1, {boards}) n', id, of_day, number);
        EXECUTE format('ALTER TABLE generations.board_detail_final_g%1$s ADD PRIMARY KEY (board_id),'
                       ' ADD CHECK (board_id BETWEEN %2$s AND %3$s AND created_at BETWEEN %4$L AND %4$L)',
                       id, number * 1000 + 1, number * 1000 + {boards}, of_day::timestamptz);
        EXECUTE format('CREATE INDEX ON generations.board_detail_final_g%1$s (member_id)', id);
        EXECUTE format('ALTER TABLE board_detail_final ATTACH PARTITION generations.board_detail_final_g%1$s'
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


def publish_days(settings: Settings, last: str, days: int) -> None:
    """Publish that many days before `last`, without rows of the speed layer. Board ids grow towards the past."""
    connection = open_as(settings, "pipeline_owner")
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(_DAYS.format(last=last, days=days, boards=BOARDS_A_DAY))
        cursor.execute("ANALYZE day_publication, generation")


def locks_held(connection: psycopg2.extensions.connection) -> int:
    """How many locks the connection's transaction holds on relations."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'")
        return int(cursor.fetchone()[0])
