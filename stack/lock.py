"""A lock, so that only one command at a time changes a stack."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from stack.errors import StackError
from stack.layout import Layout


@contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Hold the stack's lock for starting or stopping. Raises StackError at once if another command holds it.

    The kernel releases the lock when the process ends, also after a crash.
    """
    layout.state.mkdir(parents=True, exist_ok=True)
    with (layout.state / "stack.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StackError(
                "another `make up`, `down`, `clean`, `backup` or `restore` is at work on this stack: wait for it"
            ) from exc
        yield
