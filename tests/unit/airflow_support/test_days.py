"""The days that a person may request, with the 21st as today and 14 days in the topics."""

import datetime as dt

import pytest

from include.contracts.day import DayNotOver
from include.integrity.days.due_days import DayChoiceError, Window, days_between
from tests.support.messages import DAY_NOT_OVER, WRONG_YEAR

ZONE = "Asia/Seoul"
NOON = dt.time(3, tzinfo=dt.UTC)  # in that zone


def window(today: dt.date) -> Window:
    return Window(dt.datetime.combine(today, NOON), ZONE, 14)


TODAY = dt.date(2026, 11, 21)
OLDEST, NEWEST = "2026-11-08", "2026-11-20"


def choose(first: str, last: str) -> list[str]:
    return days_between(first, last, window(TODAY))


def test_both_ends_are_included_and_the_oldest_comes_first():
    assert choose("2026-11-18", "2026-11-20") == ["2026-11-18", "2026-11-19", "2026-11-20"]


def test_one_day():
    assert choose(NEWEST, NEWEST) == [NEWEST]


def test_the_whole_window_can_be_asked_for():
    days = choose(OLDEST, NEWEST)

    assert (days[0], days[-1], len(days)) == (OLDEST, NEWEST, 13)


def test_days_pass_the_end_of_a_month_and_of_a_year():
    assert days_between("2026-12-31", "2027-01-01", window(dt.date(2027, 1, 2))) == ["2026-12-31", "2027-01-01"]


@pytest.mark.parametrize(
    ("first", "last", "field", "remedy"),
    [
        ("2026-11-07", NEWEST, "from=2026-11-07", f"oldest day that can be rebuilt is {OLDEST}"),
        (NEWEST, "2026-11-21", "to=2026-11-21", f"{DAY_NOT_OVER.format(ZONE)} 2026-11-21T15:00:00Z; wait until then"),
        (NEWEST, "2027-01-01", "to=2027-01-01", f"{DAY_NOT_OVER.format(ZONE)} 2027-01-01T15:00:00Z; wait until then"),
        ("2026-11-20", "2026-11-19", "from=2026-11-20", "swap them"),
        ("20.11.2026", NEWEST, "from='20.11.2026'", "YYYY-MM-DD"),
        (NEWEST, "2026-11-31", "to='2026-11-31'", "YYYY-MM-DD"),
        (NEWEST, "", "to=''", "YYYY-MM-DD"),
        (NEWEST, "9999-12-31", "to='9999-12-31'", WRONG_YEAR),
        ("0001-01-01", NEWEST, "from='0001-01-01'", WRONG_YEAR),
    ],
)
def test_refusal_names_the_field_and_the_remedy(first, last, field, remedy):
    with pytest.raises((DayChoiceError, DayNotOver)) as refusal:
        choose(first, last)

    assert field in str(refusal.value)
    assert remedy in str(refusal.value)


def test_with_an_archive_of_all_days_no_more_are_built_than_airflow_can_map():
    archived = Window(dt.datetime.combine(TODAY, NOON), ZONE, 14, dt.date.min)
    assert len(days_between("2024-02-25", NEWEST, archived)) == 1000
    with pytest.raises(DayChoiceError, match=r"from=2016-11-20 to=2026-11-20: 3,653 days; ask for 1,000 days at most"):
        days_between("2016-11-20", NEWEST, archived)


def test_before_the_first_archive_nobody_says_that_the_topics_no_longer_hold_a_day():
    young = Window(dt.datetime.combine(TODAY, NOON), ZONE, 14, is_young=True)
    with pytest.raises(DayChoiceError, match="first run, tonight or `pipeline archive day`, finds earlier ones"):
        days_between("2020-01-01", NEWEST, young)
