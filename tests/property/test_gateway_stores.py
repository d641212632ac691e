"""A store that answered is missing from the first look without it until it answers again or is given up.

On a real PostgreSQL; gateways are started, stopped, moved, lost, asked and given up in any order.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.database.sessions import connect
from include.integrity.days import gateways
from include.integrity.days.gateways import (
    NotMissing,
    StoresUnread,
    Unsent,
    give_up_store,
    missing_stores,
    note_stores,
    require_stores_read,
)
from tests.support.examples import examples
from tests.support.pipeline import migrated, rows

ADDRESSES = ("http://a", "http://b", "http://c")
STORES = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(5)]
STEPS = st.one_of(
    st.tuples(st.just("serve"), st.sampled_from(ADDRESSES), st.sampled_from(STORES)),
    st.tuples(st.just("silence"), st.sampled_from(ADDRESSES), st.none()),
    st.tuples(st.just("unlist"), st.sampled_from(ADDRESSES), st.none()),
    st.tuples(st.just("give up"), st.none(), st.sampled_from(STORES)),
    st.tuples(st.just("look"), st.none(), st.none()),
)


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    return migrated(None, postgres, "gateway_stores", tmp_path_factory.mktemp("stores"))


class Site:
    """The gateways by address, a store or silence, and what has to be remembered of the stores."""

    def __init__(self, settings):
        self._settings = settings
        self.gateways = {}
        self.last = {}  # of each store that answered and was not given up: its address and events
        self._events = 0

    def step(self, what, address, store):
        match what:
            case "serve":
                for other in [url for url, one in self.gateways.items() if one == store]:
                    del self.gateways[other]
                self.gateways[address] = store
            case "silence" if address in self.gateways:
                self.gateways[address] = None
            case "unlist":
                self.gateways.pop(address, None)
            case "look":
                self.look()
            case "give up":
                self.give_up(store)

    def ask(self, *_):
        """The answers of the gateways, as `unsent_or_reason` has them."""
        answers = {}
        for address, store in self.gateways.items():
            self._events += 1
            answers[address] = "no answer" if store is None else Unsent(self._events, 0, 0, store_id=store)
        return answers

    def look(self):
        answers = self.ask()
        note_stores(self._settings, answers)
        with connect(self._settings.database, "batch", "test") as connection, connection.cursor() as cursor:
            found = missing_stores(cursor, answers)
        self.last |= {one.store_id: (url, one.waiting) for url, one in answers.items() if isinstance(one, Unsent)}
        assert {one.store_id: (one.url, one.waiting) for one in found} == {
            store: (url, waiting)
            for store, (url, waiting) in self.last.items()
            if store not in self.present() and self.gateways.get(url, "") is not None
        }

    def present(self):
        return {store for store in self.gateways.values() if store is not None}

    def give_up(self, store):
        is_missing = store in self.last and store not in self.present()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gateways, "unsent_or_reason", self.ask)
            if is_missing:
                give_up_store(self._settings, store, "lost", "a test")
                del self.last[store]
            else:
                with pytest.raises(NotMissing):
                    give_up_store(self._settings, store, "lost", "a test")


@examples(40, 400)
@given(steps=st.lists(STEPS, max_size=30))
def test_a_store_is_missed_until_it_answers_or_is_given_up(settings, steps):
    rows(settings, "DELETE FROM gateway_store")
    site = Site(settings)
    for step in [*steps, ("look", None, None)]:
        site.step(*step)


def test_stores_are_read_when_each_has_sent_all_and_none_is_missing(settings, monkeypatch):
    rows(settings, "DELETE FROM gateway_store")
    held = {"http://a": Unsent(0, 0, 0, store_id=STORES[0]), "http://b": Unsent(0, 1, 0, store_id=STORES[1])}
    monkeypatch.setattr(gateways, "unsent", lambda _: held)
    monkeypatch.setattr(gateways, "unsent_or_reason", lambda *_: held)
    with pytest.raises(StoresUnread, match="'http://b': 1"):
        require_stores_read(settings)
    del held["http://b"]
    with pytest.raises(StoresUnread, match=f"'{STORES[1]}': 'missing'"):
        require_stores_read(settings)
    give_up_store(settings, STORES[1], "its disk is gone", "a test")
    require_stores_read(settings)
