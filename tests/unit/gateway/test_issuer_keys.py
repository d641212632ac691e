"""The issuer's keys: fetched, refreshed, asked for, and kept while the issuer is out."""

import asyncio

import pytest

from include.gateway.issuer_keys import MIN_INTERVAL_S, IssuerKeys, IssuerUnavailable
from tests.support.issuer import SigningKey

FIRST, SECOND = SigningKey("first", "ES256"), SigningKey("second", "ES256")


class Source:
    """A key source in memory."""

    def __init__(self, *keys):
        self.keys, self.error, self.fetches = keys, None, 0

    def fetch(self):
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
    source.fetch = lambda: body
    asyncio.run(keys.fetch())
    assert keys.get("first") is not None
    assert "not a JSON Web Key Set" in keys.problem


def test_a_key_that_disappears_is_not_accepted_any_more(keys, source):
    source.keys = (SECOND,)
    asyncio.run(keys.fetch())
    assert is_unknown(keys, "first")
    assert keys.get("second") is not None
    source.keys = ()
    asyncio.run(keys.fetch())
    assert is_unknown(keys, "second")


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
            while slow.version == 1:
                await asyncio.sleep(0.001)
        running.cancel()
        return source.fetches - before

    assert asyncio.run(main()) == 2


def test_an_error_of_the_source_does_not_end_the_refresh(source, monkeypatch):
    monkeypatch.setattr("include.gateway.issuer_keys.MIN_INTERVAL_S", 0.01)

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
