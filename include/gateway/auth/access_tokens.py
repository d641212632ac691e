"""Access tokens of an identity provider: JSON Web Tokens as RFC 9068 describes them, and their scopes as rights.

Refusals are the answers 401 and 403 with the challenges of RFC 6750.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jwt

from include.contracts.pipelines import RAW_TOPICS
from include.gateway.auth.issuer_keys import IssuerKey, IssuerKeys, IssuerUnavailable
from include.gateway.auth.token_file import EVERY_TOPIC, ISSUER_PREFIX, Entry
from include.gateway.http.answer import Fault, fault, unavailable
from include.runtime.settings import OidcSettings

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


_MAX_TOKEN_BYTES = 8 << 10
_MAX_REMEMBERED = 10_000
_TYPES = ("at+jwt", "application/at+jwt", "jwt")  # many issuers still write JWT
_CLIENT = re.compile(r"[!-~]{1,128}")  # goes into logs, metrics and the scope of idempotency keys

_WHY: Mapping[type[Exception], str] = {
    jwt.ExpiredSignatureError: "the token has expired",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is from another issuer",
    jwt.InvalidSignatureError: "the token's signature is wrong",
    jwt.MissingRequiredClaimError: "the token lacks a claim that is required",
}


class AccessTokens:
    """Verifies access tokens, and remembers those that were valid: a signature costs as much as the rest of a request.

    A remembered token is verified again once the issuer's keys have changed.
    """

    def __init__(self, settings: OidcSettings, keys: IssuerKeys) -> None:
        self._settings = settings
        self.keys = keys
        self._remembered: OrderedDict[bytes, tuple[Entry, float]] = OrderedDict()
        self._version = 0

    def entry(self, token: bytes, digest: bytes) -> Entry:
        """Return the name and the rights of a token; `digest` is its SHA-256.

        Raises Fault 401 with the reason, and 503 while the key of the token's signature cannot be looked up.
        """
        if self._version != self.keys.version:
            self._remembered.clear()
            self._version = self.keys.version
        known = self._remembered.get(digest)
        if known is not None and time.time() < known[1]:
            return known[0]
        entry, expires_at = self._verified(token)
        self._remembered[digest] = entry, expires_at
        while len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return entry

    def _verified(self, token: bytes) -> tuple[Entry, float]:
        settings = self._settings
        if len(token) > _MAX_TOKEN_BYTES:
            raise invalid_token("the token is too long")
        try:
            text = token.decode("ascii")
            key = self._key(jwt.get_unverified_header(text))
            claims: dict[str, Any] = jwt.decode(
                text, key.key, list(key.algorithms), audience=settings.audience, issuer=settings.issuer,
                leeway=settings.leeway_s, options={"require": ["exp", "iss", "aud"]},
            )  # fmt: skip
            return _entry(claims), float(claims["exp"]) + settings.leeway_s
        except jwt.PyJWTError as exc:
            raise invalid_token(_WHY.get(type(exc), "not a valid token")) from None
        except (ValueError, TypeError, OverflowError, RecursionError):  # of claims that PyJWT does not expect
            raise invalid_token("not a valid token") from None

    def _key(self, header: Mapping[str, Any]) -> IssuerKey:
        """Return the key that the header names. Raises Fault."""
        kid, kind = header.get("kid"), header.get("typ", "JWT")
        if not isinstance(kind, str) or kind.lower() not in _TYPES or "crit" in header:
            raise invalid_token("not an access token")
        if not isinstance(kid, str) or not kid:
            raise invalid_token("the token does not name its key")
        try:
            key = self.keys.get(kid)
        except IssuerUnavailable as exc:
            raise unavailable("the keys of the token's issuer are not known at the moment") from exc
        if key is None:
            raise invalid_token("the issuer has no such key")
        if header.get("alg") not in key.algorithms:
            raise invalid_token("the key is for another algorithm")
        return key


def _entry(claims: Mapping[str, Any]) -> Entry:
    """Return the client and its rights. Raises Fault."""
    client = next((claims[name] for name in ("client_id", "azp", "sub") if claims.get(name)), None)
    if not isinstance(client, str) or not _CLIENT.fullmatch(client):
        raise invalid_token("the token names no client")
    given = claims.get("scope", "")
    scopes = set(given.split(" ")) if isinstance(given, str) else set()
    topics = tuple(name for name in (*RAW_TOPICS, EVERY_TOPIC) if TOPIC_SCOPE + name in scopes)
    return Entry(ISSUER_PREFIX + client, (), topics, ADMIN_SCOPE in scopes)
