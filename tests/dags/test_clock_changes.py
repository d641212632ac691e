"""The night in every time zone, over every change of its clock: each date has one run, after the date is over.

And backfills: the dates that a person chose, in whatever zone the page showed them.
"""

import datetime as dt
from functools import cache
from types import SimpleNamespace
from zoneinfo import ZoneInfo, available_timezones

import pendulum
import pytest

from include.contracts.day import Day

FIRST, LAST = dt.date(2026, 1, 1), dt.date(2031, 1, 1)
NEAR = range(-3, 4)  # days around a change


@pytest.fixture(autouse=True)
def over(monkeypatch):
    """All dates of the tests are over."""
    clock = SimpleNamespace(now=lambda: dt.datetime.combine(LAST, dt.time(), dt.UTC) + dt.timedelta(days=90))
    monkeypatch.setattr("include.airflow_support.timetable.SystemClock", lambda: clock)


def changes(zone):
    """The dates on which the zone's offset from UTC changes."""
    found, at, before = [], dt.datetime.combine(FIRST, dt.time(), dt.UTC), None
    while at.date() < LAST:
        offset = at.astimezone(ZoneInfo(zone)).utcoffset()
        if before is not None and offset != before:
            found.append(at.date())
        at, before = at + dt.timedelta(days=1), offset
    return tuple(found)


@cache
def distinct_zones():
    """A zone for each set of changes and offset there is, with its changes."""
    found = {}
    for zone in sorted(available_timezones()):
        offset = dt.datetime.combine(FIRST, dt.time(), ZoneInfo(zone)).utcoffset()
        found.setdefault((offset, changes(zone)), zone)
    return [(zone, dates) for (_, dates), zone in found.items()]


@pytest.fixture(scope="module")
def timetable_of(dag_bag):
    """The nightly DAG's own timetable, as the scheduler has it, in another zone."""
    from airflow.serialization.serialized_objects import DagSerialization

    own = DagSerialization.from_dict(DagSerialization.to_dict(dag_bag.dags["nightly_rebuild"])).timetable
    return lambda zone: type(own).deserialize(own.serialize() | {"timezone": zone})


def runs_from(timetable, date, count):
    """The runs that a scheduler makes one after the other, the first at that date or later."""
    from airflow.timetables.base import TimeRestriction

    earliest = pendulum.datetime(date.year, date.month, date.day, tz="UTC")
    restriction = TimeRestriction(earliest=earliest, latest=None, catchup=True)
    runs = [timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=restriction)]
    while len(runs) < count:
        runs.append(timetable.next_dagrun_info_v2(last_dagrun_info=runs[-1], restriction=restriction))
    return runs


def test_every_date_has_one_run_which_starts_when_the_date_is_over(timetable_of):
    zones = distinct_zones()
    assert sum(bool(dates) for _, dates in zones) > 20  # the zone database is there, and has changes
    for zone, dates in zones:
        timetable = timetable_of(zone)
        for change in dates or (FIRST,):
            runs = runs_from(timetable, change + dt.timedelta(days=NEAR.start), len(NEAR))

            days = [Day.parse(run.partition_key, zone) for run in runs]
            assert [day.date for day in days] == [days[0].date + dt.timedelta(days=n) for n in range(len(days))], zone
            for day, run in zip(days, runs, strict=True):
                day.require_over(run.run_after)
                assert run.partition_date == day.start, zone


def test_a_backfill_of_one_date_has_its_run_alone(timetable_of):
    for zone, dates in distinct_zones():
        timetable = timetable_of(zone)
        for date in (change + dt.timedelta(days=near) for change in dates or (FIRST,) for near in NEAR):
            first = dt.datetime.combine(date, dt.time(), dt.UTC)
            infos = timetable.iter_partition_dagrun_infos(
                earliest=first, latest=first + dt.timedelta(hours=23, minutes=59, seconds=59)
            )

            assert [info.partition_key for info in infos] == [str(date)], zone


def bounds(zone, first, last):
    """The bounds that the form sends when it shows the zone: as it makes them of two dates, with and without times.

    Of a time that a change of the clock leaves out or repeats it may take either.
    """
    midnight, minute, end = dt.time(), dt.time(23, 59), dt.time(23, 59, 59, 999000)
    return [
        tuple(dt.datetime.combine(date, time, ZoneInfo(zone)).replace(fold=fold).astimezone(dt.UTC)
              for date, time in ((first, midnight), (last, to)))
        for to in (midnight, minute, end) for fold in (0, 1)
    ]  # fmt: skip


def dates_of(timetable, earliest, latest):
    return [info.partition_key for info in timetable.iter_partition_dagrun_infos(earliest=earliest, latest=latest)]


def days_from(first, count):
    return [str(first + dt.timedelta(days=n)) for n in range(count)]


def is_read_by_all(zone):
    return all(
        dt.timedelta(hours=-11) < dt.datetime.combine(date, dt.time(12), ZoneInfo(zone)).utcoffset()
        <= dt.timedelta(hours=13)
        for date in (FIRST, dt.date(2026, 7, 1))
    )  # fmt: skip


@pytest.mark.parametrize("pipelines", ["Asia/Seoul", "America/New_York", "Pacific/Auckland", "UTC"])
def test_a_backfill_has_the_dates_that_a_person_chose_in_the_zone_of_the_page(timetable_of, pipelines):
    timetable, looked = timetable_of(pipelines), 0
    for shown, dates in distinct_zones():
        if not is_read_by_all(shown):
            continue
        looked += 1
        for date in (change + dt.timedelta(days=near) for change in dates[:4] or (FIRST,) for near in NEAR):
            for count in (1, 3):
                last = date + dt.timedelta(days=count - 1)
                for earliest, latest in bounds(shown, date, last):
                    assert dates_of(timetable, earliest, latest) == days_from(date, count), (shown, earliest, latest)
    assert looked > 50


def test_zones_at_the_date_line_are_the_only_ones_that_are_read_wrongly():
    assert {zone for zone in available_timezones() if zone.startswith("Pacific/") and not is_read_by_all(zone)} == {
        f"Pacific/{name}" for name in ("Chatham", "Kiritimati", "Midway", "Niue", "Pago_Pago", "Samoa")
    }


def test_a_backfill_in_the_pipelines_own_zone_and_by_the_command_line_has_its_dates_everywhere(timetable_of):
    for zone, dates in distinct_zones():
        timetable = timetable_of(zone)
        for date in (change + dt.timedelta(days=near) for change in dates[:4] or (FIRST,) for near in NEAR):
            for shown in (zone, "UTC"):
                for earliest, latest in bounds(shown, date, date):
                    assert dates_of(timetable, earliest, latest) == [str(date)], (zone, shown, earliest, latest)


def test_runs_of_a_backfill_are_those_of_the_nights(timetable_of):
    for zone, dates in distinct_zones():
        timetable = timetable_of(zone)
        for change in dates or (FIRST,):
            nights = runs_from(timetable, change + dt.timedelta(days=NEAR.start), len(NEAR))
            first, last = (dt.date.fromisoformat(night.partition_key) for night in (nights[0], nights[-1]))
            midnights = [dt.datetime.combine(date, dt.time(), dt.UTC) for date in (first, last)]
            runs = list(timetable.iter_partition_dagrun_infos(earliest=midnights[0], latest=midnights[1]))

            assert [(run.partition_key, run.partition_date) for run in runs] == [
                (night.partition_key, night.partition_date) for night in nights
            ], zone
            for run, night in zip(runs, nights, strict=True):
                day = Day.parse(run.partition_key, zone)
                day.require_over(run.run_after)
                assert run.run_after <= night.run_after
                # as Airflow looks for the runs of a date
                window = [timetable.localize_partition_datetime(dt.datetime.combine(date, dt.time()))
                          for date in (day.date, day.date + dt.timedelta(days=1))]  # fmt: skip
                assert window[0] <= run.partition_date < window[1], zone


@pytest.mark.parametrize("is_backwards", [False, True])
def test_a_backfill_goes_forwards_or_backwards(dag_bag, is_backwards):
    from airflow.models.backfill import _get_info_list
    from airflow.serialization.serialized_objects import DagSerialization

    dag = DagSerialization.from_dict(DagSerialization.to_dict(dag_bag.dags["nightly_rebuild"]))
    ((earliest, latest), *_) = bounds("America/New_York", dt.date(2026, 10, 31), dt.date(2026, 11, 2))
    infos = _get_info_list(dag=dag, from_date=earliest, to_date=latest, reverse=is_backwards)

    keys = [info.partition_key for info in infos]
    assert (keys[::-1] if is_backwards else keys) == ["2026-10-31", "2026-11-01", "2026-11-02"]
