"""Calls of the Kafka client in threads of their own."""

import threading
import weakref

import pytest

from include.kafka.calls import in_daemon_thread


class Client:
    """A client with calls of every outcome."""

    def answer(self):
        return "metadata"

    def fail(self):
        raise ValueError("no broker")

    def wait(self, event):
        event.wait()


def test_result_and_exception_are_those_of_the_call():
    assert in_daemon_thread("test", Client().answer).result(10) == "metadata"
    with pytest.raises(ValueError, match="no broker"):
        in_daemon_thread("test", Client().fail).result(10)


def test_call_that_does_not_return_is_neither_done_nor_cancelled():
    returns = threading.Event()
    answer = in_daemon_thread("test", lambda: Client().wait(returns))
    try:
        with pytest.raises(TimeoutError):
            answer.result(0.05)
        assert not answer.cancel()
        assert not answer.done()
    finally:
        returns.set()
    assert answer.result(10) is None


@pytest.mark.parametrize("name", ["answer", "fail"])
def test_the_answer_does_not_keep_the_client(name):
    client, ended = Client(), threading.Event()
    weakref.finalize(client, ended.set)
    answer = in_daemon_thread("test", getattr(client, name))
    del client
    assert ended.wait(10)
    assert answer.done()
