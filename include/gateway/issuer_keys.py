"""The keys of the identity provider that issues access tokens: read, kept and refreshed."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from include.errors import Retryable

log = logging.getLogger(__name__)

MIN_INTERVAL_S = 10.0  # between two fetches: tokens with made-up key ids must not put load on the issuer
_MIN_RSA_BITS = 2048
_MAX_KID_LENGTH = 255

# by `kty`, for EC and OKP with the curve; no symmetric algorithm: the gateway has public keys only
_ALGORITHMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class IssuerUnavailable(Retryable):
    """The issuer's keys could not be fetched."""


class KeySource(Protocol):
    """Fetches the issuer's JSON Web Key Set."""

    def fetch(self) -> object:
        """Return the decoded key set. Blocks, for seconds at most. Raises IssuerUnavailable."""
        ...


@dataclass(frozen=True)
class IssuerKey:
    """A public key and the algorithms of signatures that it may verify."""

    key: Any
    algorithms: tuple[str, ...]


def parse_keys(document: object) -> dict[str, IssuerKey]:
    """Return the usable keys of a key set by their ids; the first counts of two with one id. Raises ValueError.

    Keys without an id, for encryption, symmetric, of an unknown kind or too short are left out.
    """
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("not a JSON Web Key Set: an object with an array `keys`")
    found: dict[str, IssuerKey] = {}
    for each in document["keys"]:
        if isinstance(each, dict) and isinstance(kid := each.get("kid"), str) and 0 < len(kid) <= _MAX_KID_LENGTH:
            key = _key(each)
            if key is not None:
                found.setdefault(kid, key)
    return found


def _key(found: dict[str, Any]) -> IssuerKey | None:
    kty, crv, operations = found.get("kty"), found.get("crv", ""), found.get("key_ops", ["verify"])
    if found.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    algorithms = _ALGORITHMS.get((str(kty), "" if kty == "RSA" else str(crv)), ())
    if "alg" in found:
        algorithms = tuple(name for name in algorithms if name == found["alg"])
    if not algorithms or "d" in found:  # a private key that is published is no key any more
        return None
    try:
        key = jwt.PyJWK(found, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        return None
    return IssuerKey(key, algorithms)


class IssuerKeys:
    """Keeps the issuer's keys, refreshes them regularly, and sooner if a token names an unknown key.

    While the issuer is out, the known keys stay. A key that is missing in a newer set is not accepted any more.
    """

    def __init__(self, source: KeySource, refresh_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._keys: dict[str, IssuerKey] = {}
        self._wake = asyncio.Event()
        self._is_fetching = False
        self._tried_at: float | None = None
        self.version = 0  # grows with each change of the keys; 0 before the first set
        self.problem: str | None = "no keys of the token issuer yet"

    def get(self, kid: str) -> IssuerKey | None:
        """Return the key of that id; None if the issuer has no such key. Raises IssuerUnavailable while that is open.

        An unknown id causes a fetch, at most one in MIN_INTERVAL_S.
        """
        key = self._keys.get(kid)
        if key is not None:
            return key
        if self._is_fetching or self._wake.is_set() or self._is_due():
            self._wake.set()
            raise IssuerUnavailable("the issuer's keys are being fetched")
        if self.problem is not None:
            raise IssuerUnavailable(self.problem)
        return None

    def refresh(self) -> None:
        """Fetch the keys now."""
        self._tried_at = None
        self._wake.set()

    async def run(self) -> None:
        """Fetch the keys now, then regularly and whenever they are asked for, until cancelled. Failures are logged."""
        while True:
            try:
                await self.fetch()
            except Exception:
                log.exception("the fetch of the token issuer's keys failed")
            wait_s = self._refresh_s if self.problem is None else min(self._refresh_s, MIN_INTERVAL_S)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def fetch(self) -> None:
        """Fetch the keys once. A failure leaves them as they are."""
        self._is_fetching = True
        self._wake.clear()
        try:
            keys = parse_keys(await asyncio.to_thread(self._source.fetch))
        except (IssuerUnavailable, ValueError) as exc:
            problem = f"the token issuer's keys cannot be fetched: {exc}"
            if problem != self.problem:  # log once, not at every attempt
                log.error("%s; those known stay valid", problem)
            self.problem = problem
            return
        finally:
            self._is_fetching = False
            self._tried_at = self._monotonic()
        if self.problem is not None or keys.keys() != self._keys.keys():
            log.info("%d keys of the token issuer: %s", len(keys), ", ".join(sorted(keys)))
        self._keys, self.problem = keys, None
        self.version += 1

    def _is_due(self) -> bool:
        return self._tried_at is None or self._monotonic() - self._tried_at >= MIN_INTERVAL_S
