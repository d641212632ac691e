"""A proxy before the object store, for the tests of the archive."""

import pytest

from include.archive import bucket as client
from tests.support.object_store import faulty_http


@pytest.fixture
def proxy(store, monkeypatch):
    """A proxy before the store. Tasks in other processes try as often as they always do."""
    monkeypatch.setattr(client, "TRIES", 2)
    client.client_of.cache_clear()
    with faulty_http(store) as found:
        yield found
    client.client_of.cache_clear()
