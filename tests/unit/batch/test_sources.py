"""The ranges that a rebuild reads. A day that the topic may no longer have is refused, not rebuilt from the rest."""

import datetime as dt

import pytest

from include.contracts.day import Day
from include.contracts.errors import MissingRange
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from spark_jobs.batch.sources import (
    MARGIN,
    MAX_SPLIT,
    Known,
    Taken,
    fix_ranges,
    refuse_lost_day,
    refuse_lost_range,
    splits_of,
    topic_sources,
)
from spark_jobs.connectors.splits import TopicSplit
from tests.support.messages import LOG_BEGINS_LATER, RECORD_IS_GONE, TAKEN_IS_GONE

DAY = Day.parse("2026-11-01", "Asia/Seoul")
INSIDE = DAY.start + dt.timedelta(days=14)
SECOND = dt.timedelta(seconds=1)
PAST = INSIDE + SECOND
NOTHING = Known()


class Log:
    """Topics of these partitions: first offset, offset at any instant, end."""

    def __init__(self, partitions, first_at=None):
        self._partitions = partitions
        self.first_at = first_at
        self.asked = []

    def first_times(self, topic):
        return {} if self.first_at is None else dict.fromkeys(self._partitions, self.first_at)

    def earliest(self, topic):
        return {partition: first for partition, (first, _, _) in self._partitions.items()}

    def since(self, topic, instant):
        self.asked.append((topic, instant))
        return {partition: at for partition, (_, at, _) in self._partitions.items()}

    def available(self, topic):
        return OffsetRange(self.earliest(topic), self.ends(topic))

    def ends(self, topic):
        return {partition: end for partition, (_, _, end) in self._partitions.items()}


def refuse(log, now=INSIDE, known=NOTHING, begins=None):
    refuse_lost_day(log, DAY, PIPELINE, 14, now, known, begins or {})


def test_past_the_window_a_topic_that_dropped_records_is_refused():
    with pytest.raises(MissingRange, match=r"keeps 14 days.*day=2026-11-01"):
        refuse(Log({0: (0, 0, 0), 1: (500, 0, 0)}), PAST)


def test_a_topic_that_never_dropped_anything_has_every_day():
    for now in (INSIDE, PAST):
        refuse(Log({0: (0, 0, 0), 1: (0, 0, 0)}), now)


@pytest.mark.parametrize(
    ("first_at", "reason"),
    [
        (DAY.start, None),
        (DAY.start + SECOND, LOG_BEGINS_LATER),
        (None, f"{LOG_BEGINS_LATER}, at no record"),
    ],
)
def test_inside_the_window_a_log_that_was_cut_must_begin_before_the_day(first_at, reason):
    assert refused(Log({0: (500, 0, 900)}, first_at)) == reason


@pytest.mark.parametrize(
    ("known", "begins", "reason"),
    [
        (Known({0: 500}), {}, None),
        (Known({0: 499}), {}, f"{RECORD_IS_GONE} 499"),
        (Known({1: 3}), {}, None),
        (Known(taken={0: Taken(500, DAY.start)}), {}, None),
        (Known(taken={0: Taken(499, DAY.start)}), {}, f"{TAKEN_IS_GONE} 499"),
        (Known(taken={0: Taken(499, DAY.end + MARGIN)}), {}, None),  # what came then is of later days
        (Known(), {0: 500}, None),
        (Known(), {0: 499}, "the day begins at offset 499 in the archive"),
    ],
)
def test_what_is_known_of_a_day_must_still_be_in_the_log(known, begins, reason):
    assert refused(Log({0: (500, 0, 900)}, DAY.start - SECOND), known, begins) == reason


def test_the_archive_knows_that_a_partition_was_quiet_until_after_the_days_start():
    assert refused(Log({0: (500, 0, 900)}, DAY.end), begins={0: 500}) is None


def refused(log, known=NOTHING, begins=None):
    """Why the topic does not have the day; None when it has it."""
    try:
        refuse(log, INSIDE, known, begins)
    except MissingRange as missing:
        reason, rest = str(missing).split("; the rest of the day is not built ")
        assert rest == f"(topic=board, day={DAY}, first_offsets={{0: 500}})"
        return reason.removesuffix(f", at {log.first_at}").partition(", and")[0]
    return None


def test_boards_and_details_are_read_from_a_day_before_and_members_whole():
    log = Log({0: (3, 40, 90)})
    found = topic_sources(fix_ranges(log, DAY, PIPELINE), PIPELINE)
    assert found.stream == (TopicSplit("board", 0, 40, 90),)
    assert found.output == (TopicSplit("board-detail", 0, 40, 90),)
    assert found.table == (TopicSplit("member", 0, 3, 90),)
    assert found.cut == {"board": {0: 90}, "member": {0: 90}}
    assert set(log.asked) == {(name, DAY.start - dt.timedelta(days=1)) for name in ("board", "board-detail")}
    assert found.records == 50 + 50 + 87


def test_a_board_whose_clock_was_days_ahead_is_read_where_it_is_known_to_be():
    log = Log({0: (3, 40, 90), 1: (3, 40, 90)})
    ranges = fix_ranges(log, DAY, PIPELINE, Known(stream={0: 17, 1: 60}, output={1: 1}))
    assert ranges.stream[0] == {0: 17, 1: 40}
    assert ranges.output[0] == {0: 40, 1: 3}  # what is gone is not asked for
    assert ranges.table[0] == {0: 3, 1: 3}


def test_details_that_were_made_from_a_topic_that_is_gone_are_not_read():
    log = Log({0: (3, 40, 90), 1: (3, 40, 90)})
    assert fix_ranges(log, DAY, PIPELINE, Known(replaced={0: 60, 1: 20})).output == ({0: 60, 1: 40}, {0: 90, 1: 90})


def test_a_long_range_is_read_in_pieces_without_gap_or_overlap():
    end = 3 * MAX_SPLIT + 7
    splits = splits_of("board", {0: 5, 1: 9}, {0: end, 1: 9})
    assert len(splits) == 4
    assert splits[0].start == 5
    assert splits[-1].end == end
    assert all(split.end - split.start <= MAX_SPLIT for split in splits)
    assert [split.end for split in splits[:-1]] == [split.start for split in splits[1:]]


def test_a_range_that_retention_overtook_is_named():
    found = topic_sources(fix_ranges(Log({0: (3, 40, 90)}), DAY, PIPELINE), PIPELINE)
    refuse_lost_range(Log({0: (3, 0, 0)}), found)
    with pytest.raises(MissingRange, match=r"topic=member, partition=0, wanted=3, first=4"):
        refuse_lost_range(Log({0: (4, 0, 0)}), found)
