"""The same call again gets the same answer, and does nothing a second time."""

import asyncio
import itertools
import sqlite3
import threading

import pytest

from include.gateway.http.message import Answer, Fault, unavailable
from include.gateway.idempotency import Attempted, Idempotency, SqliteCallJournal, fingerprint
from tests.fakes.gateway import FixedClock
from tests.servers import wait_until

CALL = fingerprint("POST", "/topics/board/events", b'{"id": 1}')
OTHER = fingerprint("POST", "/topics/board/events", b'{"id": 2}')


class Calls:
    """Attempts that count themselves; `answers` are given in turn, the last one for ever."""

    def __init__(self, *answers: Attempted | Exception) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._answers = answers or (kept(),)

    async def __call__(self, outcomes):
        self.count += 1
        answer = self._answers[min(self.count, len(self._answers)) - 1]
        await self.gate.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


def kept(body: bytes = b'{"eventId": "k"}') -> Attempted:
    return Attempted(Answer(201, body), is_final=True)


def not_kept() -> Attempted:
    return Attempted(Answer(503, b"{}", ((b"retry-after", b"2"),)), is_final=False)


def run(scenario):
    async def main():
        async with asyncio.timeout(20):
            return await scenario()

    return asyncio.run(main())


def test_same_key_again_gets_the_same_answer_without_a_second_attempt():
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        first = await window.once("mine", "k", CALL, calls)
        return first, await window.once("mine", "k", CALL, calls), calls.count

    first, second, count = run(scenario)
    assert first == second == kept().answer
    assert count == 1


@pytest.mark.parametrize(("scope", "key"), [("other", "k"), ("mine", "other"), ("min", "e\nk")])
def test_another_key_or_another_senders_key_is_another_call(scope, key):
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        await window.once("mine", "k", CALL, calls)
        await window.once(scope, key, CALL, calls)
        return calls.count

    assert run(scenario) == 2


@pytest.mark.parametrize("is_running", [False, True])
def test_key_of_another_call_is_422_naming_the_header(is_running):
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        if is_running:
            calls.gate.clear()
        first = asyncio.create_task(window.once("mine", "k", CALL, calls))
        await asyncio.sleep(0)
        if not is_running:
            await first
        with pytest.raises(Fault) as caught:
            await window.once("mine", "k", OTHER, calls)
        calls.gate.set()
        await first
        return caught.value, calls.count

    refusal, count = run(scenario)
    assert (refusal.status, count) == (422, 1)
    assert "Idempotency-Key" in refusal.error
    assert "Idempotency-Key" in refusal.details[0].remedy


def test_calls_at_the_same_time_share_one_attempt():
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        answers = await asyncio.gather(*[window.once("mine", "k", CALL, calls) for _ in range(50)])
        return answers, calls.count

    answers, count = run(scenario)
    assert answers == [kept().answer] * 50
    assert count == 1


def test_answer_that_is_not_final_is_given_but_not_remembered():
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls(not_kept(), kept())
        answers = [await window.once("mine", "k", CALL, calls) for _ in range(3)]
        return [answer.status for answer in answers], calls.count

    assert run(scenario) == ([503, 201, 201], 2)


@pytest.mark.parametrize("failure", [unavailable("nothing durable"), RuntimeError("a defect")])
def test_failed_attempt_is_not_remembered_and_the_next_runs(failure):
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls(failure, kept())
        with pytest.raises(type(failure)):
            await window.once("mine", "k", CALL, calls)
        return await window.once("mine", "k", CALL, calls), calls.count

    assert run(scenario) == (kept().answer, 2)


def test_caller_that_goes_away_leaves_its_answer_for_the_retry():
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        calls.gate.clear()
        first = asyncio.create_task(window.once("mine", "k", CALL, calls))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        calls.gate.set()
        return await window.once("mine", "k", CALL, calls), calls.count

    assert run(scenario) == (kept().answer, 1)


def test_retry_of_a_mixed_array_does_only_what_is_not_settled():
    async def scenario():
        window, seen = Idempotency(FixedClock()), []

        async def attempt(outcomes):
            seen.append(sorted(outcomes))
            todo = [index for index in range(4) if index not in outcomes]
            for index in todo[:2]:
                outcomes[index] = b"kept %d" % index
            is_final = len(outcomes) == 4
            return Attempted(Answer(200 if is_final else 207, b"|".join(outcomes.values())), is_final)

        answers = [await window.once("mine", "k", CALL, attempt) for _ in range(3)]
        return answers, seen

    (first, second, third), seen = run(scenario)
    assert seen == [[], [0, 1]]
    assert first.status == 207
    assert second == third == Answer(200, b"kept 0|kept 1|kept 2|kept 3")


def test_outcomes_settled_before_a_failure_are_not_done_again():
    async def scenario():
        window, seen = Idempotency(FixedClock()), []

        async def attempt(outcomes):
            seen.append(dict(outcomes))
            if not outcomes:
                outcomes[0] = b"kept"
                raise unavailable("the rest went nowhere")
            return kept()

        with pytest.raises(Fault):
            await window.once("mine", "k", CALL, attempt)
        await window.once("mine", "k", CALL, attempt)
        return seen

    assert run(scenario) == [{}, {0: b"kept"}]


def test_key_older_than_the_window_is_a_new_one():
    async def scenario():
        clock = FixedClock()
        window, calls = Idempotency(clock, window_s=60), Calls()
        await window.once("mine", "k", CALL, calls)
        clock.advance(59)
        await window.once("mine", "k", CALL, calls)
        within = calls.count
        clock.advance(2)
        await window.once("mine", "k", OTHER, calls)
        return within, calls.count, len(window)

    assert run(scenario) == (1, 2, 1)


def test_keys_whose_window_is_over_are_forgotten_a_few_at_a_time():
    async def scenario():
        clock = FixedClock()
        window = Idempotency(clock, window_s=60)
        for number in range(1000):
            await window.once("mine", f"k{number}", CALL, Calls())
        clock.advance(61)
        sizes = []
        for number in range(20):
            await window.once("mine", f"later-{number}", CALL, Calls())
            sizes.append(len(window))
        return [1000, *sizes]

    sizes = run(scenario)
    assert max(before - after for before, after in itertools.pairwise(sizes)) < 100
    assert sizes[-1] == 20


@pytest.mark.parametrize("bound", [{"max_keys": 3}, {"max_bytes": 3 * 400}])
def test_oldest_keys_leave_first_when_there_are_too_many(bound):
    async def scenario():
        window, calls = Idempotency(FixedClock(), **bound), Calls(kept(b"x" * 300))
        for number in range(5):
            await window.once("mine", f"k{number}", CALL, calls)
        size = len(window)
        await window.once("mine", "k4", CALL, calls)
        newest = calls.count
        await window.once("mine", "k0", CALL, calls)
        return size, newest, calls.count, window.size_bytes

    size, newest, count, size_bytes = run(scenario)
    assert (size, newest, count) == (3, 5, 6)
    assert 900 < size_bytes <= 1200


def test_long_answer_comes_back_whole_and_takes_little():
    body = b'{"status":201,"eventId":"k/1","keptIn":"kafka"}' * 1000

    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls(kept(body))
        await window.once("mine", "k", CALL, calls)
        return await window.once("mine", "k", CALL, calls), window.size_bytes

    answer, size_bytes = run(scenario)
    assert answer.body == body
    assert size_bytes < len(body) / 10


def test_close_waits_for_running_attempts():
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        calls.gate.clear()
        first = asyncio.create_task(window.once("mine", "k", CALL, calls))
        await asyncio.sleep(0)
        closing = asyncio.create_task(window.close(10))
        await asyncio.sleep(0)
        calls.gate.set()
        await closing
        return first.done() and first.result()

    assert run(scenario) == kept().answer


def test_attempt_cut_by_close_is_answered_503():
    async def scenario():
        window, calls = Idempotency(FixedClock()), Calls()
        calls.gate.clear()
        first = asyncio.create_task(window.once("mine", "k", CALL, calls))
        await asyncio.sleep(0)
        await window.close(0.01)
        with pytest.raises(Fault) as caught:
            await first
        return caught.value.status

    assert run(scenario) == 503


class TestJournal:
    """Over the real file."""

    def once(self, folder, calls, key="k", clock=None, close=True, **bounds):
        async def scenario():
            journal = SqliteCallJournal(folder)
            window = Idempotency(clock or FixedClock(), journal=journal, **bounds)
            window.open()
            try:
                return await window.once("mine", key, CALL, calls), journal, len(window)
            finally:
                await window.close(1)

        return run(scenario)

    def test_answers_survive_a_restart(self, tmp_path):
        calls = Calls()
        first, *_ = self.once(tmp_path, calls)
        second, *_ = self.once(tmp_path, calls)
        assert first == second
        assert calls.count == 1

    def test_settled_outcomes_of_an_array_survive_a_restart(self, tmp_path):
        seen = []

        async def attempt(outcomes):
            seen.append(dict(outcomes))
            outcomes[0] = b"kept"
            return not_kept()

        self.once(tmp_path, attempt)
        self.once(tmp_path, attempt)
        assert seen == [{}, {0: b"kept"}]

    def test_what_was_forgotten_stays_forgotten_after_a_restart(self, tmp_path):
        clock = FixedClock()
        for number in range(6):
            *_, size = self.once(tmp_path, Calls(), key=f"k{number}", clock=clock, max_keys=4)
        assert size == 4
        clock.advance(100)
        *_, size = self.once(tmp_path, Calls(), key="late", clock=clock, window_s=60)
        assert size == 1
        with sqlite3.connect(tmp_path / "idempotency.sqlite") as connection:
            assert connection.execute("SELECT count(*) FROM call").fetchone() == (1,)

    def test_entries_are_on_the_disk_soon_without_a_close(self, tmp_path):
        async def scenario():
            window = Idempotency(FixedClock(), journal=SqliteCallJournal(tmp_path))
            window.open()
            await window.once("mine", "k", CALL, Calls())
            await asyncio.to_thread(wait_until, is_written, 10, "the entry is written")
            await window.close(1)

        def is_written():
            with sqlite3.connect(tmp_path / "idempotency.sqlite") as connection:
                return connection.execute("SELECT count(*) FROM call").fetchone() == (1,)

        run(scenario)

    def test_damaged_file_is_set_aside_and_a_new_one_begun(self, tmp_path):
        (tmp_path / "idempotency.sqlite").write_bytes(b"no database at all, " * 500)
        calls = Calls()
        self.once(tmp_path, calls)
        self.once(tmp_path, calls)
        assert calls.count == 1
        assert len(list(tmp_path.glob("idempotency.sqlite.damaged-*"))) == 1

    def test_file_damaged_while_in_use_costs_no_answer(self, tmp_path):
        calls = Calls()
        self.once(tmp_path, calls)
        path = tmp_path / "idempotency.sqlite"
        path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
        answer, *_ = self.once(tmp_path, calls)
        assert answer == kept().answer
        again, *_ = self.once(tmp_path, calls)
        assert again == kept().answer

    def test_place_that_cannot_be_written_is_counted_and_stops_nothing(self, tmp_path, caplog):
        calls = Calls()
        answer, journal, size = self.once(tmp_path / "absent", calls)
        assert (answer, size, journal.lost) == (kept().answer, 1, 1)
        assert "remembered in memory only" in caplog.text

    def test_disk_that_hangs_holds_a_bounded_number_of_bytes(self, tmp_path, monkeypatch):
        apply, hangs = SqliteCallJournal._apply, threading.Event()

        def hung(journal, batch):
            hangs.wait(20)
            apply(journal, batch)

        monkeypatch.setattr(SqliteCallJournal, "_apply", hung)
        journal = SqliteCallJournal(tmp_path)
        journal.open(1000)
        for number in range(200):
            journal.write(b"%d" % number, bytes(1 << 20))
        lost = journal.lost
        hangs.set()
        journal.close()
        again = SqliteCallJournal(tmp_path)
        kept = len(again.open(1000))
        again.close()
        assert (kept <= 64, kept + lost) == (True, 200)

    def test_trouble_that_nobody_thought_of_does_not_end_the_journal(self, tmp_path, monkeypatch, caplog):
        apply = SqliteCallJournal._apply

        def fails_once(journal, batch):
            monkeypatch.setattr(SqliteCallJournal, "_apply", apply)
            raise ZeroDivisionError

        monkeypatch.setattr(SqliteCallJournal, "_apply", fails_once)
        journal = SqliteCallJournal(tmp_path)
        journal.open(10)
        journal.write(b"first", b"v")
        wait_until(lambda: journal.lost == 1, 10, "the first entry is counted as lost")
        journal.write(b"second", b"v")
        journal.close()
        again = SqliteCallJournal(tmp_path)
        assert again.open(10) == [(b"second", b"v")]
        again.close()
        assert "ZeroDivisionError" in caplog.text

    def test_unreadable_entry_is_a_new_call(self, tmp_path):
        calls = Calls()
        self.once(tmp_path, calls)
        with sqlite3.connect(tmp_path / "idempotency.sqlite") as connection:
            connection.execute("UPDATE call SET value = substr(value, 1, 40) || x'ff'")
        self.once(tmp_path, calls)
        assert calls.count == 2
