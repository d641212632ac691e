"""Builds the days of a night one after the other in one application, so that Spark starts once.

Each day is a build of its own, as `rebuild_day` makes it; a later run of the day publishes it. Days that are not built
here, because one failed or time was up, are built by their own runs.
"""

import datetime as dt
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from include.contracts.day import Day
from include.contracts.errors import PipelineError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NightBuilt:
    """The days of a job: built, failed, begun by an earlier try of the job, and left for want of time; in its order."""

    built: tuple[Day, ...]
    failed: tuple[Day, ...]
    begun_before: tuple[Day, ...]
    left: tuple[Day, ...]


def build_days(
    days: Iterable[Day], begun: Collection[dt.date], build: Callable[[Day], object], has_time: Callable[[], bool]
) -> NightBuilt:
    """Build the days in the order given as long as there is time, and return what became of each.

    A day that fails is logged, and does not stop the others. A day in `begun`, of an earlier try of this job, is left
    out: it is built already, or it has failed and may have ended the process.
    """
    built: list[Day] = []
    failed: list[Day] = []
    before: list[Day] = []
    left: list[Day] = []
    for day in days:
        if day.date in begun:
            before.append(day)
        elif left or not has_time():  # in order: a later day is never begun before one that was left
            left.append(day)
        else:
            try:
                build(day)
            except PipelineError as exc:
                log.error("day %s is not built here: %s: %s", day, type(exc).__name__, exc)
                failed.append(day)
            except Exception:  # a defect that one day shows must not stop the others
                log.exception("day %s is not built here", day)
                failed.append(day)
            else:
                built.append(day)
    return NightBuilt(tuple(built), tuple(failed), tuple(before), tuple(left))
