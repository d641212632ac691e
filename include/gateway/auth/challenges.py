"""The answers 401 and 403 with the challenges of RFC 6750."""

from include.gateway.http.answer import Fault, fault

TOPIC_SCOPE, ADMIN_SCOPE = "gateway:topic:", "gateway:admin"  # of access tokens; those of the file have fields

_REMEDY = "send Authorization: Bearer with a valid token of this gateway"


def missing_token() -> Fault:
    """Return the 401 for a request without a bearer token."""
    return fault(401, "", "no valid token", _REMEDY, ((b"www-authenticate", b"Bearer"),))


def invalid_token(why: str) -> Fault:
    """Return the 401 for a token that is not valid; `why` is ASCII without quotation marks."""
    challenge = f'Bearer error="invalid_token", error_description="{why}"'.encode("ascii")
    return fault(401, "", why, _REMEDY, ((b"www-authenticate", challenge),))


def insufficient_scope(calls: str, right: str, scope: str) -> Fault:
    """Return the 403 for a valid token whose rights do not include these calls."""
    challenge = f'Bearer error="insufficient_scope", scope="{scope}"'.encode("ascii")
    headers = ((b"www-authenticate", challenge),)
    return fault(403, "", f"this token is not for {calls}", f"use a token whose scope has {right}", headers)
