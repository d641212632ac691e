"""The issuer's keys: fetched, refreshed, asked for, and kept while the issuer is out."""

import asyncio
from contextlib import closing, suppress
from unittest.mock import AsyncMock

import pytest

from include.gateway.auth.issuer_keys import MIN_INTERVAL_S, HttpIssuer, IssuerKeys, IssuerUnavailable
from include.runtime.settings import OidcSettings
from tests.support.issuer import SigningKey
from tests.support.messages import NO_KEY_SET

FIRST, SECOND = SigningKey("first", "ES256"), SigningKey("second", "ES256")


class Source:
    """A key source in memory."""

    def __init__(self, *keys):
        self.keys, self.error, self.fetches = keys, None, 0

    async def fetch(self):
        self.fetches += 1
        if self.error is not None:
            raise self.error
        return {"keys": [key.jwk for key in self.keys]}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def source():
    return Source(FIRST)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keys(source, clock):
    made = IssuerKeys(source, 300, clock)
    asyncio.run(made.fetch())
    return made


def is_unknown(keys, kid):
    """True if the issuer has no such key, False if that is not known at the moment."""
    try:
        assert keys.get(kid) is None
        return True
    except IssuerUnavailable:
        return False


def test_before_the_first_set_no_id_is_unknown(source, clock):
    keys = IssuerKeys(source, 300, clock)
    assert not is_unknown(keys, "first")
    assert keys.problem == "no keys of the token issuer yet"
    asyncio.run(keys.fetch())
    assert keys.get("first").algorithms == ("ES256",)
    assert keys.problem is None


def test_an_unknown_id_causes_one_fetch_in_an_interval(keys, source, clock):
    assert is_unknown(keys, "second")  # the set is new
    clock.now += MIN_INTERVAL_S
    source.keys = (FIRST, SECOND)
    assert not is_unknown(keys, "second")
    asyncio.run(keys.fetch())
    assert keys.get("second") is not None
    assert is_unknown(keys, "made-up")
    assert source.fetches == 2


def test_while_the_issuer_is_out_known_keys_stay_and_unknown_ids_are_open(keys, source, clock):
    source.error = IssuerUnavailable("out")
    version = keys.version
    for _ in range(3):
        asyncio.run(keys.fetch())
        assert keys.get("first") is not None
        assert not is_unknown(keys, "second")
        clock.now += 100_000
    assert keys.version == version
    assert "out" in keys.problem


@pytest.mark.parametrize("body", [None, [], {"keys": 7}, "text"])
def test_what_is_no_key_set_changes_nothing(keys, source, body):
    source.fetch = AsyncMock(return_value=body)
    asyncio.run(keys.fetch())
    assert keys.get("first") is not None
    assert NO_KEY_SET in keys.problem


def test_a_key_that_disappears_is_not_accepted_any_more(keys, source):
    source.keys = (SECOND,)
    asyncio.run(keys.fetch())
    assert is_unknown(keys, "first")
    assert keys.get("second") is not None


def test_a_set_without_a_usable_key_is_a_problem(keys, source, caplog):
    version = keys.version
    source.keys = ()
    for _ in range(2):
        asyncio.run(keys.fetch())
        assert not is_unknown(keys, "first")
        assert keys.problem == "the token issuer's key set has no usable key; every access token is refused"
    assert caplog.text.count("no usable key") == 1
    source.keys = (FIRST,)
    asyncio.run(keys.fetch())
    assert keys.get("first") is not None
    assert (keys.problem, keys.version) == (None, version + 2)


def test_the_version_grows_only_with_a_change_of_the_keys(keys, source):
    version = keys.version
    asyncio.run(keys.fetch())
    assert keys.version == version
    source.keys = (SigningKey("first", "ES256"),)  # the same id
    asyncio.run(keys.fetch())
    assert keys.version == version + 1


def test_unknown_ids_during_a_fetch_cause_no_further_one(source, clock):
    fetch = source.fetch

    async def slow():
        await asyncio.sleep(0.02)
        return await fetch()

    source.fetch = slow

    async def main():
        keys = IssuerKeys(source, 10_000, clock)
        running = asyncio.create_task(keys.run())
        async with asyncio.timeout(10):
            while keys.version == 0:
                await asyncio.sleep(0.001)
            clock.now += MIN_INTERVAL_S  # the next id that is unknown may cause a fetch
            outcomes = []
            for _ in range(100):
                outcomes.append(is_unknown(keys, "made-up"))
                await asyncio.sleep(0.002)
        running.cancel()
        return outcomes

    outcomes = asyncio.run(main())
    assert source.fetches == 2
    assert not outcomes[0]
    assert outcomes[-1]


def test_a_fetch_that_takes_too_long_is_a_problem(keys, source, monkeypatch):
    monkeypatch.setattr("include.gateway.auth.issuer_keys.FETCH_TIMEOUT_S", 0.05)
    source.fetch = asyncio.Event().wait
    asyncio.run(keys.fetch())
    assert "did not send them within 0.05 s" in keys.problem
    assert keys.get("first") is not None


def test_an_issuer_that_trickles_its_head_ends_no_later_than_the_timeout(monkeypatch):
    monkeypatch.setattr("include.gateway.auth.issuer_keys.FETCH_TIMEOUT_S", 0.3)

    async def trickle(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nx: ")
        with closing(writer), suppress(OSError):
            while True:
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.02)

    async def main():
        async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            keys = IssuerKeys(HttpIssuer(OidcSettings(f"http://127.0.0.1:{port}", "a")), 300)
            async with asyncio.timeout(5):
                await keys.fetch()
        return keys.problem

    assert "did not send them within 0.3 s" in asyncio.run(main())


def test_a_large_set_is_read_beside_the_loop(keys, source):
    made = SigningKey("0", "ES512").jwk
    source.fetch = AsyncMock(return_value={"keys": [{**made, "kid": str(number)} for number in range(9000)]})

    async def main():
        fetching, turns = asyncio.create_task(keys.fetch()), 0
        while not fetching.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert asyncio.run(main()) > 10
    assert keys.get("8999") is not None


def test_the_keys_are_fetched_regularly_and_sooner_when_asked(source):
    async def main():
        keys = IssuerKeys(source, 0.02)
        running = asyncio.create_task(keys.run())
        async with asyncio.timeout(10):
            while source.fetches < 3:
                await asyncio.sleep(0.001)
        running.cancel()
        slow = IssuerKeys(source, 10_000)
        before = source.fetches
        running = asyncio.create_task(slow.run())
        async with asyncio.timeout(10):
            while slow.version == 0:
                await asyncio.sleep(0.001)
            slow.refresh()
            while source.fetches - before < 2:
                await asyncio.sleep(0.001)
        running.cancel()
        return source.fetches - before

    assert asyncio.run(main()) == 2


def test_an_error_of_the_source_does_not_end_the_refresh(source, monkeypatch):
    monkeypatch.setattr("include.gateway.auth.issuer_keys.MIN_INTERVAL_S", 0.01)

    async def main():
        source.error = RuntimeError("unexpected")
        keys = IssuerKeys(source, 0.01)
        running = asyncio.create_task(keys.run())
        async with asyncio.timeout(10):
            while source.fetches < 2:
                await asyncio.sleep(0.001)
            source.error = None
            while keys.version == 0:
                await asyncio.sleep(0.001)
        running.cancel()

    asyncio.run(main())
