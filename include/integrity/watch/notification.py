"""Sends the notices of alerts to the channels: at least once, and none twice while all goes well."""

import logging
from collections.abc import Callable, Mapping

from include.contracts.errors import PipelineError, Retryable
from include.integrity.watch.alert_store import AlertStore
from include.integrity.watch.findings import Notice

log = logging.getLogger(__name__)

MAX_FAILURES = 3  # of a channel in a watch: each may block until its timeout
Send = Callable[[Notice], None]  # returns when the channel has taken the notice, raises any error otherwise


class NotNotified(Retryable):
    """A channel did not take all notices; the next watch sends them again."""


def notify(store: AlertStore, channels: Mapping[str, Send]) -> dict[str, int]:
    """Send what the channels have not taken yet; returns how many notices each took.

    A channel that fails is tried again by the next watch, and holds up no other channel. Each failure is logged. Raises
    NotNotified at the end if a channel failed; DatabaseUnavailable.
    """
    sent = dict.fromkeys(channels, 0)
    failing = []
    for channel, send in channels.items():
        failed: set[int] = set()
        while len(failed) < MAX_FAILURES and (taken := _send_next(store, channel, send, failed)) is not None:
            sent[channel] += taken
        failing += [channel] if failed else []
    if failing:
        raise NotNotified(channels=", ".join(failing))
    return sent


def tell(send: Send, channel: str, notice: Notice) -> bool:
    """Send one notice; returns whether the channel took it. A failure is logged."""
    try:
        send(notice)
    except PipelineError as exc:
        log.error("channel %s did not take %s: %s", channel, notice.title, exc)
        return False
    except Exception as exc:  # noqa: BLE001 - of any library; without its message, which may have an address with a token
        log.error("channel %s did not take %s: %s", channel, notice.title, type(exc).__name__)
        return False
    return True


def _send_next(store: AlertStore, channel: str, send: Send, failed: set[int]) -> bool | None:
    """Send one notice: True if it was taken, None if there is none left. Adds its alert to `failed` if it was not."""
    try:
        with store.next_notice(channel, failed) as notice:
            if notice is None:
                return None
            if not tell(send, channel, notice):
                raise _NotTaken(notice)
    except _NotTaken as exc:
        store.count_failure(channel, exc.notice)
        failed.add(exc.notice.alert_id)
        return False
    return True


class _NotTaken(Exception):
    """Rolls the transaction of a notice back."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.title)
        self.notice = notice
