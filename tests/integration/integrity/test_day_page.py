"""The page of a day, read from a real PostgreSQL with the rights of its role."""

import httpx
import psycopg2
import pytest
from fastapi.testclient import TestClient

from include.contracts.day import Day
from include.integrity.comparison import verify
from include.integrity.day_page import load_day
from include.integrity.page import create_app
from include.integrity.publication import undo
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, exclude, opened_store, row, serve


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "day_page", tmp_path)


@pytest.fixture
def day(settings):
    """A day whose rebuild changed a nickname and a phone number, and added a post; certified, then undone."""
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1, nickname="저녁", phone="010-1111-1111"), row(2, 2)])
    finally:
        store.close()
    changed = row(1, 1, nickname="아침", phone="010-2222-2222", table_offset=4)
    generation = build(settings, [changed, row(2, 2), row(3, 3)], cut=9, run_id="night", raw_distinct=4)
    rows(settings, "UPDATE generation SET rejected_count = 1 WHERE id = %s", (generation,))
    exclude(settings, generation, "rejected", board_id=9)
    verify(settings, DAY, "night")
    publish(settings, DAY, "night", made_by="a test", reason="the night")
    return generation


def test_a_day_has_its_balance_corrections_rejects_generations_and_history(settings, day):
    assert certify_alone(settings, DAY).reason is None

    page = load_day(settings, DAY)

    assert page.row.status.status == "certified"
    terms = {term.name: term.value for term in page.terms}
    assert [terms[name] for name in ("raw_distinct", "rows", "pending", "rejected")] == ["4", "3", "0", "1"]
    assert [(each.correction, each.key) for each in page.corrections] == [("member_version_changed", 1), ("missing", 3)]
    assert [(each.kind, each.reason, each.count) for each in page.left_out] == [("rejected", "a test says so", 1)]
    assert [(each.generation_id, each.run_id, each.is_shown) for each in page.generations] == [(day, "night", True)]
    assert [(each.action, each.made_by, each.reason) for each in page.history] == [("publish", "a test", "the night")]


def test_personal_values_are_hidden_and_their_change_is_told(settings, day):
    changed = load_day(settings, DAY).corrections[0]

    assert set(changed.changed) == {"nickname", "phone", "table_offset"}
    assert (changed.before["phone"], changed.after["phone"]) == ("(hidden)", "(hidden)")
    assert (changed.before["nickname"], changed.after["nickname"]) == ("저녁", "아침")
    assert "010-" not in str(rows(settings, "SELECT * FROM day_correction", role="integrity"))


def test_the_role_of_the_page_reads_no_row_itself(settings, day):
    for table in ("detail_correction", "detail_final", "detail_live", "board_detail", "reject"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            rows(settings, f"SELECT * FROM {table}", role="integrity")


def test_without_the_definition_no_correction_is_shown(settings, day):
    rows(settings, "DELETE FROM pipeline_setting WHERE name = 'definition'")

    assert rows(settings, "SELECT count(*) FROM day_correction", role="integrity") == [(0,)]


def test_an_undone_day_shows_the_streams_rows_and_keeps_its_generation(settings, day):
    undo(settings, DAY, reason="wrong", made_by="on-call")

    page = load_day(settings, DAY)

    assert (page.shown, page.terms, page.corrections) == (None, [], [])
    assert [(each.generation_id, each.is_shown) for each in page.generations] == [(day, False)]
    assert [each.action for each in page.history] == ["publish", "undo"]


def test_a_day_of_which_nothing_is_known(settings):
    assert load_day(settings, Day.parse("2020-01-01", "Asia/Seoul")) is None


def test_the_page_shows_it(settings, day):
    app = create_app(lambda: None, ["board_detail"], lambda _: settings, lambda _: [], lambda _: "")
    answer: httpx.Response = TestClient(app).get(f"/board_detail/days/{DAY}")

    assert answer.status_code == 200
    assert "아침" in answer.text
    assert "010-" not in answer.text
