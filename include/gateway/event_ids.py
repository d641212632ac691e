"""The identity of an event: the same for all copies of one event, another one for any other event."""

import datetime as dt
import hashlib
import os
import uuid

from include.clock import rfc3339

_OF_ROWS = uuid.UUID("6f3f8f0c-3b0e-5d0b-9a54-0d9f3c7e2b11")  # never change it


def new_event_id() -> str:
    """An identity for an event whose sender gave no key: a random UUID."""
    return _uuid(os.urandom(16).hex(), "4")


def new_event_ids(count: int) -> list[str]:
    """As many at once, for one call to the system."""
    digits = os.urandom(16 * count).hex()
    return [_uuid(digits[start : start + 32], "4") for start in range(0, 32 * count, 32)]


def keyed_event_ids(sender: str, key: str, fingerprint: bytes, count: int) -> list[str]:
    """The identities of a call's events, in their order: the same whenever and wherever that call is made again.

    A key alone names no event: two senders may have the same, and one may use it anew when it is forgotten. So who
    sent it and what was sent are in the identity as well.
    """
    call = hashlib.sha256(f"{sender}\n{key}\n".encode() + fingerprint)
    identities = []
    for index in range(count):
        event = call.copy()
        event.update(b"%d" % index)
        identities.append(_uuid(event.hexdigest(), "8"))
    return identities


def row_event_id(topic: str, row_id: int, modified_at: dt.datetime) -> str:
    """The identity of a version of a row, whoever produces it: the gateway that saved it, a retry, or reconcile."""
    return str(uuid.uuid5(_OF_ROWS, f"{topic}/{row_id}/{rfc3339(modified_at)}"))


def _uuid(digits: str, version: str) -> str:
    # the layout of RFC 9562; the uuid module takes four times as long
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-{version}{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
