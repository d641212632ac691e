"""The Integrity page: what it says of a day, and what it says when it can't."""

import datetime as dt

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from include.errors import DatabaseUnavailable
from include.integrity.days import Window
from include.integrity.page import create_app
from include.integrity.page_model import DayStatus, select_rows

TODAY = dt.date(2026, 11, 21)
NOW = dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC)  # noon in Seoul
WINDOW = Window(NOW, "Asia/Seoul", 14)


def day_status(date: str, **changes: object) -> DayStatus:
    fields = {
        "day": dt.date.fromisoformat(date),
        "status": "certified",
        "row_count": 447017,
        "pending_count": 1,
        "rejected_count": 2,
        "live_row_count": 4,
        "dirty_count": 5,
        "generation_id": 12,
        "published_at": dt.datetime(2026, 11, 20, 17, 5, tzinfo=dt.UTC),
        "corrections": {"late": 2, "missing": 1},
        "dirty": {"late board": 5},
    }
    return DayStatus(**(fields | changes))


def page(*days: DayStatus, backlog: str = "") -> TestClient:
    return TestClient(create_app(lambda: None, lambda: select_rows(list(days), WINDOW), lambda: backlog))


class TestRows:
    @pytest.mark.parametrize(
        ("date", "countdown", "can_rebuild"),
        [
            ("2026-11-21", "14 more days", False),  # not over
            ("2026-11-20", "13 more days", True),
            ("2026-11-08", "1 more day", True),
            ("2026-11-07", "no longer", False),  # the topics no longer hold all of it
            ("2026-10-01", "no longer", False),
        ],
    )
    def test_a_day_can_be_rebuilt_when_over_and_still_in_the_topics(self, date, countdown, can_rebuild):
        row = select_rows([day_status(date)], WINDOW)[0]

        assert (row.countdown, row.can_rebuild) == (countdown, can_rebuild)

    def test_what_the_archive_has_can_be_rebuilt_for_ever(self):
        window = Window(NOW, "Asia/Seoul", 14, archived_since=dt.date(2026, 10, 1))
        days = [day_status(date) for date in ("2026-11-20", "2026-10-01", "2026-09-30")]

        assert [(row.countdown, row.can_rebuild) for row in select_rows(days, window)] == [
            ("archived", True),
            ("archived", True),
            ("no longer", False),
        ]

    def test_an_archive_that_began_within_the_window_takes_no_day_away(self):
        window = Window(NOW, "Asia/Seoul", 14, archived_since=dt.date(2026, 11, 15))

        assert (window.oldest, window.days_left(dt.date(2026, 11, 10))) == (dt.date(2026, 11, 8), 3)

    def test_notes_say_what_stands_against_trusting_a_day(self):
        status = day_status(
            "2026-11-20",
            status="rebuilt",
            corrections={"unexplained": 2},
            held_reason="wrong authors",
            uncertified_reason="3 events wait",
        )

        assert select_rows([status], WINDOW)[0].notes == (
            "2 unexplained differences",
            "held since it was undone: wrong authors",
            "not certified: 3 events wait",
        )

    @pytest.mark.parametrize(
        ("date", "changes", "is_told"),
        [
            ("2026-11-21", {}, False),  # not over
            ("2026-11-20", {}, False),  # the coming night's
            ("2026-11-19", {}, True),
            ("2026-11-01", {}, True),  # and lost
            ("2026-11-19", {"generation_id": 3, "status": "rebuilt"}, False),
            ("2026-11-19", {"held_reason": "wrong authors"}, False),
        ],
    )
    def test_a_day_that_no_night_published_is_told(self, date, changes, is_told):
        status = day_status(date, **({"status": "provisional", "generation_id": None} | changes))

        told = [note for note in select_rows([status], WINDOW)[0].notes if "is nightly_rebuild on" in note]
        assert bool(told) == is_told

    def test_agrees_with_what_the_form_accepts(self):
        from include.airflow_support.days import DayChoiceError, days_between
        from include.contracts.day import DayNotOver

        for age in range(20):
            day = TODAY - dt.timedelta(days=age)
            try:
                accepted = bool(days_between(str(day), str(day), WINDOW))
            except (DayChoiceError, DayNotOver):
                accepted = False
            assert select_rows([day_status(str(day))], WINDOW)[0].can_rebuild == accepted


class TestPage:
    def test_shows_a_day_with_its_counts_and_a_button(self):
        answer = page(day_status("2026-11-20")).get("/")

        assert answer.status_code == 200
        for text in (
            "2026-11-20",
            "certified",
            "447,017",
            "13 more days",
            'data-day="2026-11-20"',
            "2 late, 1 missing",
        ):
            assert text in answer.text

    def test_shows_what_speaks_against_a_day_and_what_waits_at_the_gateways(self):
        text = page(day_status("2026-11-20", held_reason="wrong <authors>"), backlog="7 events wait").get("/").text

        assert "held since it was undone: wrong &lt;authors&gt;" in text
        assert "7 events wait" in text

    def test_has_no_button_where_a_rebuild_would_be_refused(self):
        answer = page(day_status("2026-11-21"), day_status("2026-11-01")).get("/")

        assert "data-day=" not in answer.text
        assert "no longer" in answer.text

    def test_says_so_when_there_is_no_day_yet(self):
        assert "No day has been rebuilt" in page().get("/").text

    def test_an_unpublished_day_has_no_generation(self):
        text = page(day_status("2026-11-20", generation_id=None, published_at=None)).get("/").text

        assert "not published" in text
        assert "None" not in text

    def test_database_down_is_a_503_that_says_so(self):
        def read() -> list:
            raise DatabaseUnavailable(host="db.internal", reason="secret details")

        answer = TestClient(create_app(lambda: None, read, lambda: "never asked")).get("/")

        assert answer.status_code == 503
        assert "The database does not answer." in answer.text
        assert "never asked" not in answer.text
        assert "db.internal" not in answer.text

    def test_text_from_the_database_is_escaped(self):
        text = page(day_status("2026-11-20", status="<script>alert(1)</script>")).get("/").text

        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text

    def test_scripts_and_styles_need_this_answers_nonce(self):
        client = page(day_status("2026-11-20"))
        first, second = client.get("/"), client.get("/")

        policy = first.headers["content-security-policy"]
        nonce = policy.split("script-src 'nonce-")[1].split("'")[0]
        assert first.text.count(f'nonce="{nonce}"') == 2
        assert "frame-ancestors 'self'" in policy  # Airflow shows it in a frame
        assert policy != second.headers["content-security-policy"]

    @pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
    def test_shows_nothing_to_who_may_not_look(self, path):
        def refuse() -> None:
            raise HTTPException(401)

        answer = TestClient(create_app(refuse, list, str)).get(path)

        assert answer.status_code in (401, 404)
        assert "Integrity" not in answer.text
