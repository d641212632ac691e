"""Fetches the keys of an OpenID Connect issuer by its discovery document."""

import asyncio
import json
from typing import Any

from include.gateway.auth.issuer_keys import IssuerUnavailable
from include.runtime.environment_reader import without_login
from include.runtime.settings import OidcSettings, is_secure_url

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
