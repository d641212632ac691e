"""Trust in a day, as an analyst reads it: a sentence per day, and certified days without what arrived since."""

import itertools
from contextlib import closing

import pytest

from include.integrity.days.gateways import Unsent
from include.integrity.days.publication import redo, undo
from tests.support.certifying import STORE, certify_alone
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as, publish
from tests.support.serving import DAY, build, opened_store, pending, row, serve, tombstone

PUBLISHED_AT = "2026-11-20 19:12:59+00"  # 04:12 of the next day in the pipeline's zone
CERTIFIED = "SELECT board_id, title, finality FROM board_detail_certified WHERE day = %s ORDER BY board_id"
STATE = {
    "rows": "SELECT title, finality, count(*) FROM board_detail_masked WHERE day = %(day)s GROUP BY 1, 2 ORDER BY 1, 2",
    "all days": "SELECT day, count(*) FROM board_detail_masked GROUP BY day",
    "certified": "SELECT title, count(*) FROM board_detail_certified WHERE day = %(day)s GROUP BY 1 ORDER BY 1",
    "by key": "SELECT board_id, title FROM board_detail_by_key(ARRAY[1, 2]) ORDER BY 1",
    "status": "SELECT status, generation_id, row_count, shown_rows, dirty_count FROM day_status WHERE day = %(day)s",
    "trust": "SELECT summary, corrections, dirty FROM day_trust WHERE day = %(day)s",
    "certificate": "SELECT term, value FROM day_certificate WHERE day = %(day)s ORDER BY generation_id, position",
}


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "trust", tmp_path)


def summary(settings):
    """The day's sentence. The day is published at a known time."""
    rows(settings, "UPDATE day_publication SET published_at = %s WHERE published_at IS NOT NULL", (PUBLISHED_AT,))
    ((text,),) = rows(settings, "SELECT summary FROM day_trust WHERE day = %s", (DAY.date,), role="analyst")
    return text


def test_the_sentence_of_a_day_follows_its_state(settings):
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1, title="older"), row(2, 2)])
        assert summary(settings) == "provisional: the stream's rows, not rebuilt yet"

        build(settings, [row(n, n) for n in range(1, 1_235)], cut=2_000, run_id="r")
        publish(settings, DAY, "r")
        counts = "1,234 rows, 1,233 corrections, published 2026-11-21 04:12"
        assert summary(settings) == f"rebuilt, not certified yet: {counts}"

        reason = certify_alone(settings, DAY, lambda _: {"http://b": Unsent(4, 0, 0, store_id=STORE)}).reason
        assert summary(settings) == f"rebuilt, not certified ({reason}): {counts}"
        rows(settings, "UPDATE detail_correction SET class = 'late' WHERE class = 'unexplained'")
        assert certify_alone(settings, DAY).reason is None
        assert summary(settings) == f"certified: {counts}"

        serve(store, [row(1, 3_000, title="late")])
        since = "1 record arrived since (1 late board): the day waits for its next rebuild"
        assert summary(settings) == f"certified: {counts}; {since}"
        rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%(d)s, 'moved board', 2000),"
             " (%(d)s, 'unread board', 3)", {"d": DAY.date})  # fmt: skip
        assert summary(settings) == (
            f"certified: {counts}; 2,001 records arrived since (1 late board, 2000 moved board): the day waits for its"
            " next rebuild; 3 rows of the stream that no rebuild can read any more"
        )
        rows(settings, "DELETE FROM dirty_day; INSERT INTO unchecked_day (day) VALUES (%s)", (DAY.date,))
        assert summary(settings) == f"certified: {counts}; a check for late records is due"


def test_the_sentence_of_a_day_that_was_undone_says_who_holds_it(settings):
    build(settings, [row(1, 1)], cut=9, run_id="first")
    publish(settings, DAY, "first")
    build(settings, [row(1, 1, title="wrong"), row(2, 2)], cut=10, run_id="second")
    publish(settings, DAY, "second")
    undo(settings, DAY, "wrong authors", made_by="operator")
    shown = "rebuilt, not certified yet: 1 row, 1 correction, published 2026-11-21 04:12"
    assert summary(settings).startswith(f"held: undone by operator, wrong authors; {shown}")
    undo(settings, DAY, "wrong too", to=0)
    assert summary(settings).startswith("held: undone, wrong too; the stream's rows alone")
    redo(settings, DAY, "it was right")
    assert summary(settings).startswith(shown)


def test_certified_days_have_the_rows_that_were_certified_alone(settings):
    other = DAY.before(1)
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1), row(2, 2), row(3, 3), row(9, 4, day=other.date)])
        build(settings, [row(n, n) for n in (1, 2, 3)], cut=5, run_id="r")
        publish(settings, DAY, "r")
        assert rows(settings, CERTIFIED, (DAY.date,), role="analyst") == []
        assert certify_alone(settings, DAY).count("rows") == 3
        certified = [(n, f"v{n}", "final") for n in (1, 2, 3)]
        serve(store, [row(1, 6, title="edited"), row(4, 7), tombstone(3, 8)])
        assert rows(settings, CERTIFIED, (DAY.date,), role="analyst") == certified
        days = "SELECT DISTINCT day, shown_since = certified_at FROM board_detail_certified JOIN day_trust USING (day)"
        assert rows(settings, days, role="analyst") == [(DAY.date, True)]
        undo(settings, DAY, "a test")
        assert rows(settings, CERTIFIED, (DAY.date,), role="analyst") == []


def state(cursor):
    found = {}
    for name, statement in STATE.items():
        cursor.execute(statement, {"day": DAY.date})
        found[name] = cursor.fetchall()
    return found


def is_one_state(found):
    """True if the queries agree with each other."""
    ((status, _, row_count, shown_rows, _),) = found["status"]
    certified = [(title, count) for title, count in found["certified"]]
    return (
        sum(count for *_, count in found["rows"]) == shown_rows
        and found["all days"] == [(DAY.date, shown_rows)]
        and sum(count for _, count in certified) == (row_count if status == "certified" else 0)
        and found["trust"][0][0].startswith({"provisional": ("provisional", "held")}.get(status, (status, "held")))
    )


def test_the_queries_of_a_transaction_see_one_state_while_the_day_is_published_and_undone(settings):
    """The session begins with one of the queries. Then the day changes, and the other queries follow."""
    with closing(opened_store(settings)) as store:
        serve(store, [row(n, n, title="live") for n in range(1, 31)])

        def made(title, count, cut):
            build(settings, [row(n, n, title=title) for n in range(1, count)], cut=cut, run_id=title)
            publish(settings, DAY, title, accept_vanishing=True)

        def certified():
            rows(settings, "UPDATE detail_correction SET class = 'late' WHERE class = 'unexplained'")
            assert certify_alone(settings, DAY).reason is None

        steps = (
            lambda: made("first", 41, 1_000),
            certified,
            lambda: serve(store, [row(1, 2_000, title="late")]),
            lambda: made("second", 56, 3_000),
            lambda: undo(settings, DAY, "a test"),
            lambda: redo(settings, DAY, "a test"),
            certified,
            lambda: undo(settings, DAY, "a test", to=0),
        )
        seen = []
        for step, first in zip(steps, itertools.cycle(STATE.values()), strict=False):
            with closing(open_as(settings, "analyst")) as session, session.cursor() as cursor:
                seen.append(state(cursor))
                session.commit()
                cursor.execute(first, {"day": DAY.date})
                step()
                assert state(cursor) == seen[-1]
            assert is_one_state(seen[-1]), seen[-1]
        assert all(one != other for one, other in itertools.pairwise(seen))


def test_pending_are_those_that_wait_now_whoever_knows_of_them(settings):
    def waiting():
        ((count,),) = rows(settings, "SELECT pending_count FROM day_status", role="analyst")
        return count

    build(settings, [row(1, 1)], cut=9, run_id="r", pending=[(2, 2), (3, 3)])  # the stream was down: it knows of none
    publish(settings, DAY, "r")
    assert waiting() == 2
    pending(settings, 3, 3)
    pending(settings, 4, 10)  # since the build
    assert waiting() == 3
    with closing(opened_store(settings)) as store:
        serve(store, [row(2, 2, table_offset=5)])  # its author came
    assert waiting() == 2
