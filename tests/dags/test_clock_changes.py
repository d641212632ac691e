"""The night in every time zone, over every change of its clock: each date has one run, after the date is over."""

import datetime as dt
from functools import cache
from types import SimpleNamespace
from zoneinfo import ZoneInfo, available_timezones

import pendulum
import pytest

from include.contracts.day import Day

FIRST, LAST = dt.date(2026, 1, 1), dt.date(2031, 1, 1)
NEAR = range(-3, 4)  # days around a change


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
    from airflow.timetables import trigger

    own = DagSerialization.from_dict(DagSerialization.to_dict(dag_bag.dags["nightly_rebuild"])).timetable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trigger, "log", SimpleNamespace(info=lambda *_, **__: None))  # a line for each step of an offset
        yield lambda zone: type(own).deserialize(own.serialize() | {"timezone": zone})


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


def test_a_backfill_of_one_date_has_its_run_alone(timetable_of):
    for zone, dates in distinct_zones():
        timetable = timetable_of(zone)
        for date in (change + dt.timedelta(days=near) for change in dates or (FIRST,) for near in NEAR):
            first = dt.datetime.combine(date, dt.time(), dt.UTC)
            infos = timetable.iter_partition_dagrun_infos(
                earliest=first, latest=first + dt.timedelta(hours=23, minutes=59, seconds=59)
            )

            assert [info.partition_key for info in infos] == [str(date)], zone
