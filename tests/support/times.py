"""Texts of times as clients write them, right and wrong, each with the result that every reader must give."""

# mypy: disable-error-code="misc"

import datetime as dt
from typing import NamedTuple

from hypothesis import strategies as st

from include.contracts.fields import TIMESTAMP

SECOND_60, OFFSET, DIGITS = (limit.problem for limit in TIMESTAMP.limits)
_EPOCH = dt.date(1970, 1, 1).toordinal()


class Time(NamedTuple):
    """A text, and the instant in microseconds since 1970; None with the problem of a text that is refused."""

    text: str
    microseconds: int | None
    problem: str = ""


def time(
    date: tuple[int, int, int],
    clock: tuple[int, int, int],
    fraction: str = "",
    zone: str = "Z",
    separator: str = "T",
) -> Time:
    """Return the text of these parts, with its result computed from the parts alone.

    `fraction` are the digits behind the point. `zone` is Z, z, empty, or an offset such as +09:00.
    """
    text = "{:04d}-{:02d}-{:02d}".format(*date) + separator + "{:02d}:{:02d}:{:02d}".format(*clock)
    text += f".{fraction}" if fraction else ""
    text += zone
    hour, minute, second = clock
    offset_hours, offset_minutes = (0, 0) if zone in ("Z", "z", "") else (int(zone[1:3]), int(zone[4:6]))
    is_time = (
        1970 <= date[0] <= 2261
        and _exists(*date)
        and separator in ("T", "t")
        and hour < 24 and minute < 60 and second <= 60
        and zone != "" and offset_hours < 24 and offset_minutes < 60
    )  # fmt: skip
    exceeded = [
        problem
        for problem, is_exceeded in (
            (SECOND_60, second == 60),
            (OFFSET, offset_hours * 60 + offset_minutes > 14 * 60),
            (DIGITS, len(fraction) > 9),
        )
        if is_exceeded
    ]
    if not is_time:
        return Time(text, None, TIMESTAMP.problem)
    if exceeded:
        return Time(text, None, exceeded[0])
    east = -1 if zone[0] == "-" else 1
    days = dt.date(*date).toordinal() - _EPOCH
    minutes = (days * 24 + hour) * 60 + minute - east * (offset_hours * 60 + offset_minutes)
    return Time(text, (minutes * 60 + second) * 1_000_000 + int(fraction[:6].ljust(6, "0")))


def _exists(year: int, month: int, day: int) -> bool:
    try:
        dt.date(year, month, day)
    except ValueError:
        return False
    return True


NOON = (2026, 11, 20), (9, 30, 0)
# One text for each rule, then the edges of each part.
WRITTEN = (
    time(*NOON), time(*NOON, separator="t", zone="z"), time(*NOON, zone="z"), time(*NOON, separator="t"),
    *(time(*NOON, "123456789"[:count]) for count in range(1, 10)),
    *(time(*NOON, "9" * count, zone) for count in (6, 7, 9, 10, 30) for zone in ("Z", "z", "+09:00", "-00:00")),
    *(time((1970, 1, 1), (0, 0, 0), fraction, "+14:00") for fraction in ("", "0000009", "000000999", "999999999")),
    time((1970, 1, 1), (0, 0, 0), "", "-14:00"), time((1969, 12, 31), (23, 59, 59), "999999", "-14:00"),
    time((2261, 12, 31), (23, 59, 59), "999999999", "-14:00"), time((2261, 12, 31), (23, 59, 59), "999999999"),
    time((2262, 1, 1), (0, 0, 0), "", "+14:00"), time((2026, 6, 30), (23, 59, 60)),
    time((2026, 6, 30), (23, 59, 60), "5", "z"), time((2026, 6, 30), (23, 59, 60), "1" * 10, "+15:00"),
    time((2026, 6, 30), (23, 59, 61)), time((2026, 6, 31), (23, 59, 60)), time((2026, 2, 30), (0, 0, 0)),
    time((2024, 2, 29), (23, 59, 59)), time((2023, 2, 29), (0, 0, 0)), time(*NOON, separator=" "),
    *(time(*NOON, zone=f"{sign}{zone}") for sign in "+-" for zone in (
        "00:00", "13:59", "14:00", "14:01", "14:59", "15:00", "23:59", "24:00", "09:60")),
    time(*NOON, "1" * 10, "+14:00"), time(*NOON, zone=""), time((2026, 11, 20), (24, 0, 0)),
)  # fmt: skip


@st.composite
def times(draw: st.DrawFn) -> Time:
    """Draw a text: of each part mostly right ones, near the borders, and some wrong ones."""

    def often(right: st.SearchStrategy[int], *odd: int) -> int:
        return draw(st.one_of(right, right, right, right, st.sampled_from(odd)))

    date = (
        often(st.sampled_from([1970, 1971, 2000, 2024, 2026, 2100, 2261]), 0, 1969, 2262, 9999),
        often(st.integers(1, 12), 0, 13),
        often(st.integers(1, 28), 0, 29, 30, 31, 32),
    )
    clock = often(st.integers(0, 23), 24, 25), often(st.integers(0, 59), 60), often(st.integers(0, 59), 60, 60, 61)
    digits = draw(st.one_of(st.integers(0, 9), st.integers(0, 12)))
    fraction = draw(st.text("0123456789", min_size=digits, max_size=digits))
    zone = draw(st.sampled_from(["Z", "Z", "z", "offset", "offset", ""]))
    if zone == "offset":
        sign, hours, minutes = draw(st.sampled_from("+-")), often(st.integers(0, 14), 15, 23, 24, 99), 0
        minutes = often(st.sampled_from([0, 30, 45, 59]), 1, 60, 99)
        zone = f"{sign}{hours:02d}:{minutes:02d}"
    separator = draw(st.sampled_from("TTTt "))
    return time(date, clock, fraction, zone, separator)
