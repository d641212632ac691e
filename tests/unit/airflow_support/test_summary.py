"""The result of a day that a person had rebuilt."""

import pytest

from include.airflow_support.tasks import summary_of

REPORT = {"generation": {"row_count": 3}, "corrections": {"late": 2}}
PUBLISHED = {"generation_id": 7, "covered": 1, "was_identical": False}


@pytest.mark.parametrize(
    ("is_dry_run", "would_ask", "published", "certified", "result"),
    [
        (True, False, None, None, "would be published"),
        (True, True, None, None, "would wait until a person approves it"),
        (False, False, PUBLISHED, {"reason": None}, "published as generation 7"),
        (False, True, PUBLISHED, None, "published as generation 7"),
        (False, False, PUBLISHED | {"was_identical": True}, None, "unchanged: the day shows the same rows already"),
        (False, True, None, None, "not published: a person rejected it, or a task of the day failed"),
    ],
)
def test_counts_and_the_outcome_of_a_day(is_dry_run, would_ask, published, certified, result):
    approval = {"approved_by": None, "seen": None, "would_ask": would_ask}
    found = summary_of("board_detail", "2026-11-20", is_dry_run, REPORT, approval, published, certified)

    assert found.pop("page").endswith("/integrity/board_detail/days/2026-11-20")
    assert found == {"result": result, "certified": certified is not None, "rows": 3, "corrections": {"late": 2}}


def test_a_day_that_was_not_built_says_so_with_its_page():
    found = summary_of("board_detail", "2026-11-20", False, None, None, None, None)

    assert found["result"] == "not built: see the failed task of the day"
    assert found["page"].endswith("/days/2026-11-20")
