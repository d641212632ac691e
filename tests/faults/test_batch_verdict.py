"""The checker is checked: each thing that must not happen is made to happen, and seen. So is the plan."""

import dataclasses
import datetime as dt
import json

import pytest

from include.contracts import headers as h
from include.contracts.day import Day
from include.contracts.pipelines import PIPELINES
from tests.faults.batch_plan import CHEAP, DEAR, LAST, Effect, plans
from tests.faults.batch_verdict import DayRow, DayVerdict, Generation, judge_changes, judge_corrections, judge_rows
from tests.faults.stream_topics import Log, Place, Record
from tests.support.records import content_of, value_of

DAY = Day.parse("2026-11-20", "Asia/Seoul")
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
AT = "2026-11-20T03:00:00.000Z"


@pytest.fixture(scope="module", params=PIPELINES.values(), ids=[*PIPELINES])
def pipeline(request):
    return request.param


def stream_value(pipeline, key, of, number=0, at=AT):
    """A record of the stream that joins the key `of`; it belongs to the day."""
    made = value_of(pipeline.stream, key, number, at)
    return made | {pipeline.join_field: of, pipeline.day_field: AT}


def take(log, topic, key, value, offset, event_id, accepted_at):
    encoded = None if value is None else json.dumps(value).encode()
    headers = {h.EVENT_ID: event_id, h.ACCEPTED_AT: accepted_at}
    log.take(Record(Place(topic.name, 0, offset), str(key).encode(), encoded, headers, NOW))


@pytest.fixture
def log(pipeline):
    found = Log(pipeline)
    values = [
        (pipeline.table, 1, value_of(pipeline.table, 1, at=AT)),
        (pipeline.stream, 10, stream_value(pipeline, 10, 1)),
        (pipeline.stream, 11, stream_value(pipeline, 11, 1)),
        (pipeline.stream, 12, stream_value(pipeline, 12, 2)),  # the table never has its key
        (pipeline.stream, 11, None),
    ]
    for offset, (topic, key, value) in enumerate(values):
        take(found, topic, key, value, offset, str(offset), "2026-11-20T04:00:00.000Z")
    return found


@dataclasses.dataclass(frozen=True)
class Shown:
    """A row of the view, of whichever pipeline the test runs for."""

    key: int = 10
    number: int = 0
    table_number: int = 0
    finality: str = "final"
    at: str = AT

    def row(self, pipeline):
        table = value_of(pipeline.table, 1, self.table_number, AT)
        stream = stream_value(pipeline, self.key, 1, self.number, self.at)
        return DayRow(self.key, content_of(pipeline, "table", table), content_of(pipeline, "stream", stream),
                      self.finality)  # fmt: skip


def shown_rows(pipeline, shown):
    return [each.row(pipeline) for each in shown]


def generation(**changes):
    good = Generation(5, "hash", 2, 1, 1, 0, frozenset({("pending", 12), ("deleted", 11)}), {})
    return dataclasses.replace(good, **changes)


def broken(log, shown, built):
    verdict = DayVerdict()
    judge_rows(DAY, log, shown_rows(log.pipeline, shown), built, verdict)
    return set(verdict.faults)


def test_a_right_day_is_right(log):
    assert broken(log, [Shown()], generation()) == set()


@pytest.mark.parametrize(
    ("shown", "changes", "fault"),
    [
        ([], {"row_count": 0, "raw_distinct": 1}, "lost"),
        ([Shown(), Shown()], {}, "doubled"),
        ([Shown(), Shown(99)], {"row_count": 2, "raw_distinct": 3}, "made_up"),
        ([Shown(number=1)], {}, "wrong_content"),
        ([Shown(table_number=1)], {}, "wrong_content"),
        ([Shown(finality="live")], {}, "not_final"),
        ([Shown()], {"excluded": frozenset({("pending", 12)})}, "excluded_wrong"),
        ([Shown()], {"excluded": frozenset({("pending", 12), ("deleted", 11), ("moved", 10)})}, "excluded_wrong"),
        ([Shown()], {"raw_distinct": 3}, "balance_broken"),
        ([Shown()], {"row_count": 2, "raw_distinct": 3}, "balance_broken"),
    ],
)
def test_what_must_not_happen_is_seen(log, shown, changes, fault):
    assert fault in broken(log, shown, generation(**changes))


@pytest.mark.parametrize(
    ("before", "after", "corrections", "faults"),
    [
        ([Shown()], [Shown()], {}, set()),
        ([], [Shown()], {10: "missing"}, set()),
        ([Shown()], [], {10: "deleted"}, set()),
        ([Shown(finality="live")], [Shown()], {}, set()),
        ([], [Shown()], {}, {"uncorrected"}),
        ([Shown(number=1)], [Shown()], {}, {"uncorrected"}),
        ([Shown()], [Shown()], {10: "missing"}, {"uncorrected"}),
        ([Shown(number=1)], [Shown()], {10: "unexplained"}, {"unexplained"}),
    ],
)
def test_corrections_account_for_every_difference(pipeline, before, after, corrections, faults):
    verdict = DayVerdict()
    before, after = (shown_rows(pipeline, each) for each in (before, after))
    judge_corrections(before, after, generation(corrections=corrections), verdict)
    assert set(verdict.faults) == faults


LATER = "2026-11-20T05:00:00.000Z"
NEW = Shown(11, 1, finality="live", at=LATER)


@pytest.mark.parametrize(
    ("after", "faults"),
    [
        ([Shown(), NEW], set()),
        ([Shown()], {"unseen"}),
        ([Shown(), dataclasses.replace(NEW, number=2)], {"unseen"}),
        ([Shown(table_number=1), NEW], {"changed"}),
        ([NEW], {"changed"}),
        ([Shown(), NEW, Shown(12, finality="live")], {"changed"}),
        ([Shown(), NEW, Shown(13, finality="live")], {"unseen"}),
    ],
)
def test_what_a_topic_made_again_has_is_seen_and_the_rest_stays(log, after, faults):
    pipeline = log.pipeline
    log.replace_stream("former")
    for offset, (key, value) in enumerate([(11, stream_value(pipeline, 11, 1, 1, LATER)), (13, None)]):
        take(log, pipeline.stream, key, value, offset, f"new-{offset}", LATER)
    verdict = DayVerdict()
    judge_changes(DAY, log, shown_rows(pipeline, [Shown()]), shown_rows(pipeline, after), set(), verdict)
    assert set(verdict.faults) == faults


@pytest.mark.parametrize(
    ("after", "faults"),
    [([Shown(), Shown(12, 1, finality="live", at="2026-11-20T02:00:00.000Z")], {"changed"}), ([Shown()], set())],
)
def test_of_a_topic_made_again_an_older_version_is_hidden_while_the_newest_waits(log, after, faults):
    pipeline = log.pipeline
    log.replace_stream("former")
    older = stream_value(pipeline, 12, 1, 1, "2026-11-20T02:00:00.000Z")
    take(log, pipeline.stream, 12, older, 0, "new", LATER)
    verdict = DayVerdict()
    judge_changes(DAY, log, shown_rows(pipeline, [Shown()]), shown_rows(pipeline, after), set(), verdict)
    assert set(verdict.faults) == faults


def test_each_fault_comes_once_in_twenty_rounds_and_at_most_one_a_step():
    planned = list(plans(7, 20))
    assert planned[0] == ()
    assert {(f.step, f.effect, f.place) for plan in planned for f in plan} == {*DEAR, *CHEAP, *LAST}
    assert all(len({fault.step for fault in plan}) == len(plan) for plan in planned)
    assert [len(plan) for plan in planned] == [0, *[3] * 18, 4]


def test_the_same_seed_plans_the_same():
    assert list(plans(3, 9)) == list(plans(3, 9)) != list(plans(4, 9))


def test_named_faults_come_in_each_round_but_the_first():
    assert list(plans(7, 3, "NEVER")) == [(), (), ()]
    assert [[fault.effect for fault in plan] for plan in plans(7, 3, "topic made again")] == [
        [], [Effect.TOPIC_MADE_AGAIN], [Effect.TOPIC_MADE_AGAIN]]  # fmt: skip
