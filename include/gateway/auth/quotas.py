"""Limits of each client by requests and by bytes a second."""

import math
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from include.gateway.auth.token_file import is_of_issuer, series_of
from include.gateway.http.message import fault

BURST_S = 2.0  # a client that was quiet may use the quota of so many seconds at once
_LEAST_PRUNED = 1024  # buckets of the issuer's clients, from which on full ones are dropped
Kind = Literal["requests", "bytes"]


@dataclass(slots=True)
class _Bucket:
    """The rest of a quota. It is negative after a request larger than the rest before."""

    left: float
    since: float


class Quotas:
    """Token buckets by client, which is the name of a token or a client of the issuer. Not thread-safe.

    A request is refused while the client's bucket is empty. One that is admitted is taken in full, so a body may be
    larger than the quota: the client then waits longer for its next request. A limit of 0 means none. Buckets of the
    issuer's clients are dropped when they are full again, because a new one is full, too.
    """

    def __init__(self, requests_per_s: int, bytes_per_s: int, clock: Callable[[], float]) -> None:
        """`clock` returns seconds that never go back."""
        limits: dict[Kind, int] = {"requests": requests_per_s, "bytes": bytes_per_s}
        self.limits = {kind: limit for kind, limit in limits.items() if limit}
        self.refused: Tally[tuple[str, Kind]] = Tally()
        self._clock = clock
        self._named: dict[tuple[str, Kind], _Bucket] = {}  # of clients in the tokens file
        self._issued: dict[tuple[str, Kind], _Bucket] = {}  # of clients of the issuer
        self._prune_at = _LEAST_PRUNED

    def admit(self, client: str) -> None:
        """Take one request from the client's quota. Raises Fault 429 if a quota is used up."""
        for kind in self.limits:
            wait_s = self.wait_s(client, kind)
            if wait_s > 0:
                self.refused[series_of(client), kind] += 1
                retry_after = (b"retry-after", b"%d" % math.ceil(wait_s))
                reason = f"more {kind} a second than this client may send"
                raise fault(429, "", reason, "retry after the time in Retry-After", (retry_after,))
        self._take(client, "requests", 1)

    def charge(self, client: str, size: int) -> None:
        """Take the bytes of a body from the client's quota."""
        self._take(client, "bytes", size)

    def left(self, client: str, kind: Kind) -> float:
        """Return what is left of a quota now."""
        bucket = self._buckets(client).get((client, kind))
        return self.limits[kind] * BURST_S if bucket is None else self._fill(bucket, kind)

    def wait_s(self, client: str, kind: Kind) -> float:
        """Return the seconds until the quota admits a request again; 0 if it does now."""
        left, needed = self.left(client, kind), 1 if kind == "requests" else 0
        return max(0.0, (needed - left) / self.limits[kind])

    @property
    def known(self) -> list[tuple[str, Kind]]:
        """Clients of the tokens file that sent something, with each of their quotas."""
        return list(self._named)

    @property
    def size(self) -> int:
        """The number of buckets in memory."""
        return len(self._named) + len(self._issued)

    def _buckets(self, client: str) -> dict[tuple[str, Kind], _Bucket]:
        return self._issued if is_of_issuer(client) else self._named

    def _fill(self, bucket: _Bucket, kind: Kind) -> float:
        limit, now = self.limits[kind], self._clock()
        bucket.left = min(limit * BURST_S, bucket.left + (now - bucket.since) * limit)
        bucket.since = now
        return bucket.left

    def _take(self, client: str, kind: Kind, count: int) -> None:
        if kind in self.limits:
            buckets = self._buckets(client)
            bucket = buckets.get((client, kind))
            if bucket is None:
                bucket = buckets[client, kind] = _Bucket(self.limits[kind] * BURST_S, self._clock())
                self._prune()
            bucket.left = self._fill(bucket, kind) - count

    def _prune(self) -> None:
        """Drop full buckets when their number has doubled, which costs each request a constant on average."""
        if len(self._issued) >= self._prune_at:
            full = [
                key for key, each in self._issued.items() if self._fill(each, key[1]) >= self.limits[key[1]] * BURST_S
            ]
            for key in full:
                del self._issued[key]
            self._prune_at = max(_LEAST_PRUNED, 2 * len(self._issued))
