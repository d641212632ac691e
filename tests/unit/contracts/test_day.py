"""Day: half-open, in a zone, 23 to 25 hours long."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.day import Day, DayFormatError, DayNotOver

ZONES = st.sampled_from(["Asia/Seoul", "UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "America/Sao_Paulo"])


def test_a_day_in_seoul_starts_at_15_utc_the_day_before():
    day = Day.parse("2026-11-20", "Asia/Seoul")
    assert day.start == dt.datetime(2026, 11, 19, 15, tzinfo=dt.UTC)
    assert day.end == dt.datetime(2026, 11, 20, 15, tzinfo=dt.UTC)


@pytest.mark.parametrize(("text", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_a_day_has_the_hours_that_the_clock_change_leaves(text, hours):
    day = Day.parse(text, "Europe/Berlin")
    assert day.end - day.start == dt.timedelta(hours=hours)


INSTANTS = st.integers(600_000_000, 2_200_000_000).map(lambda s: dt.datetime.fromtimestamp(s, dt.UTC))


@given(INSTANTS, ZONES)
def test_every_instant_lies_in_its_day_and_in_no_other(instant, zone):
    day = Day.of(instant, zone)
    assert day.start <= instant < day.end
    assert not day.before().start <= instant < day.before().end


@pytest.mark.parametrize(
    "text", ["2026-02-30", "20261120", "2026-W47-5", "yesterday", "2026-11-20T00:00", "２０２６-11-20"]
)
def test_what_is_no_date_is_refused_with_the_form(text):
    with pytest.raises(DayFormatError, match="YYYY-MM-DD"):
        Day.parse(text, "Asia/Seoul")


def test_a_naive_instant_has_no_day():
    with pytest.raises(ValueError, match="naive"):
        Day.of(dt.datetime(2026, 11, 20), "Asia/Seoul")  # noqa: DTZ001 - that is the point


@given(INSTANTS, ZONES)
def test_a_day_is_over_from_its_end_on_and_not_before(instant, zone):
    day = Day.of(instant, zone)
    day.require_over(day.end)
    day.before().require_over(instant)
    with pytest.raises(DayNotOver, match=f"day={day}: .* {zone} before {day.end:%Y-%m-%dT%H:%M:%SZ}; wait"):
        day.require_over(instant)
