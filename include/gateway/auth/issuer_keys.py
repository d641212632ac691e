"""The keys of the identity provider that issues access tokens: fetched by discovery, kept and refreshed."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from include.contracts.errors import Retryable
from include.runtime.environment_reader import without_login
from include.runtime.settings import OidcSettings, is_secure_url

log = logging.getLogger(__name__)


MIN_INTERVAL_S = 10.0  # between two fetches: tokens with made-up key ids must not put load on the issuer
FETCH_TIMEOUT_S = 10.0  # of a fetch as a whole, however slowly the issuer sends
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

    async def fetch(self) -> object:
        """Return the decoded key set. Can be cancelled. Raises IssuerUnavailable."""
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
    # not by jwt.PyJWKSet: one key with "alg": "none" makes it refuse the whole set, and it takes keys for encryption,
    # secrets and private keys, and one algorithm for each key
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

    While the issuer is down, the known keys stay. A key that is missing in a newer set is not accepted any more. A set
    without a usable key is a problem, too: until the next one, no token is accepted, and all are answered 503.
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
        if not self._is_fetching and self._is_due():  # during a fetch, a call would cause the next one
            self._wake.set()
        if self._is_fetching or self._wake.is_set():
            raise IssuerUnavailable("the issuer's keys are being fetched")
        if self.problem is not None:
            raise IssuerUnavailable(self.problem)
        return None

    def refresh(self) -> None:
        """Fetch the keys now, and once more if a fetch is running: it may have begun before the change."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch the keys now, then regularly and whenever they are asked for, until cancelled. Failures are logged."""
        while True:
            try:
                await self.fetch()
            except Exception:
                log.exception("the fetch of the token issuer's keys failed")
            wait_s = self._refresh_s if self.problem is None else min(self._refresh_s, MIN_INTERVAL_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def fetch(self) -> None:
        """Fetch the keys once, in FETCH_TIMEOUT_S at most. A failure leaves them as they are."""
        self._is_fetching = True
        self._wake.clear()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                document = await self._source.fetch()
            keys = await asyncio.to_thread(parse_keys, document)  # up to a second for thousands of keys
        except TimeoutError:
            self._fail(f"the issuer did not send them within {FETCH_TIMEOUT_S:g} s")
            return
        except (IssuerUnavailable, ValueError) as exc:
            self._fail(str(exc))
            return
        finally:
            self._is_fetching = False
            self._tried_at = self._monotonic()
        problem = None if keys else "the token issuer's key set has no usable key; every access token is refused"
        if keys and (self.problem is not None or keys.keys() != self._keys.keys()):
            log.info("%d keys of the token issuer: %s", len(keys), ", ".join(sorted(keys)))
        elif problem is not None and problem != self.problem:
            log.error("%s", problem)
        if self.version == 0 or keys != self._keys:
            self.version += 1
        self._keys, self.problem = keys, problem

    def _fail(self, why: str) -> None:
        problem = f"the token issuer's keys cannot be fetched: {why}"
        if problem != self.problem:  # log once, not at every attempt
            log.error("%s; those known stay valid", problem)
        self.problem = problem

    def _is_due(self) -> bool:
        return self._tried_at is None or self._monotonic() - self._tried_at >= MIN_INTERVAL_S


DISCOVERY = "/.well-known/openid-configuration"
_TIMEOUT_S = 5.0  # of each step of a request; `issuer_keys.FETCH_TIMEOUT_S` limits all of them together
_MAX_BYTES = 1 << 20


class HttpIssuer:
    """Implements `issuer_keys.KeySource` over HTTPS. Follows no redirects."""

    def __init__(self, settings: OidcSettings) -> None:
        import httpx  # takes 0.17 s

        self._settings = settings
        # made once, since loading the authorities' certificates blocks the loop
        self._context = settings.tls.context() if settings.tls else httpx.create_ssl_context()

    async def fetch(self) -> object:
        """See KeySource.fetch."""
        issuer = self._settings.issuer
        found = await self._document(issuer.rstrip("/") + DISCOVERY)
        if not isinstance(found, dict) or found.get("issuer") != issuer:
            raise IssuerUnavailable(f"{without_login(issuer)}{DISCOVERY} is not the discovery document of this issuer")
        url = found.get("jwks_uri")
        if not isinstance(url, str) or not is_secure_url(url):
            raise IssuerUnavailable(f"{without_login(issuer)}{DISCOVERY} has no jwks_uri that begins with https")
        return await self._document(url)

    async def _document(self, url: str) -> Any:
        import httpx

        content = bytearray()
        try:
            async with (
                httpx.AsyncClient(timeout=_TIMEOUT_S, verify=self._context) as http,
                http.stream("GET", url, headers={"Accept": "application/json"}) as answer,
            ):
                if answer.status_code != 200:
                    raise IssuerUnavailable(f"{without_login(url)} answered {answer.status_code}")
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > _MAX_BYTES:
                        raise IssuerUnavailable(f"{without_login(url)} is longer than {_MAX_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as exc:
            raise IssuerUnavailable(f"{without_login(url)}: {type(exc).__name__}") from exc
        try:
            return await asyncio.to_thread(json.loads, content)
        except (ValueError, RecursionError) as exc:
            raise IssuerUnavailable(f"{without_login(url)} is not JSON") from exc
