"""The Integrity page: what it says of a day, and what it says when it can't."""

import datetime as dt
import html
import json
import re
from functools import partial

import httpx
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from include.errors import DatabaseUnavailable
from include.integrity.certificate import Term
from include.integrity.day_page import Correction, DayPage, GenerationRow, LeftOut
from include.integrity.days import Window
from include.integrity.page import create_app, navigation
from include.integrity.page_model import DayStatus, select_rows
from include.integrity.publication import PublicationRow
from include.settings import Settings

TODAY = dt.date(2026, 11, 21)
NOW = dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC)  # noon in Seoul
WINDOW = Window(NOW, "Asia/Seoul", 14)
LEAST = {
    "KAFKA_BOOTSTRAP_SERVERS": "k:9092",
    "DATABASE_HOST": "db",
    "ORDER_DETAIL__PIPELINE_TIMEZONE": "America/New_York",
    "ORDER_DETAIL__DATABASE_NAME": "orders",
}


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
    return client(lambda _: select_rows(list(days), WINDOW, "nightly_rebuild"), backlog)


def client(read_rows, backlog: str = "", authorize=lambda: None, variables=LEAST, read_day=None) -> TestClient:
    """The pages of two pipelines, whose rows `read_rows` returns of the settings."""
    settings = partial(Settings.from_environment, variables)
    pipelines = ("board_detail", "order_detail")
    return TestClient(create_app(authorize, pipelines, settings, read_rows, lambda _: backlog, read_day))


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
        row = select_rows([day_status(date)], WINDOW, "night")[0]

        assert (row.countdown, row.can_rebuild) == (countdown, can_rebuild)

    def test_what_the_archive_has_can_be_rebuilt_for_ever(self):
        window = Window(NOW, "Asia/Seoul", 14, archived_since=dt.date(2026, 10, 1))
        days = [day_status(date) for date in ("2026-11-20", "2026-10-01", "2026-09-30")]

        assert [(row.countdown, row.can_rebuild) for row in select_rows(days, window, "night")] == [
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

        assert select_rows([status], WINDOW, "night")[0].notes == (
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

        told = [note for note in select_rows([status], WINDOW, "night")[0].notes if "is night on" in note]
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
            assert select_rows([day_status(str(day))], WINDOW, "night")[0].can_rebuild == accepted


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
        def read(_) -> list:
            raise DatabaseUnavailable(host="db.internal", reason="secret details")

        answer = client(read, "never asked").get("/")

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

    @pytest.mark.parametrize("path", ["/", "/order_detail/", "/board_detail/days/2026-11-20", "/orders/", "/docs"])
    def test_shows_nothing_to_who_may_not_look(self, path):
        def refuse() -> None:
            raise HTTPException(401)

        answer = client(lambda _: [], authorize=refuse).get(path)

        assert answer.status_code in (401, 404)
        assert "Integrity" not in answer.text


class TestDay:
    MOVED = PublicationRow(
        1, TODAY, "undo", 12, None, "<wrong>", "operator, undo_day manual__1", 0, 0, NOW
    )  # fmt: skip
    BUILT = GenerationRow(12, "scheduled__1", None, "published", 3, 1, 0, 2, "abcdef0123456789", NOW, NOW, True)
    CHANGED = Correction(
        "member_version_changed", 7, {"nickname": "저녁", "title": "<b>"}, {"nickname": "아침", "title": "<b>"},
        ["nickname"],
    )  # fmt: skip
    ADDED = Correction("missing", 8, None, {"nickname": "하늘", "city": None}, [])

    def page(self, corrections=(), history=(), terms=(), left_out=(), date="2026-11-20", **changes) -> TestClient:
        (row,) = select_rows([day_status(date, **changes)], WINDOW, "nightly_rebuild")
        found = DayPage(row, terms, corrections, left_out, [self.BUILT], history)
        return client(lambda _: [], read_day=lambda _, day: found if str(day) == date else None)

    def text(self, path="/board_detail/days/2026-11-20", **content) -> str:
        answer = self.page(**content).get(path)
        assert answer.status_code == 200
        return answer.text

    def test_the_balance_is_an_equation_with_the_query_of_each_term(self):
        values = {"raw_distinct": "6", "rows": "3", "pending": "1", "rejected": "2"}
        terms = [Term(name, value, f"SELECT {name}", "note") for name, value in values.items()]

        text = self.text(terms=terms)

        assert "6 raw = 3 rows + 1 pending + 2 rejected" in text
        assert "<pre>SELECT raw_distinct</pre>" in text

    def test_corrections_mark_the_fields_that_changed_and_leave_out_the_others(self):
        text = self.text(corrections=[self.CHANGED, self.ADDED])

        assert '<div class="changed">nickname: 저녁</div>' in text
        assert '<div class="changed">nickname: 아침</div>' in text
        assert "title:" not in text
        assert "<td>no row</td>" in text
        assert "<div>city: null</div>" in text

    def test_history_says_who_moved_the_day_from_where_to_where_and_why(self):
        text = self.text(history=[self.MOVED])

        assert "<td>generation 12</td><td>the stream&#39;s rows</td>" in text
        assert "operator, undo_day manual__1" in text
        assert "&lt;wrong&gt;" in text

    def test_records_that_are_no_rows_have_their_reason(self):
        assert '<td>rejected</td><td>/memberId: missing</td><td class="number">1,200</td>' in self.text(
            left_out=[LeftOut("rejected", "/memberId: missing", 1200)]
        )

    @pytest.mark.parametrize(
        ("date", "history", "labels"),
        [
            ("2026-11-20", [MOVED], ["Dry run", "Rebuild and publish", "Undo", "Redo"]),
            ("2026-11-20", [], ["Dry run", "Rebuild and publish"]),
            ("2026-11-01", [MOVED], ["Undo", "Redo"]),
        ],
    )
    def test_buttons_are_what_the_day_allows(self, date, history, labels):
        text = self.text(f"/order_detail/days/{date}", date=date, history=history)

        buttons = re.findall(r'<button data-dag="(\w+)" data-conf="([^"]*)"[^>]*>([^<]*)<', text)
        assert [label for _, _, label in buttons] == labels
        for dag, conf, label in buttons:
            filled = json.loads(html.unescape(conf))
            expected = {
                "Dry run": ("reprocess_days", {"from": date, "to": date, "dry_run": True}),
                "Rebuild and publish": ("reprocess_days", {"from": date, "to": date, "dry_run": False}),
                "Undo": ("undo_day", {"day": date, "action": "undo", "dry_run": False}),
                "Redo": ("undo_day", {"day": date, "action": "redo", "dry_run": False}),
            }[label]
            assert (dag.removesuffix("_order_detail"), filled) == expected

    @pytest.mark.parametrize("path", ["2026-11-19", "2026-02-30", "today", "<script>"])
    def test_a_day_of_which_nothing_is_known_is_a_404(self, path):
        assert self.page().get(f"/board_detail/days/{path}").status_code == 404

    def test_database_down_is_a_503_that_says_so(self):
        def read(*_):
            raise DatabaseUnavailable(host="db.internal")

        answer = client(lambda _: [], read_day=read).get("/board_detail/days/2026-11-20")

        assert answer.status_code == 503
        assert "The database does not answer." in answer.text
        assert "db.internal" not in answer.text


class TestPipelines:
    @pytest.fixture(autouse=True)
    def pipelines(self, monkeypatch):
        monkeypatch.setenv("PIPELINES", "board_detail,order_detail")

    @pytest.fixture
    def pages(self):
        """The pages; each has a day whose count of rows says which database it is from."""
        counts = {"pipeline": 111, "orders": 222}

        def read(settings):
            status = day_status("2026-11-20", row_count=counts[settings.database.name])
            return select_rows([status], WINDOW, "night")

        return client(read)

    @pytest.mark.parametrize(
        ("path", "shown", "hidden"),
        [
            ("/", ["Integrity: board_detail", ">111<", "<code>member</code>", "<code>created_at</code> in Asia/Seoul"],
             [">222<", "customer"]),
            ("/order_detail/", ["Integrity: order_detail", ">222<", "<code>customer</code>",
                                "<code>ordered_at</code> in America/New_York"], [">111<", "member"]),
        ],
    )  # fmt: skip
    def test_each_has_a_page_with_its_days_and_names(self, pages, path, shown, hidden):
        text = pages.get(path).text

        assert [each for each in shown if each not in text] == []
        assert [each for each in hidden if each in text] == []

    @pytest.mark.parametrize(
        ("path", "suffix"), [("/", ""), ("/board_detail/", ""), ("/order_detail/", "_order_detail")]
    )
    def test_links_and_button_lead_to_its_own_dags_from_wherever_the_page_is(self, pages, path, suffix):
        address = httpx.URL(f"https://airflow.example/base/integrity{path}")
        text = pages.get(path).text
        targets = {address.join(each).path for each in re.findall(r'(?:href|data-api|data-dags)="([^"]+)"', text)}
        pipeline = suffix.removeprefix("_") or "board_detail"

        assert targets == {
            "/base/integrity/",
            "/base/integrity/order_detail/",
            f"/base/dags/nightly_rebuild{suffix}",
            f"/base/dags/reprocess_days{suffix}",
            f"/base/dags/undo_day{suffix}",
            f"/base/integrity/{pipeline}/days/2026-11-20",
            "/base/api/v2/dags/",
            "/base/dags/",
        }
        assert re.findall(r'data-dag="([^"]+)"', text) == [f"reprocess_days{suffix}"]

    def test_marks_the_page_that_is_shown(self, pages):
        for path, name in (("/", "board_detail"), ("/order_detail/", "order_detail")):
            assert re.findall(r'aria-current="page">(\w+)<', pages.get(path).text) == [name]

    def test_a_single_pipeline_has_no_links_to_others(self):
        settings = partial(Settings.from_environment, LEAST)
        alone = create_app(lambda: None, ["board_detail"], settings, lambda _: [], lambda _: "")

        assert "<nav" not in TestClient(alone).get("/").text

    @pytest.mark.parametrize("path", ["/orders/", "/<script>/", "/customer_detail/", "/docs/"])
    def test_a_name_that_is_not_listed_is_not_found_and_not_repeated(self, pages, path):
        answer = pages.get(path)

        assert (answer.status_code, answer.json()) == (404, {"detail": "no such pipeline"})

    def test_each_page_is_in_the_navigation_of_airflow(self, pages):
        views = navigation("/integrity")

        assert [(view["name"], view["href"]) for view in views] == [
            ("Integrity", "/integrity/"), ("Integrity order_detail", "/integrity/order_detail/"),
        ]  # fmt: skip
        assert len({view["url_route"] for view in views}) == len(views), "Airflow drops a second view of a route"
        assert all(pages.get(view["href"].removeprefix("/integrity")).status_code == 200 for view in views)

    def test_a_wrong_setting_of_one_leaves_the_other_readable(self):
        pages = client(lambda _: [], variables={**LEAST, "ORDER_DETAIL__PIPELINE_TIMEZONE": "Asia/Soul"})

        assert pages.get("/").status_code == 200
        answer = pages.get("/order_detail/")
        assert answer.status_code == 503
        assert "ORDER_DETAIL__PIPELINE_TIMEZONE=&#39;Asia/Soul&#39;" in answer.text
