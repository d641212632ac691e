"""Authorization by bearer token: a token of the tokens file, or an access token of an identity provider.

Access tokens are JSON Web Tokens as RFC 9068 describes them, with their scopes as rights. Refusals are the answers 401
and 403 with the challenges of RFC 6750.
"""

import hashlib
import hmac
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jwt

from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import RAW_TOPICS
from include.gateway.auth import token_file
from include.gateway.auth.issuer_keys import IssuerKey, IssuerKeys, IssuerUnavailable
from include.gateway.auth.token_file import EVERY_TOPIC, ISSUER_PREFIX, Entry
from include.gateway.http.message import Fault, fault, unavailable
from include.runtime.settings import OidcSettings

log = logging.getLogger(__name__)

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


Access = Literal["data", "admin"]

NOBODY = ""  # the sender's name on calls that need no token


class Tokens:
    """The tokens that a gateway accepts, as hashes.

    With `entries` None, calls need no token; that is for loopback only. With no entries, every token is refused, except
    those of the identity provider whose `access_tokens` are accepted too.
    """

    def __init__(
        self, entries: Sequence[Entry] | None, path: Path | None = None, access_tokens: AccessTokens | None = None
    ) -> None:
        self._path = path
        self._access_tokens = access_tokens
        self._known: list[tuple[bytes, Entry]] = []
        self.is_open = entries is None
        if entries is not None:
            self._take(entries)

    @classmethod
    def of(cls, path: Path | None, access_tokens: AccessTokens | None = None) -> "Tokens":
        """Load the tokens of a file. With neither of the two, calls need no token. Raises ConfigurationError."""
        if path is None:
            return cls(None if access_tokens is None else (), None, access_tokens)
        return cls(token_file.read(path), path, access_tokens)

    @property
    def problem(self) -> str | None:
        """The reason why some valid tokens may be refused; None if there is none."""
        return None if self._access_tokens is None else self._access_tokens.keys.problem

    def reload(self) -> bool:
        """Reload the file. True if it was loaded. The error of an invalid file is logged, and the tokens stay."""
        if self._path is None:
            return False
        try:
            self._take(token_file.read(self._path))
        except ConfigurationError as exc:
            log.error("%s; the tokens stay as they were", exc)
            return False
        return True

    def require(self, authorization: bytes, access: Access, topic: str | None = None) -> str:
        """Return the name of the token if its scope includes the call; `topic` None stands for any topic.

        Raises Fault 401 for a missing or unknown token, 403 for one whose scope does not include the call, 503 while an
        access token cannot be verified.
        """
        if self.is_open:
            return NOBODY
        token = authorization[7:].lstrip(b" ") if authorization[:7] == b"Bearer " else _token(authorization)
        presented = hashlib.sha256(token).digest()
        found: Entry | None = None
        for known, entry in self._known:  # no early exit, so that the time taken does not depend on the match
            if hmac.compare_digest(known, presented):
                found = entry
        if not token:
            raise missing_token()
        if found is None and self._access_tokens is not None and token.count(b".") == 2:
            found = self._access_tokens.entry(token, presented)
        if found is None:
            raise invalid_token("no valid token")
        if access == "admin":
            if not found.admin:
                raise insufficient_scope("the admin calls", "admin", ADMIN_SCOPE)
        elif topic is None:
            if not found.topics:
                raise insufficient_scope("data", "the topic", TOPIC_SCOPE + EVERY_TOPIC)
        elif not found.allows(topic):
            raise insufficient_scope(f"topic {topic}", "the topic", TOPIC_SCOPE + topic)
        return found.name

    def _take(self, entries: Sequence[Entry]) -> None:
        if not entries and self._path is not None:
            log.warning("the tokens file has no token: every call that needs one is answered 401")
        self._known = [(bytes.fromhex(digest), entry) for entry in entries for digest in entry.sha256]


def _token(authorization: bytes) -> bytes:
    scheme, _, token = authorization.partition(b" ")
    return token.lstrip(b" ") if scheme.lower() == b"bearer" else b""
