"""Blocking client of the gateway, for tasks, the demo and the load generator."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from include.contracts.errors import ConfigurationError, PipelineError, Retryable
from include.runtime.environment_reader import without_login
from include.runtime.settings import GatewayLimits, GatewaySettings, Settings

if TYPE_CHECKING:
    import httpx  # imported when a client is created: it takes 0.17 s, and most commands call no gateway

_TIMEOUT_S = 15.0
_POLL_S = 0.2


def no_answer(timeout_s: float) -> str:
    """Return the reason of a call that timed out: the same words, whether the client or its caller stopped waiting."""
    return f"no answer within {timeout_s:g} s"


class GatewayUnavailable(Retryable):
    """The gateway cannot be reached, or takes nothing from this client now."""


class GatewayRefused(PipelineError):
    """The gateway refused the call."""


@dataclass(frozen=True)
class ReplayReport:
    """Counts of a replay: records sent and set aside while it was watched, and those still waiting."""

    sent: int
    left: int
    refused: int


class GatewayClient:
    """One connection pool to a gateway; close it, or use it as a context. Not for the event loop: every call blocks."""

    def __init__(self, settings: GatewaySettings, timeout_s: float = _TIMEOUT_S) -> None:
        import httpx

        self._transport_error, self._timed_out = httpx.TransportError, httpx.TimeoutException
        self._timeout_s = timeout_s
        self._url = settings.url
        self._limits = settings.limits
        self._data = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._admin = {"Authorization": f"Bearer {settings.admin_token}"} if settings.admin_token else {}
        # without TLS nothing is verified, and no certificates are loaded
        verify = settings.client_tls.context() if httpx.URL(settings.url).scheme != "http" else False
        self._http = httpx.Client(base_url=settings.url, timeout=timeout_s, trust_env=False, verify=verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def post_event(self, topic: str, value: object, idempotency_key: str | None = None) -> dict[str, Any]:
        """Send one event and return {"eventId", "keptIn"}. Raises GatewayUnavailable, GatewayRefused."""
        extra = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._answer(self._call("POST", f"/topics/{topic}/events", self._data | extra, value))

    def post_events(self, topic: str, values: Sequence[object]) -> list[dict[str, Any]]:
        """Send events in as few calls as the gateway's limits allow. Return one result per event, in order.

        Each result has its `status`. An invalid event has status 400 and `details`, and raises nothing. Raises
        GatewayUnavailable if the gateway cannot be reached. Events of earlier calls are kept then, so sending all of
        them again duplicates these.
        """
        results: list[dict[str, Any]] = []
        for body in _bodies(values, self._limits):
            response = self._call("POST", f"/topics/{topic}/events", self._data, body)
            content = self._content(response)
            if "results" not in content:
                self._answer(response)
            results += content["results"]
        return results

    def post_member(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Create a member; the answer has its `id`."""
        return self._answer(self._call("POST", "/members", self._data, fields))

    def post_board(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Create a board; the answer has its `id`."""
        return self._answer(self._call("POST", "/boards", self._data, fields))

    def fallback(self) -> dict[str, Any]:
        """Return the state of the fallback store, as GET /fallback answers it."""
        return self._answer(self._call("GET", "/fallback", self._admin))

    def replay(self) -> dict[str, Any]:
        """Request a drain and return without waiting for it."""
        return self._answer(self._call("POST", "/fallback/replay", self._admin))

    def _call(self, method: str, path: str, headers: Mapping[str, str], body: object = None) -> "httpx.Response":
        content = None
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
            content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        try:
            return self._http.request(method, path, headers=headers, content=content)
        except self._transport_error as exc:
            reason = no_answer(self._timeout_s) if isinstance(exc, self._timed_out) else type(exc).__name__
            raise GatewayUnavailable(url=without_login(self._url), call=f"{method} {path}", reason=reason) from exc

    def _content(self, response: "httpx.Response") -> dict[str, Any]:
        """Return the JSON object of an answer. Raises GatewayUnavailable if another program answers at this address."""
        try:
            content = response.json()
        except ValueError:
            content = None
        is_gateways = isinstance(content, dict) and (response.is_success or bool({"error", "results"} & content.keys()))
        if not is_gateways:
            call = f"{response.request.method} {response.request.url.path}"
            reason = f"HTTP {response.status_code} that is not a gateway's"
            raise GatewayUnavailable(url=without_login(self._url), call=call, reason=reason)
        answer: dict[str, Any] = content
        return answer

    def _answer(self, response: "httpx.Response") -> dict[str, Any]:
        content = self._content(response)
        if response.is_success:
            return content
        call = f"{response.request.method} {response.request.url.path}"
        reason = content["error"]
        if response.status_code in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            raise GatewayUnavailable(url=without_login(self._url), call=call, reason=reason)
        details = "; ".join(f"{d['pointer'] or '/'}: {d['problem']}, {d['remedy']}" for d in content["details"])
        raise GatewayRefused(call=call, status=response.status_code, reason=details or reason)


def replay_fallback(settings: Settings, timeout_s: float = 300.0) -> ReplayReport:
    """Request a drain of the gateway's fallback store, and poll until it is empty or `timeout_s` has passed.

    Returns also when records are left; see `left`. Raises GatewayUnavailable (Retryable) if the gateway cannot be
    reached, and ConfigurationError without an admin token.
    """
    if not settings.gateway.admin_token:
        raise ConfigurationError("GATEWAY_ADMIN_TOKEN is not set; the replay calls need it")
    deadline = time.monotonic() + timeout_s
    with GatewayClient(settings.gateway) as gateway:
        before = gateway.fallback()
        now = gateway.replay()
        while now["backlog"] > 0 and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            now = gateway.fallback()
    return ReplayReport(
        sent=max(0, now["replayed"] - before["replayed"]),
        left=now["backlog"],
        refused=max(0, now["setAside"] - before["setAside"]),
    )


def _bodies(values: Sequence[object], limits: GatewayLimits) -> Iterator[bytes]:
    """Yield JSON arrays of the values, each within the gateway's limits."""
    batch: list[bytes] = []
    size = 2
    for value in values:
        encoded = msgspec.json.encode(value)
        if batch and (len(batch) == limits.max_events or size + len(encoded) + 1 > limits.max_body_bytes):
            yield b"[" + b",".join(batch) + b"]"
            batch, size = [], 2
        batch.append(encoded)
        size += len(encoded) + 1
    if batch:
        yield b"[" + b",".join(batch) + b"]"
