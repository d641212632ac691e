"""Event ids. All copies of an event share one, and no two events do."""

import datetime as dt
import hashlib
import os
import uuid

from include.contracts.clock import rfc3339

_AT_ONCE = 256
_made: list[str] = []  # ids that no event has yet
_OF_ROWS = uuid.UUID("6f3f8f0c-3b0e-5d0b-9a54-0d9f3c7e2b11")  # never change it


def new_event_ids(count: int) -> list[str]:
    """Return `count` random UUIDs, for events without an Idempotency-Key, at the cost of one system call."""
    digits = os.urandom(16 * count).hex()
    return [_uuid(digits[start : start + 32], "4") for start in range(0, 32 * count, 32)]


def new_event_id() -> str:
    """Return a random UUID. A system call makes those of many calls."""
    if not _made:
        _made.extend(new_event_ids(_AT_ONCE))
    return _made.pop()


def keyed_event_ids(sender: str, key: str, fingerprint: bytes, count: int) -> list[str]:
    """Return the ids of a call's events, in order. A repeated call has the same ids, on any gateway and at any time.

    A key alone does not identify a call: two senders may use the same one, and a sender may reuse it after the
    idempotency window. So the sender and the fingerprint of the request are part of the id.
    """
    call = hashlib.sha256(f"{sender}\n{key}\n".encode() + fingerprint)
    identities = []
    for index in range(count):
        event = call.copy()
        event.update(b"%d" % index)
        identities.append(_uuid(event.hexdigest(), "8"))
    return identities


def row_event_id(topic: str, row_id: int, modified_at: dt.datetime) -> str:
    """Return the id of one version of a row. The gateway that saved it, a retry and reconcile all derive the same."""
    return str(uuid.uuid5(_OF_ROWS, f"{topic}/{row_id}/{rfc3339(modified_at)}"))


def _uuid(digits: str, version: str) -> str:
    # the layout of RFC 9562 by hand, since the uuid module takes four times as long
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-{version}{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
