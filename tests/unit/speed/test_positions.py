"""The offsets at which a query begins, given the ledger and the topic; refused ledgers and their repairs."""

import datetime as dt

import pytest

from include.contracts.day import Day
from include.contracts.errors import LedgerBeyondEnd, RangeExpired, TopicReplaced
from include.database.offset_ledger import Entry
from spark_jobs.repair import Finding, table_lines
from spark_jobs.speed.positions import compared, raise_on_mismatch, refuse_replaced
from tests.support.messages import LEDGER_AND_TOPIC, REPAIR

NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
LATER = NOON + dt.timedelta(hours=1)


def ledger(places, topic_id="now", at=NOON):
    return [Entry(topic_id, partition, offset, at) for partition, offset in places.items()]


def position(entries, first, ends, **committed):
    return compared("serve", "board-detail", entries, "now", first, ends, **committed)


def test_a_consumer_that_never_read_the_topic_begins_at_its_first_records():
    found = position([], {0: 5, 1: 0}, {0: 9, 1: 0})
    assert (found.start, found.mismatches) == ({0: 5, 1: 0}, [])


@pytest.mark.parametrize("at", [5, 7, 9])
def test_within_the_topic_the_ledger_decides(at):
    found = position(ledger({0: at, 1: 3}), {0: 5, 1: 0}, {0: 9, 1: 3})
    assert (found.start, found.mismatches) == ({0: at, 1: 3}, [])


def test_a_group_that_has_committed_later_offsets_is_compared():
    entries, first, ends = ledger({0: 3, 1: 5}), {0: 5, 1: 0}, {0: 9, 1: 6}
    found = position(entries, first, ends, committed={0: 8, 1: 4})
    assert (found.start, found.mismatches, found.entries) == ({0: 8, 1: 5}, [], entries)
    (mismatch,) = position(entries, first, ends, committed={0: 10}).mismatches
    assert (mismatch.error, mismatch.partition, mismatch.at) == (LedgerBeyondEnd, 0, 10)


def test_a_lost_ledger_begins_at_the_first_records_whatever_a_group_has_committed():
    found = position([], {0: 5, 1: 0, 2: 3}, {0: 9, 1: 6, 2: 4}, committed={0: 8, 1: 4})
    assert (found.start, found.mismatches) == ({0: 5, 1: 0, 2: 3}, [])
    added = position(ledger({0: 7}), {0: 5, 1: 2}, {0: 9, 1: 4}, committed={0: 8, 1: 4})
    assert (added.start[1], added.mismatches) == (2, [])
    for committed, error in (({0: 10}, LedgerBeyondEnd), ({0: 4}, RangeExpired)):
        (mismatch,) = position([], {0: 5}, {0: 9}, committed=committed).mismatches
        assert (mismatch.error, mismatch.at) == (error, committed[0])


def test_an_added_partition_begins_at_its_beginning():
    found = position(ledger({0: 7}), {0: 5, 1: 0}, {0: 9, 1: 4})
    assert (found.start, found.mismatches) == ({0: 7, 1: 0}, [])


def test_an_added_partition_that_dropped_records_already_is_refused():
    (mismatch,) = position(ledger({0: 7}), {0: 5, 1: 2}, {0: 9, 1: 4}).mismatches
    assert (mismatch.error, mismatch.partition, mismatch.at, mismatch.lost, mismatch.first) == (
        RangeExpired,
        1,
        None,
        2,
        2,
    )


def test_what_retention_took_is_counted_for_each_partition():
    found = position(ledger({0: 3, 1: 0, 2: 8}), {0: 5, 1: 100, 2: 8}, {0: 9, 1: 100, 2: 8})
    assert [(m.error, m.partition, m.lost) for m in found.mismatches] == [(RangeExpired, 0, 2), (RangeExpired, 1, 100)]
    with pytest.raises(RangeExpired) as refused:
        raise_on_mismatch(found)
    assert str(refused.value) == (
        "Retention removed records that were not taken yet: partition 0: the ledger is at 3, the topic holds 5 to 9, 2 "
        "records lost; partition 1: the ledger is at 0, the topic holds 100 to 100, 100 records lost. Stop the stream, "
        "check with `pipeline stream repair --consumer serve --dry-run`, then repair with "
        "`pipeline stream repair --consumer serve` (consumer=serve, topic=board-detail)"
    )


def test_a_ledger_beyond_the_end_is_refused_and_nobody_knows_what_was_lost():
    found = position(ledger({0: 10, 1: 3}), {0: 5, 1: 0}, {0: 9, 1: 3})
    assert [(m.error, m.partition, m.lost) for m in found.mismatches] == [(LedgerBeyondEnd, 0, None)]
    with pytest.raises(LedgerBeyondEnd, match=LEDGER_AND_TOPIC.format(0, 10, 5, 9)):
        raise_on_mismatch(found)


def test_a_partition_that_is_gone_holds_nothing():
    found = position(ledger({0: 7, 1: 3}), {0: 5}, {0: 9})
    assert [(m.error, m.partition, m.first, m.end) for m in found.mismatches] == [(LedgerBeyondEnd, 1, 0, 0)]
    assert position(ledger({0: 7, 1: 0}), {0: 5}, {0: 9}).start == {0: 7}


def test_a_topic_made_again_is_refused_whatever_its_offsets_are():
    found = position(ledger({0: 7}, topic_id="before"), {0: 0, 1: 0}, {0: 100, 1: 0})
    assert [(m.error, m.partition, m.topic_id, m.at) for m in found.mismatches] == [
        (TopicReplaced, 0, "before", 7),
        (TopicReplaced, 1, "now", None),
    ]
    with pytest.raises(TopicReplaced, match=f"recreated.*{REPAIR.format('serve')}"):
        raise_on_mismatch(found)


def test_of_several_replaced_topics_the_last_one_counts():
    entries = ledger({0: 7}, topic_id="first") + ledger({0: 4}, topic_id="second", at=LATER)
    (mismatch,) = position(entries, {0: 0}, {0: 1}).mismatches
    assert (mismatch.topic_id, mismatch.at) == ("second", 4)


def test_entries_of_replaced_topics_say_nothing_once_this_topic_has_its_own():
    entries = ledger({0: 700}, topic_id="before", at=LATER) + ledger({0: 4})
    found = position(entries, {0: 0}, {0: 5})
    assert (found.start, found.mismatches) == ({0: 4}, [])


def test_the_error_is_of_the_severest_mismatch_and_its_message_names_all():
    found = position(ledger({0: 1, 1: 100}), {0: 2, 1: 0}, {0: 5, 1: 5})
    with pytest.raises(
        LedgerBeyondEnd, match=f"partition 0: .* 1 records lost; {LEDGER_AND_TOPIC.format(1, 100, 0, 5)}"
    ):
        raise_on_mismatch(found)


def test_nothing_is_refused_when_all_fits():
    raise_on_mismatch(position(ledger({0: 5}), {0: 5}, {0: 5}))


class Topics:
    def topic_id(self, topic):
        assert topic == "board"
        return "now"


def test_a_topic_that_is_replaced_while_it_is_read_is_noticed():
    refuse_replaced(Topics(), "join", "board", "now")
    with pytest.raises(TopicReplaced, match=f"{REPAIR.format('join')}.*was=before, present=now"):
        refuse_replaced(Topics(), "join", "board", "before")


def test_the_table_shows_what_would_be_moved_and_lost():
    found = position(ledger({0: 3, 1: 0}), {0: 5, 1: 100}, {0: 9, 1: 100})
    days = (Day.parse("2026-11-18", "Asia/Seoul"), Day.parse("2026-11-20", "Asia/Seoul"))
    lines = list(table_lines([(found, [Finding(found.mismatches[0], days), Finding(found.mismatches[1], None)])]))
    assert lines == [
        "query  topic         partition  problem       ledger  first  end  move to  lost  days",
        "serve  board-detail  0          RangeExpired  3       5      9    5        2     2026-11-18 to 2026-11-20",
        "serve  board-detail  1          RangeExpired  0       100    100  100      100   unknown",
    ]
