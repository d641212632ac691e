"""Fetches the keys of an OpenID Connect issuer by its discovery document."""

import json
import ssl
import time
from typing import Any

from include.gateway.issuer_keys import IssuerUnavailable
from include.settings import OidcSettings, is_secure_url

DISCOVERY = "/.well-known/openid-configuration"
_TIMEOUT_S = 5.0  # of each step of a request
_LONGEST_S = 10.0  # of a document as a whole
_MAX_BYTES = 1 << 20


class HttpIssuer:
    """Implements `issuer_keys.KeySource` over HTTPS. Follows no redirects."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | bool = settings.tls.context() if settings.tls else True

    def fetch(self) -> object:
        """See KeySource.fetch."""
        issuer = self._settings.issuer
        found = self._document(issuer.rstrip("/") + DISCOVERY)
        if not isinstance(found, dict) or found.get("issuer") != issuer:
            raise IssuerUnavailable(f"{issuer}{DISCOVERY} is not the discovery document of this issuer")
        url = found.get("jwks_uri")
        if not isinstance(url, str) or not is_secure_url(url):
            raise IssuerUnavailable(f"{issuer}{DISCOVERY} has no jwks_uri that begins with https")
        return self._document(url)

    def _document(self, url: str) -> Any:
        import httpx  # takes 0.17 s

        deadline, content = time.monotonic() + _LONGEST_S, bytearray()
        try:
            with (
                httpx.Client(timeout=_TIMEOUT_S, verify=self._context) as http,
                http.stream("GET", url, headers={"Accept": "application/json"}) as answer,
            ):
                if answer.status_code != 200:
                    raise IssuerUnavailable(f"{url} answered {answer.status_code}")
                for piece in answer.iter_bytes():
                    content += piece
                    if len(content) > _MAX_BYTES or time.monotonic() > deadline:
                        raise IssuerUnavailable(f"{url} is longer than {_MAX_BYTES} bytes or takes too long")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as exc:
            raise IssuerUnavailable(f"{url}: {type(exc).__name__}") from exc
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as exc:
            raise IssuerUnavailable(f"{url} is not JSON") from exc
