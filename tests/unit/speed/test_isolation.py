"""Batches are narrowed down to the records that cannot be taken, over drivers that end, and no further."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts.errors import BrokerUnavailable, DriverFenced, PipelineError, RecordsRefused
from include.contracts.offsets import OffsetRange
from spark_jobs.speed.isolation import MAX_FAILURES, MAX_REJECTED_IN_A_ROW, Isolation, Trial, first_batch
from spark_jobs.speed.pending_store import PendingBatch


class KilledError(BaseException):
    """The process ends: nothing of it goes on."""


class Trials:
    """Keeps the trial over the drivers; the process ends before the saves of these numbers."""

    def __init__(self, unsaved):
        self.saved, self.saves, self.unsaved = None, 0, unsaved

    def load(self):
        return self.saved

    def save(self, trial):
        self.saves += 1
        if self.saves in self.unsaved:
            raise KilledError
        self.saved = trial


class Driver(Trials):
    """Takes the offsets of two partitions once each, but for those that fail or kill."""

    def __init__(self, ends, failing=(), killing=(), ending_the_jvm=(), unsaved=(), most_in_time=10_000):
        super().__init__(unsaved)
        self.most_in_time = most_in_time
        self.ends = ends
        self.failing, self.killing, self.ending_the_jvm = set(failing), set(killing), set(ending_the_jvm)
        self.at = dict.fromkeys(ends, 0)
        self.taken, self.rejects = [], {}
        self.out = False
        self.tries = 0

    def take(self, range_):
        self.tries += 1
        records = [(p, o) for p, end in range_.end.items() for o in range(range_.start.get(p, 0), end)]
        if len(records) > self.most_in_time:
            raise DriverFenced
        if self.killing.intersection(records):
            raise KilledError
        if self.ending_the_jvm.intersection(records):
            raise ConnectionRefusedError("the JVM does not answer")
        if self.failing.intersection(records):
            raise ZeroDivisionError("because of a record")
        self.taken += records
        self.at |= range_.end

    def reject(self, step, reason):
        [(partition, offset)] = [(p, o) for p, end in step.end.items() for o in range(step.start.get(p, 0), end)]
        self.rejects[partition, offset] = reason
        self.at |= step.end

    def probe(self):
        if self.out:
            raise BrokerUnavailable

    def isolation(self):
        return Isolation(
            self,
            self.take,
            self.reject,
            lambda exc: isinstance(exc, PipelineError | ConnectionError),
            self.probe,
            threading.Event(),
        )

    def start(self, most=1_000):
        """A driver that takes what there is, in one batch."""
        isolation = self.isolation()
        batch = first_batch(dict(self.at), self.ends, most)
        taken = isolation.begin(batch)
        if taken is not None:
            assert self.at == taken.end
        rest = OffsetRange(dict(self.at), self.ends)
        if rest.count:
            isolation.run(lambda: self.take(rest), lambda: rest)

    def run_to_the_end(self, most=1_000):
        """Its supervisor starts it again and again."""
        for starts in range(1, 200):
            try:
                self.start(most)
            except (KilledError, ConnectionError, DriverFenced):
                continue
            return starts
        raise AssertionError("it never came to the end")


REASONS = st.sampled_from(["ZeroDivisionError: because", "process ended", "process ended with the JVM"])
# no more than may become rejects in a row: more of them end the driver
BAD = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, 30)), REASONS, max_size=MAX_REJECTED_IN_A_ROW
)  # fmt: skip
UNSAVED = st.sets(st.integers(1, 40), max_size=3)


@given(bad=BAD, most=st.integers(1, 40), unsaved=UNSAVED, most_in_time=st.integers(1, 70))
def test_every_record_is_taken_once_or_is_a_reject(bad, most, unsaved, most_in_time):
    killing = {record for record, reason in bad.items() if reason == "process ended"}
    with_the_jvm = {record for record, reason in bad.items() if reason == "process ended with the JVM"}
    driver = Driver({0: 31, 1: 31}, bad.keys() - killing - with_the_jvm, killing, with_the_jvm, unsaved,
                    most_in_time)  # fmt: skip
    driver.run_to_the_end(most)
    assert driver.rejects.keys() == bad.keys()
    assert sorted([*driver.taken, *bad]) == [(p, o) for p in (0, 1) for o in range(31)]
    assert all(reason.removesuffix(" with the JVM") in driver.rejects[record] for record, reason in bad.items())
    driver.run_to_the_end(most)  # with nothing left
    assert driver.saved.size is None, "a record is suspected still"


def test_a_batch_is_tried_three_times_before_it_is_narrowed_down():
    driver = Driver({0: 1}, failing={(0, 0)})
    driver.start()
    assert driver.rejects == {(0, 0): "ZeroDivisionError: because of a record"}
    assert driver.tries == 4  # the last one takes nothing: is it the record at all?


@given(record=st.integers(0, 4_095))
def test_a_record_that_ends_the_process_ends_few_drivers(record):
    driver = Driver({0: 4_096}, killing={(0, record)})
    ended = driver.run_to_the_end(most=5_000) - 1
    assert set(driver.rejects) == {(0, record)}
    assert ended <= 2 * MAX_FAILURES + 4  # 4,096 records, 512, 64, 8 in a step


@given(record=st.integers(0, 30), grown=st.integers(1, 9))
def test_no_other_record_is_rejected_while_the_topic_grows(record, grown):
    driver = Driver({0: 5, 1: 31}, killing={(1, record)})
    for _ in range(60):
        try:
            driver.start()
        except KilledError:
            driver.ends = driver.ends | {0: driver.ends[0] + grown}  # records that come before the one
            continue
        break
    assert set(driver.rejects) == {(1, record)}


def test_failures_while_a_server_is_out_do_not_count():
    driver = Driver({0: 8}, failing={(0, 3)})
    driver.out = True
    for _ in range(5):
        with pytest.raises(BrokerUnavailable):
            driver.start()
    assert driver.rejects == {}
    driver.out = False
    driver.start()
    assert set(driver.rejects) == {(0, 3)}


def test_one_record_after_the_other_is_no_reject():
    driver = Driver({0: 64}, failing={(0, offset) for offset in range(64)})
    for _ in range(3):  # nor for the next driver
        with pytest.raises(RecordsRefused):
            driver.start()
        assert len(driver.rejects) <= 3 * MAX_REJECTED_IN_A_ROW


def test_what_fails_without_a_record_is_no_reject():
    driver = Driver({0: 4})

    def broken(range_):
        raise ZeroDivisionError

    driver.take = broken
    with pytest.raises(ZeroDivisionError):
        driver.start()
    assert driver.rejects == {}


def test_drivers_that_end_for_another_reason_cost_no_record():
    driver = Driver({0: 1})
    for _ in range(3 * MAX_FAILURES):
        driver.isolation().begin(OffsetRange({0: 0}, {0: 1}))
        if driver.taken:
            break
    assert (driver.taken, driver.rejects) == ([(0, 0)], {})


def test_nothing_there_is_nothing_to_try():
    driver = Driver({0: 0})
    for _ in range(10):
        assert not driver.isolation().begin(OffsetRange({0: 0}, {0: 0}))
    assert driver.saved == Trial({"0": [0, 0]})


def test_drivers_that_came_further_do_not_count():
    driver = Driver({0: 20})
    for at in range(20):
        assert not driver.isolation().begin(OffsetRange({0: at}, {0: 20}))
    assert driver.saved == Trial({"0": [19, 20]}, None, 1)


def test_batches_of_one_record_that_are_handed_over_and_fail_are_no_rejects_for_ever():
    driver = Driver({0: 9}, failing={(0, offset) for offset in range(9)})
    isolation = driver.isolation()

    def hand_over_and_write(at):
        one = OffsetRange({0: at}, {0: at + 1})
        isolation.run(lambda: None, lambda: one, is_taken=False)
        isolation.run(lambda: driver.take(one), lambda: one)

    for at in range(MAX_REJECTED_IN_A_ROW):
        hand_over_and_write(at)
    with pytest.raises(RecordsRefused):
        hand_over_and_write(MAX_REJECTED_IN_A_ROW)
    assert len(driver.rejects) == MAX_REJECTED_IN_A_ROW


def test_after_a_mend_the_records_that_were_refused_are_taken():
    driver = Driver({0: 64}, failing={(0, offset) for offset in range(64)})
    with pytest.raises(RecordsRefused):
        driver.start()
    driver.failing.clear()
    driver.start()
    assert (len(driver.rejects), len(driver.taken)) == (MAX_REJECTED_IN_A_ROW, 64 - MAX_REJECTED_IN_A_ROW)


def test_the_first_offsets_are_those_of_one_partition_after_the_other():
    range_ = OffsetRange({0: 5, 1: 0, 2: 7}, {0: 7, 1: 3, 2: 9})
    assert range_.cut(4) == (
        OffsetRange(range_.start, {0: 7, 1: 2, 2: 7}), OffsetRange({0: 7, 1: 2, 2: 7}, range_.end)
    )  # fmt: skip
    assert range_.cut(100) == (OffsetRange(range_.start, range_.end), OffsetRange(range_.end, range_.end))
    assert range_.cut(0)[0].count == 0


@given(lags=st.dictionaries(st.integers(0, 7), st.integers(0, 1_000), min_size=1), most=st.integers(1, 500))
def test_the_first_batch_is_within_what_is_there(lags, most):
    start = {partition: 10 for partition in lags if partition % 2}
    ends = {partition: start.get(partition, 0) + lag for partition, lag in lags.items()}
    batch = first_batch(start, ends, most)
    assert min(most, sum(lags.values())) <= batch.count <= most + len(lags)
    assert all(start.get(partition, 0) <= end <= ends[partition] for partition, end in batch.end.items())


class Sender(Trials):
    """Sends pending boards once each, but for those that fail or kill."""

    def __init__(self, count, failing, killing, unsaved, most_in_time):
        super().__init__(unsaved)
        self.most_in_time = most_in_time
        self.waiting = [("board", 0, offset) for offset in range(count)]
        self.failing, self.killing = failing, killing
        self.sent, self.rejects = [], []

    def take(self, batch):
        offsets = {offset for _, _, offset in batch.records}
        if len(offsets) > self.most_in_time:
            raise DriverFenced
        if self.killing & offsets:
            raise KilledError
        if self.failing & offsets:
            raise ZeroDivisionError("because of a board")
        self.sent += offsets
        self.waiting = [board for board in self.waiting if board not in batch.records]

    def reject(self, batch, _reason):
        self.rejects += [offset for _, _, offset in batch.records]
        self.waiting = [board for board in self.waiting if board not in batch.records]

    def start(self, page):
        """A driver: what the one before was sending when it ended comes first."""
        isolation = Isolation(self, self.take, self.reject, lambda exc: isinstance(exc, PipelineError), lambda: None,
                              threading.Event())  # fmt: skip
        trial = isolation.load()
        if trial is not None:
            batch = PendingBatch([tuple(at) for at in trial.at if tuple(at) in self.waiting])
            isolation.take(batch, trial if batch.is_at(trial.at) else None)
        while self.waiting:
            isolation.take(PendingBatch(self.waiting[:page]))


@given(failing=st.sets(st.integers(0, 40), max_size=3), killing=st.sets(st.integers(0, 40), max_size=3),
       count=st.integers(0, 40), page=st.integers(1, 50), unsaved=UNSAVED,
       most_in_time=st.integers(1, 50))  # fmt: skip
def test_pending_boards_are_narrowed_down_likewise_over_drivers_that_end(
    failing, killing, count, page, unsaved, most_in_time
):
    sender = Sender(count, failing, killing - failing, unsaved, most_in_time)
    here = (failing | killing) & set(range(count))
    for _ in range(200):
        try:
            sender.start(page)
        except (KilledError, DriverFenced):
            continue
        except RecordsRefused:  # four beside one another
            assert len(here) > MAX_REJECTED_IN_A_ROW
            continue
        break
    if len(here) <= MAX_REJECTED_IN_A_ROW:
        assert sender.waiting == []
        assert set(sender.rejects) == here
        assert sorted([*sender.sent, *here]) == list(range(count))
        assert sender.saved is None or sender.saved.size is None, "a record is suspected still"
