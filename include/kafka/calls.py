"""Calls of the Kafka client that may never return, whatever their own timeout is."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

GRACE_S = 5.0  # beyond the timeout of a call, until it counts as one that does not return


def in_daemon_thread(name: str, call: Callable[[], Result]) -> Future[Result]:
    """Make the call in a thread of its own, which holds up neither other calls nor the exit of the process.

    A pool would do both. The future has the call's result or exception, and cannot be cancelled. It does not keep the
    client, whose end would wait for the client's threads wherever the last reference is dropped.
    """
    answer: Future[Result] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - raised again by the future
            answer.set_exception(exc.with_traceback(None))  # its frames would keep `call`

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer
