"""The Integrity page: what it says of a day, and what it says when it can't."""

import dataclasses
import datetime as dt
import html
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient
from psycopg2.errors import QueryCanceled

from include.contracts.day import Day
from include.contracts.errors import DatabaseUnavailable
from include.database.stream_progress import Pending, Progress, Seen
from include.integrity.days.certificate import Term
from include.integrity.days.comparison import Sample
from include.integrity.days.day_pointer import Author
from include.integrity.days.day_status import DayStatus
from include.integrity.days.due_days import Window
from include.integrity.days.gateways import MissingStore, Unsent
from include.integrity.days.publication import PublicationRow
from include.integrity.pages.app import LANGUAGE_COOKIE, Sources, create_app, navigation
from include.integrity.pages.day_page import Changed, DayPage, Difference, GenerationRow, LeftOut
from include.integrity.pages.page_model import PipelineState, calendar, corrections_chart, select_rows
from include.integrity.pages.texts import Message
from include.integrity.pages.whereabouts import Coordinates, SearchTooLong, Trace, Whereabouts
from include.integrity.watch.alerts import Finding
from include.runtime.settings import Settings
from tests.support.certifying import STORE

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


WELL = PipelineState(
    queries={"serve": Seen(Progress("serve", "d", 1, 7, 1480, 412, 9, {}, 1.0, 1.0, 12, 0.8, {}, {}, None), 2.0)},
    pending=Pending(0, 0.0), gateways={"http://gateway": Unsent(0, 0, 0, store_id=STORE)},
    broker={"board": 1200}, alerts=[], findings={"stream": [], "gateways": []},
)  # fmt: skip
SILENT = PipelineState(None, None, None, None, None, {"stream": [], "gateways": []})


def page(*days: DayStatus, state: PipelineState = WELL) -> TestClient:
    return client(lambda _: select_rows(list(days), WINDOW, "nightly_rebuild"), state)


def client(read_rows, state=WELL, authorize=lambda: None, variables=LEAST, **sources) -> TestClient:
    """The pages of two pipelines, whose rows `read_rows` returns of the settings; other sources are never asked."""
    settings = partial(Settings.from_environment, variables)
    pipelines = ("board_detail", "order_detail")
    read = Sources(**{"rows": read_rows, "state": lambda _: state, "day": None, "difference": None, "find": None,
                      **sources})  # fmt: skip
    return TestClient(create_app(authorize, pipelines, settings, read))


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

    def test_before_the_first_archive_of_a_young_stack_nobody_knows_of_older_days(self):
        window = Window(NOW, "Asia/Seoul", 14, is_young=True)
        days = [day_status(date) for date in ("2026-11-20", "2026-11-07", "1999-01-01", "2026-12-31")]

        assert [(row.countdown, row.can_rebuild, row.is_lost) for row in select_rows(days, window, "night")][1:3] == [
            ("not known yet", False, False)
        ] * 2
        assert select_rows(days, window, "night")[0] == select_rows(days, WINDOW, "night")[0]
        assert not select_rows(days, window, "night")[3].can_rebuild

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

        told = [note for note in select_rows([status], WINDOW, "night")[0].notes if "check that night is on" in note]
        assert bool(told) == is_told

    def test_agrees_with_what_the_form_accepts(self):
        from include.contracts.day import DayNotOver
        from include.integrity.days.due_days import DayChoiceError, days_between

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
            "2026-12-03",
            'data-day="2026-11-20"',
            "2 late, 1 missing",
        ):
            assert text in answer.text

    def test_shows_what_speaks_against_a_day(self):
        text = page(day_status("2026-11-20", held_reason="wrong <authors>")).get("/").text

        assert "held since it was undone: wrong &lt;authors&gt;" in text
        assert 'data-kind="held" data-look="true"' in text

    def test_says_who_moved_a_day_and_why_with_a_link_to_the_run(self):
        moved = {"moved_by": "jun, reprocess_days manual__1+00:00, approved by mina", "moved_why": "late members"}
        text = page(day_status("2026-11-20", **moved)).get("/").text

        assert 'href="./../dags/reprocess_days/runs/manual__1%2B00%3A00"' in text
        assert "approved by mina" in text
        assert "late members" in text

    def test_a_run_of_a_dag_that_is_not_the_pipelines_has_no_link(self):
        text = page(day_status("2026-11-20", moved_by="jun, other_dag manual__1")).get("/").text

        assert "other_dag manual__1" in text
        assert "runs/manual__1" not in text

    def test_ninety_days_are_rows_and_cells_of_the_calendar(self):
        today = Day.of(dt.datetime.now(dt.UTC), "Asia/Seoul")
        days = [day_status(str(today.before(age).date), dirty_count=0, dirty={}) for age in range(90)]
        text = page(*days).get("/").text

        assert text.count("<tr data-kind=") == 90
        assert len(re.findall(r'<a class="certified"[^>]* aria-label="[\d-]{10}: certified">✓</a>', text)) >= 85
        assert text.count('<rect class="bar"') == 180

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

        answer = client(read).get("/")

        assert answer.status_code == 503
        assert "The database does not answer." in answer.text
        assert "1,200 offsets kept" in answer.text  # the other parts are shown
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
        assert first.text.count(f'nonce="{nonce}"') == first.text.count("<style") + first.text.count("<script") == 3
        assert not re.search(r"\s(on\w+|style)=", first.text)
        assert "frame-ancestors 'self'" in policy  # Airflow shows it in a frame
        assert policy != second.headers["content-security-policy"]

    @pytest.mark.parametrize(
        "path",
        ["/", "/order_detail/", "/board_detail/state", "/board_detail/find?q=7", "/board_detail/days/2026-11-20",
         "/orders/", "/docs"],
    )  # fmt: skip
    def test_shows_nothing_to_who_may_not_look(self, path):
        def refuse() -> None:
            raise HTTPException(401)

        answer = client(lambda _: [], authorize=refuse).get(path)

        assert answer.status_code in (401, 404)
        assert "Integrity" not in answer.text

    def test_nothing_is_written_by_the_pages_themselves(self):
        assert {method for route in page().app.routes for method in route.methods} == {"GET"}


class TestState:
    def test_each_part_says_how_it_is(self):
        text = page(state=WELL).get("/board_detail/state").text

        for said in ("12 records, 1 s behind", "last batch 1,480 records in 412 ms", "heartbeat 2 s ago",
                     "0 events wait", "1,200 offsets kept", "No alert is open."):  # fmt: skip
            assert said in text
        assert text.count(">OK<") == 4

    def test_parts_that_do_not_answer_say_so_and_the_days_are_shown(self):
        answer = page(day_status("2026-11-20"), state=SILENT).get("/")

        assert answer.status_code == 200
        assert answer.text.count(">No answer<") == 4
        assert "447,017" in answer.text

    def test_a_gateway_with_a_backlog_and_one_that_is_silent(self):
        held = {"http://one": Unsent(1200, 3, 2, 7200.0, store_id=STORE), "http://two": "ConnectError"}
        found = [Finding("fallback_waiting", "warning", "1,200 events wait <now>", "gateway-fallback", "http://one")]
        state = dataclasses.replace(WELL, gateways=held, findings={"stream": [], "gateways": found})
        text = page(state=state).get("/board_detail/state").text

        for said in ("1,200 events wait in the fallback store, the oldest for 2 h", "3 set aside", "2 lost",
                     "no answer", "1,200 events wait &lt;now&gt;", "/../runbooks/gateway-fallback"):  # fmt: skip
            assert said in text

    def test_open_alerts_have_severity_message_and_runbook(self):
        alert = Finding("day_held", "critical", "day <b> is held", "undo", "2026-11-20", NOW)
        text = page(state=dataclasses.replace(WELL, alerts=[alert])).get("/board_detail/state").text

        for said in ("critical", "day &lt;b&gt; is held", "since 2026-11-21 03:00 UTC", "runbook undo"):
            assert said in text

    @pytest.mark.parametrize(("count", "are_below"), [(0, False), (1, False), (2, True), (9, True)])
    def test_several_open_alerts_are_below_the_other_cards(self, count, are_below):
        alerts = [Finding("day_held", "critical", f"day {day} is held", "undo", str(day), NOW) for day in range(count)]
        text = page(state=dataclasses.replace(WELL, alerts=alerts)).get("/board_detail/state").text

        assert text.count("<div") == text.count("</div>") == 1
        assert (text.index("</div>") < text.index('id="state-alerts"')) == are_below


class TestLanguage:
    @pytest.mark.parametrize(
        ("query", "headers", "cookies", "language"),
        [
            ("", {}, {}, "en"),
            ("", {"accept-language": "ko-KR,ko;q=0.9,en;q=0.8"}, {}, "ko"),
            ("", {"accept-language": "fr, en;q=0.7, ko;q=0.2"}, {}, "en"),
            ("", {"accept-language": "ko;q=0, x;q=y"}, {}, "en"),
            ("", {"accept-language": "en"}, {LANGUAGE_COOKIE: "ko"}, "ko"),
            ("?lang=en", {"accept-language": "ko"}, {LANGUAGE_COOKIE: "ko"}, "en"),
            ("?lang=<script>", {}, {}, "en"),
        ],
    )
    def test_is_asked_for_kept_or_the_browsers(self, query, headers, cookies, language):
        pages = page(day_status("2026-11-20"))
        pages.cookies.update(cookies)
        answer = pages.get(f"/{query}", headers=headers)

        assert f'<html lang="{language}">' in answer.text
        assert ("인증됨" in answer.text) == (language == "ko")
        assert "<script>&" not in answer.text

    def test_a_choice_persists(self):
        pages = page()
        assert "lang=ko" in pages.get("/board_detail/find?q=").text
        pages.get("/?lang=ko")

        assert '<html lang="ko">' in pages.get("/board_detail/find").text

    def test_the_switch_keeps_what_was_asked(self):
        found = Whereabouts(7, Message("verdict_deleted", subject="board 7"), [], [], [])
        text = client(None, find=lambda *_: found).get("/board_detail/find?q=7").text

        assert 'href="?q=7&amp;lang=ko"' in text


class TestFind:
    FOUND = Whereabouts(
        7,
        Message("verdict_shown_final", subject="board 7", day="2026-11-20", generation=12),
        [Trace("final", dt.date(2026, 11, 20), 12, "e-<7>", NOW, NOW, Coordinates(1, 4), None, None, "<i>", True)],
        [Sample("member_version_changed", 7, {"phone": "(hidden)"}, {"phone": "(hidden)"})],
        ["Kafka: broker at kafka.internal does not answer"],
    )

    def test_tells_the_whole_way_and_what_was_not_searched(self):
        text = client(None, find=lambda *_: self.FOUND).get("/board_detail/find?q=7").text

        for said in ("board 7 is shown in day 2026-11-20, from generation 12", "row of a generation", "board 1/4",
                     "e-&lt;7&gt;", "&lt;i&gt;", "phone: (hidden)", "Not searched: Kafka."):  # fmt: skip
            assert said in text
        assert "kafka.internal" not in text

    def test_names_a_store_that_is_missing_with_its_address(self):
        store = MissingStore(STORE, "http://gateway:18080", NOW, 0, 0, 0)
        found = dataclasses.replace(self.FOUND, unknown=[f"{store}, is missing"])
        text = client(None, find=lambda *_: found).get("/board_detail/find?q=7").text

        assert f"Not searched: store {STORE} of http://gateway:18080, which last answered 2026-11-21 03:00:00" in text

    @pytest.mark.parametrize(
        ("asked", "key", "event_id"),
        [("7", 7, None), (" 12 ", 12, None), ("-3", -3, None), ("018f-9e0a", None, "018f-9e0a"),
         ("9" * 19, None, "9" * 19), ("٣", None, "٣")],
    )  # fmt: skip
    def test_digits_are_an_id_and_all_else_an_event_id(self, asked, key, event_id):
        taken = []
        client(None, find=lambda _, *given: taken.append(given) or self.FOUND).get(
            "/board_detail/find", params={"q": asked}
        )

        assert taken == [(key, event_id)]

    @pytest.mark.parametrize("asked", ["a\0b", "x" * 201, "a\nb"])
    def test_input_that_no_record_can_have_is_refused_and_not_searched(self, asked):
        answer = client(None, find=None).get("/board_detail/find", params={"q": asked})

        assert answer.status_code == 400
        assert "neither an id nor an event id" in answer.text

    def test_without_input_nothing_is_searched(self):
        assert client(None, find=None).get("/board_detail/find").status_code == 200

    def test_a_search_that_takes_too_long_is_refused_with_the_command_that_may(self):
        def find(*_):
            raise SearchTooLong

        answer = client(None, find=find).get("/board_detail/find?q=e")

        assert answer.status_code == 503
        assert "exceeded its time limit" in answer.text
        assert "pipeline days find" in answer.text

    def test_a_third_search_at_a_time_is_refused(self):
        began, end = threading.Barrier(3), threading.Event()

        def find(*_):
            began.wait(20)
            assert end.wait(20)
            return self.FOUND

        pages = client(None, find=find)
        with ThreadPoolExecutor(2) as pool:
            searches = [pool.submit(pages.get, "/board_detail/find?q=7") for _ in range(2)]
            began.wait(20)
            refused = pages.get("/board_detail/find?q=7")
            end.set()

        assert [search.result().status_code for search in searches] == [200, 200]
        assert refused.status_code == 429
        assert "Try again in a few seconds" in refused.text


class TestFigures:
    def test_the_calendar_ends_today_and_has_days_without_data(self):
        (row,) = select_rows([day_status("2026-11-20")], WINDOW, "night")
        weeks = calendar([row], TODAY)

        assert [len(week) for week in weeks] == [7] * 12 + [6]
        assert weeks[-1][4:] == [(dt.date(2026, 11, 20), row), (TODAY, None)]

    def test_days_of_wrong_clocks_are_in_the_table_alone(self):
        rows = select_rows([day_status("9999-12-31"), day_status("0001-01-01")], WINDOW, "night")

        assert [row for week in calendar(rows, TODAY) for _, row in week if row] == []

    def test_bars_grow_with_the_count_and_mark_what_is_unexplained(self):
        counts = ({}, {"late": 9}, {"late": 900, "unexplained": 99})
        days = [day_status(f"2026-11-1{n}", corrections=each) for n, each in enumerate(counts)]
        chart = corrections_chart(select_rows(days[::-1], WINDOW, "night"))

        assert [bar.day.day for bar in chart.bars] == [10, 11, 12]
        assert [bar.height > 0 for bar in chart.bars] == [False, True, True]
        assert chart.bars[1].height < chart.bars[2].mark < chart.bars[2].height
        assert (chart.most, [value for value, _ in chart.lines]) == (999, [10, 100])

    def test_without_days_there_is_nothing_to_draw(self):
        assert (corrections_chart([]).bars, corrections_chart([]).most) == ([], 0)


@pytest.mark.parametrize(
    ("made_by", "author"),
    [
        ("jun, undo_day manual__1", Author("jun", "undo_day", "manual__1")),
        ("a, b, undo_day manual__1, approved by mina, too", Author("a, b", "undo_day", "manual__1", "mina, too")),
        ("root@machine", Author("root@machine")),
        ("", Author("")),
    ],
)
def test_the_author_of_a_change(made_by, author):
    assert Author.of(made_by) == author


class TestDay:
    MOVED = PublicationRow(
        1, TODAY, "undo", 12, None, "<wrong>", "operator, undo_day manual__1", 0, 0, NOW
    )  # fmt: skip
    BUILT = GenerationRow(12, "scheduled__1", None, "published", 3, 1, 0, 2, "abcdef0123456789", NOW, NOW, True)
    CHANGED = Changed(
        "member_version_changed", 7, {"nickname": "저녁", "title": "<b>"}, {"nickname": "아침", "title": "<b>"},
        ["nickname"],
    )  # fmt: skip
    ADDED = Changed("missing", 8, None, {"nickname": "하늘", "city": None}, [])

    def page(
        self, corrections=(), history=(), terms=(), left_out=(), date="2026-11-20", kept=(), difference=None, **changes
    ) -> TestClient:
        (row,) = select_rows([day_status(date, **changes)], WINDOW, "nightly_rebuild")
        found = DayPage(row, terms, corrections, left_out, [self.BUILT, *kept], history)
        return client(None, day=lambda _, day: found if str(day) == date else None, difference=difference)

    def text(self, path="/board_detail/days/2026-11-20", **content) -> str:
        answer = self.page(**content).get(path)
        assert answer.status_code == 200
        return answer.text

    def test_the_balance_is_an_equation_with_the_query_of_each_term(self):
        values = {"raw_distinct": "6", "rows": "3", "pending": "1", "rejected": "2"}
        terms = [Term(name, value, f"SELECT {name}", "note") for name, value in values.items()]

        text = self.text(terms=terms)

        equation = re.search(r'<ul class="balance".*?</ul>', text, re.DOTALL)[0]
        assert " ".join(re.sub(r"<[^>]*>", " ", equation).split()) == "6 raw = 3 rows + 1 pending + 2 rejected"
        assert "<pre>SELECT raw_distinct</pre>" in text

    def test_corrections_mark_the_fields_that_changed_and_leave_out_the_others(self):
        text = self.text(corrections=[self.CHANGED, self.ADDED])

        assert '<div class="changed">nickname: 저녁</div>' in text
        assert '<div class="changed">nickname: 아침</div>' in text
        assert "title:" not in text
        assert '<td class="value">no row</td>' in text
        assert "<div>city: null</div>" in text

    def test_history_says_who_moved_the_day_from_where_to_where_and_why(self):
        text = self.text(history=[self.MOVED])

        assert "<td>generation 12</td><td>the stream&#39;s rows</td>" in text
        assert 'href="../../../dags/undo_day/runs/manual__1"' in text
        assert "operator" in text
        assert "&lt;wrong&gt;" in text

    EARLIER = dataclasses.replace(BUILT, generation_id=11, status="superseded", is_shown=False)
    DISCARDED = dataclasses.replace(BUILT, generation_id=10, status="discarded", is_shown=False)

    def test_two_generations_that_are_kept_are_compared(self):
        asked = []

        def difference(_, day, from_id, to_id):
            asked.append((str(day), from_id, to_id))
            row = Changed("changed", 7, {"title": "<a>", "phone": "(hidden)"}, {"title": "b", "phone": "(hidden)"},
                          ["title"])  # fmt: skip
            return Difference(from_id, to_id, {"changed": 1200, "added": 3}, [row])

        text = self.text(
            "/board_detail/days/2026-11-20?from=11&to=12", kept=[self.EARLIER, self.DISCARDED], difference=difference
        )

        assert asked == [("2026-11-20", 11, 12)]
        assert "Difference of generations 11 and 12" in text
        assert "3 added, 1,200 changed." in text
        assert '<div class="changed">title: &lt;a&gt;</div>' in text
        assert "phone:" not in text
        assert "<option selected>11</option>" in text
        assert "<option>10</option>" not in text

    @pytest.mark.parametrize("query", ["from=11&to=10", "from=11", "from=x&to=12", "from=11&to=99999999999999999999"])
    def test_others_are_refused_and_not_read(self, query):
        text = self.text(f"/board_detail/days/2026-11-20?{query}", kept=[self.EARLIER, self.DISCARDED])

        assert "Only generations whose rows are kept can be compared." in text

    def test_a_comparison_that_takes_too_long_leaves_the_day_shown(self):
        def difference(*_):
            raise DatabaseUnavailable(host="db.internal") from QueryCanceled()

        text = self.text("/board_detail/days/2026-11-20?from=11&to=12", kept=[self.EARLIER], difference=difference)

        assert "The query exceeded its time limit and was cancelled." in text
        assert "abcdef012345" in text

    def test_a_build_that_waits_has_a_place_that_the_browser_fills(self):
        assert re.search(r'<section id="approvals" data-day="2026-11-20"[^>]* hidden>', self.text())

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

        answer = client(None, day=read).get("/board_detail/days/2026-11-20")

        assert answer.status_code == 503
        assert "The database does not answer." in answer.text
        assert "db.internal" not in answer.text


class TestWaitingDays:
    def test_more_days_than_a_night_takes_are_told_with_how_many_it_takes(self):
        state = dataclasses.replace(WELL, waiting_days=1004)
        text = page(day_status("2026-11-20"), state=state).get("/board_detail/state").text
        assert "Days that wait for a rebuild: 1,004. A night takes 100 at most, the soonest to expire first." in text

    @pytest.mark.parametrize("count", [0, None])
    def test_nothing_is_said_of_none_or_if_that_is_not_known(self, count):
        state = dataclasses.replace(WELL, waiting_days=count)
        assert "Days that wait" not in page(day_status("2026-11-20"), state=state).get("/board_detail/state").text


class TestPipelines:
    @pytest.fixture(autouse=True)
    def pipelines(self, monkeypatch):
        monkeypatch.setenv("PIPELINES", "board_detail,order_detail")

    @pytest.fixture
    def pages(self):
        """The pages; each has a day whose count of rows says which database it is from."""
        counts = {"pipeline": 111, "orders": 222}

        def read(settings):
            status = day_status("2026-11-20", row_count=counts[settings.database.name], live_row_count=0)
            return select_rows([status], WINDOW, "night")

        return client(read)

    @pytest.mark.parametrize(
        ("path", "shown", "hidden"),
        [
            ("/", ["Integrity: board_detail", ">111<", "joined with member", "its created_at in Asia/Seoul"],
             [">222<", "customer"]),
            ("/order_detail/", ["Integrity: order_detail", ">222<", "joined with customer",
                                "its ordered_at in America/New_York"], [">111<", "member"]),
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
        targets = {
            address.join(each).path for each in re.findall(r'(?:href|data-(?:api|dags|days|source))="([^"]+)"', text)
        }
        pipeline = suffix.removeprefix("_") or "board_detail"

        assert targets == {
            "/base/integrity/",
            "/base/integrity/order_detail/",
            f"/base/dags/nightly_rebuild{suffix}",
            f"/base/dags/rebuild_day{suffix}",
            f"/base/dags/reprocess_days{suffix}",
            f"/base/dags/undo_day{suffix}",
            f"/base/integrity/{pipeline}/",
            f"/base/integrity/{pipeline}/find",
            f"/base/integrity/{pipeline}/state",
            f"/base/integrity/{pipeline}/days/",
            f"/base/integrity/{pipeline}/days/2026-11-20",
            str(address.path),  # the other language
            "/base/api/v2/",
            "/base/dags/",
        }
        assert re.findall(r'data-dag="([^"]+)"', text) == [f"reprocess_days{suffix}"]

    def test_marks_the_page_that_is_shown(self, pages):
        for path, name in (("/", "board_detail"), ("/order_detail/", "order_detail")):
            assert re.findall(r'aria-current="page">([\w ]+)<', pages.get(path).text) == [name, "All days"]

    def test_a_single_pipeline_has_no_links_to_others(self):
        settings = partial(Settings.from_environment, LEAST)
        alone = create_app(
            lambda: None, ["board_detail"], settings, Sources(lambda _: [], lambda _: WELL, None, None, None)
        )

        assert 'aria-label="Pipelines"' not in TestClient(alone).get("/").text

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
