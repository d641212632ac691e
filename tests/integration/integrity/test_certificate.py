"""Certificates on a real PostgreSQL: the query behind each term, and the reasons against a certificate."""

import datetime as dt
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from psycopg2.errors import InsufficientPrivilege
from psycopg2.extras import execute_values

from include.airflow_support import steps
from include.contracts.clock import rfc3339
from include.contracts.errors import BalanceBroken, ConfigurationError, NothingBuilt
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import hashed_columns
from include.database.named import query
from include.database.sessions import connect
from include.gateway.client import GatewayUnavailable
from include.integrity.days import certificate as certificate_module
from include.integrity.days.catch_up import LateVersion
from include.integrity.days.certificate import DayChanged
from include.integrity.days.comparison import verify
from include.integrity.days.day_checks import request_check
from include.integrity.days.gateways import Unsent, gateways, note_stores, unsent
from include.runtime.settings import Settings
from stack.machine import unused
from tests.servers import wait_until
from tests.support.certifying import OTHER_STORE, STORE, all_is_known, certify_alone, gateway_with
from tests.support.http import HTTP
from tests.support.messages import RECORDS_REACHED
from tests.support.pipeline import environment, migrated, rows
from tests.support.publication import open_as, publish
from tests.support.serving import DAY, NOON, build, duplicate, exclude, opened_store, row, serve

STATUS = "SELECT status, certified_at IS NOT NULL FROM day_publication"
DOCUMENT = "INSERT INTO site.board_document (id, document, modified_at, deleted_at) VALUES (%s, %s, %s, %s)"


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "certificates", tmp_path)


def with_gateways(postgres, tmp_path, *urls):
    variables = environment(None, postgres, "certificates", tmp_path)
    return Settings.from_environment({**variables, "GATEWAY_URL": ",".join(urls), "GATEWAY_ADMIN_TOKEN": "admin"})


def published(settings, built_rows, **more):
    generation = build(settings, built_rows, cut=9, run_id="r", **more)
    verify(settings, DAY, "r")
    publish(settings, DAY, "r")
    return generation


def stored(settings):
    return rows(settings, "SELECT term, value, query FROM day_certificate ORDER BY position", role="analyst")


def test_every_terms_query_counts_it_again(postgres, settings, tmp_path):
    with gateway_with(2) as one, gateway_with(3) as other:
        settings = with_gateways(postgres, tmp_path, one, f"{other}/")
        noon, tomorrow = rfc3339(NOON), rfc3339(DAY.end)
        for number, (created, deleted_at) in enumerate([(noon, None), (noon, NOON), (tomorrow, None)], 1):
            rows(settings, DOCUMENT, (number, json.dumps({"createdAt": created}), NOON, deleted_at))
        generation = build(settings, [row(1, 1), row(2, 2)], cut=9, run_id="r", pending=[(3, 3)])
        duplicate(settings, generation, board_id=1, copies=3)
        verify(settings, DAY, "r")
        publish(settings, DAY, "r")

        certificate = certify_alone(settings, DAY, unsent)

        assert {term.name: term.value for term in certificate.terms} == {
            "recorded": "1",
            "accepted": "8",
            "fallback_pending": "5",
            "raw_distinct": "3",
            "rows": "2",
            "pending": "1",
            "rejected": "0",
            "deleted": "0",
            "moved": "0",
            "duplicates": "2",
            "misplaced": "0",
            "corrections": "3",
            "unaccounted": "0",
            "missing_stores": "0",
            "unexplained": "0",
            "dirty": "0",
            "unread": "0",
            "unchecked": "0",
            "unrecovered": "0",
            "content_hash": rows(settings, "SELECT content_hash FROM generation")[0][0],
            "behind": "0",
        }
        assert [name for name, *_ in stored(settings)] == [term.name for term in certificate.terms]
        for name, value, statement in stored(settings):
            if name == "behind":
                continue  # it asks a broker: test_late_versions
            assert counted_again(settings, statement) == value, name


def counted_again(settings, statement):
    if not statement.startswith("GET "):
        return str(rows(settings, statement, role="batch")[0][-1])
    total = 0
    for line in statement.splitlines():
        held = HTTP.get(line.removeprefix("GET "), headers={"Authorization": "Bearer admin"}).json()
        total += held["backlog"] + held["refused"] + held["lost"]
    return str(total)


def test_a_balanced_day_is_certified(settings):
    published(settings, [row(1, 1), row(2, 2)])
    certificate = certify_alone(settings, DAY)
    assert (certificate.reason, certificate.count("rows")) == (None, 2)
    assert rows(settings, STATUS) == [("certified", True)]


@pytest.mark.parametrize(
    ("held", "word"),
    [
        (Unsent(4, 0, 0, store_id=OTHER_STORE), "4 events wait"),
        (Unsent(0, 4, 0, store_id=OTHER_STORE), "4 events are set aside"),
        (Unsent(0, 0, 4, store_id=OTHER_STORE), "4 events were lost"),
    ],
    ids=["waiting", "set aside", "lost"],
)
def test_a_day_is_not_certified_while_an_accepted_event_is_in_no_topic(settings, held, word):
    published(settings, [row(1, 1)])
    drained = {url: Unsent(0, 0, 0, store_id=one) for url, one in (("http://a", STORE), ("http://b", OTHER_STORE))}
    certificate = certify_alone(settings, DAY, lambda _: drained | {"http://b": held})
    assert f"{word} " in certificate.reason
    assert "http://b" in certificate.reason
    assert "http://a" not in certificate.reason
    assert (certificate.count("fallback_pending"), certificate.count("accepted")) == (4, 5)
    assert rows(settings, STATUS) == [("rebuilt", False)]
    assert word in rows(settings, "SELECT uncertified_reason FROM day_trust", role="analyst")[0][0]

    assert certify_alone(settings, DAY, lambda _: drained).reason is None
    assert rows(settings, STATUS) == [("certified", True)]
    assert rows(settings, "SELECT uncertified_reason FROM day_trust") == [(None,)]


def test_a_day_with_an_unexplained_difference_is_not_certified(settings):
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1)])
    finally:
        store.close()
    published(settings, [row(1, 1, title="nobody knows why")])
    assert "1 differences are unexplained" in certify_alone(settings, DAY).reason
    assert rows(settings, STATUS) == [("rebuilt", False)]


KNOWN_OTHERWISE = {
    "a row": None,
    "pending": lambda settings, store, generation: exclude(settings, generation, "pending", 5, 5),
    "rejected": lambda settings, store, generation: exclude(settings, generation, "rejected", 5, 5),
    "deleted": lambda settings, store, generation: exclude(settings, generation, "deleted", 5, 5),
    "moved": lambda settings, store, generation: exclude(settings, generation, "moved", 5, 5),
    "live": lambda settings, store, generation: serve(store, [row(5, 50)]),
    "forgotten": None,
}


@pytest.mark.parametrize("state", KNOWN_OTHERWISE)
def test_a_board_that_the_system_of_record_has_must_be_in_some_term(settings, state):
    rows(settings, DOCUMENT, (5, json.dumps({"createdAt": rfc3339(NOON)}), NOON, None))
    store = opened_store(settings)
    try:
        generation = published(settings, [row(1, 1), *([row(5, 5)] if state == "a row" else [])])
        if KNOWN_OTHERWISE[state]:
            KNOWN_OTHERWISE[state](settings, store, generation)
            if state in ("pending", "rejected"):
                rows(settings, "UPDATE generation SET raw_distinct = 2")
    finally:
        store.close()
    certificate = certify_alone(settings, DAY)
    assert certificate.count("unaccounted") == (state == "forgotten")
    assert bool(certificate.reason) == (state in ("forgotten", "live"))  # the live one came after the build


def test_no_hash_that_analysts_read_tells_a_masked_value(settings):
    """Of a day with one row, an analyst knows all that was hashed but the phone number, which has few digits."""
    generation = published(settings, [row(1, 1, phone="010-1234-5678")])
    assert certify_alone(settings, DAY).reason is None
    columns = ", ".join(hashed_columns(PIPELINE))
    guessed = f"SELECT hash_record_extended(ROW({columns}), %s)::text FROM detail_final WHERE generation_id = %s"
    ((seed,),) = rows(settings, "SELECT hash_seed()", role="batch")

    values = {value for _, value, _ in stored(settings)}
    assert rows(settings, guessed, (seed, generation)) == [(value,) for value in values if len(value) > 10]
    assert rows(settings, guessed, (0, generation))[0][0] not in values
    assert str(seed) not in str(stored(settings))
    for statement in ("SELECT hash_seed()", "SELECT value FROM pipeline_setting"):
        with pytest.raises(InsufficientPrivilege):
            rows(settings, statement, role="analyst")


def test_a_build_of_a_release_without_the_secret_is_hashed_when_it_is_certified(settings):
    published(settings, [row(1, 1)])
    hashes = "SELECT g.content_hash, p.content_hash FROM generation g JOIN day_publication p ON p.generation_id = g.id"
    ((kept, _),) = rows(settings, hashes)
    for table in ("generation", "day_publication"):
        rows(settings, f"UPDATE {table} SET content_hash = NULL", role="pipeline_owner")
    assert certify_alone(settings, DAY).reason is None
    assert rows(settings, hashes) == [(kept, kept)]


def test_a_board_that_the_stream_showed_must_be_in_some_term(settings):
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1), row(2, 2)])
    finally:
        store.close()
    build(settings, [row(1, 1)], cut=9, run_id="r")
    verify(settings, DAY, "r")
    publish(settings, DAY, "r", reason="a test", accept_vanishing=True)
    assert "1 board keys that the system of record or the stream had" in certify_alone(settings, DAY).reason
    assert rows(settings, STATUS) == [("rebuilt", False)]


def late_board(settings, store):
    serve(store, [row(5, 50)])


def board_that_left(settings, store):
    """The stream has it on a day that is not published: nobody compared it with the day that shows it."""
    tomorrow = DAY.date + dt.timedelta(days=1)
    serve(store, [row(1, 50, modified_at=NOON + dt.timedelta(hours=1), day=tomorrow)])


def late_version(settings, store):
    """A version of the member that the boards did not take; the check that would say so was not made."""
    late = LateVersion("members", 0, 5, 7, NOON - dt.timedelta(hours=1))
    with connect(settings.database, "batch", "test") as connection, connection.cursor() as cursor:
        execute_values(cursor, query("insert_late_versions", PIPELINE), [late])
        request_check(cursor, DAY.date)


@pytest.mark.parametrize("reach", [late_board, board_that_left, late_version])
def test_a_day_that_something_reached_since_its_build_is_not_certified(settings, reach):
    store = opened_store(settings)
    try:
        published(settings, [row(1, 1), row(2, 2)])
        assert certify_alone(settings, DAY).reason is None
        reach(settings, store)
        certificate = certify_alone(settings, DAY)
    finally:
        store.close()
    assert RECORDS_REACHED in (certificate.reason or "")
    assert certificate.needs_only_rebuild
    assert rows(settings, f"{STATUS} WHERE day = %s", (DAY.date,)) == [("rebuilt", False)]


@pytest.mark.parametrize(("difference", "error"), [(False, steps.NeedsRebuild), (True, steps.NotCertified)])
def test_the_task_of_a_dirty_day_waits_for_a_rebuild_unless_a_person_has_to_look(
    postgres, settings, tmp_path, monkeypatch, difference, error
):
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1, title="nobody knows why" if difference else "v1")])
        published(settings, [row(1, 1)])
        serve(store, [row(5, 50)])
    finally:
        store.close()
    with gateway_with(0) as url:
        variables = environment(None, postgres, "certificates", tmp_path)
        for name, value in {**variables, "GATEWAY_URL": url, "GATEWAY_ADMIN_TOKEN": "admin"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(certificate_module, "certify", partial(certify_alone, ask_gateways=unsent))
        with pytest.raises(error, match=f"1 {RECORDS_REACHED}"):
            steps.certify("board_detail", str(DAY))


def test_a_batch_that_marks_the_day_meanwhile_is_waited_for(settings):
    published(settings, [row(1, 1)])
    with closing(open_as(settings, "stream")) as batch, ThreadPoolExecutor(1) as pool:
        with batch.cursor() as cursor:
            cursor.execute("SELECT FROM day_publication WHERE day = %s FOR SHARE", (DAY.date,))  # as lock_days
            cursor.execute("INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late board', 1)", (DAY.date,))
        certifying = pool.submit(certify_alone, settings, DAY)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'certify' AND wait_event_type = 'Lock'"
        wait_until(lambda: rows(settings, waits, role="pipeline_owner") == [(1,)], 30, "it waits for the batch")
        batch.commit()
        assert f"1 {RECORDS_REACHED}" in (certifying.result(30).reason or "")
    assert rows(settings, STATUS) == [("rebuilt", False)]


def test_a_day_that_moved_on_while_its_terms_were_counted_is_not_certified(settings, monkeypatch):
    published(settings, [row(1, 1)])
    plain = certificate_module._terms

    def then_publish(*arguments):
        counted = plain(*arguments)
        build(settings, [row(1, 1), row(2, 2)], cut=10, run_id="next")
        publish(settings, DAY, "next")
        return counted

    monkeypatch.setattr(certificate_module, "_terms", then_publish)
    with pytest.raises(DayChanged, match="was published or undone"):
        certify_alone(settings, DAY)
    assert rows(settings, STATUS) == [("rebuilt", False)]
    assert stored(settings) == []


def test_a_board_that_got_lost_breaks_the_balance(settings):
    build(settings, [row(1, 1)], cut=9, run_id="r")
    publish(settings, DAY, "r")
    rows(settings, "UPDATE generation SET raw_distinct = 2")
    with pytest.raises(BalanceBroken, match="raw_distinct=2, rows=1"):
        certify_alone(settings, DAY)
    assert rows(settings, STATUS) == [("rebuilt", False)]
    assert ("raw_distinct", "2") in [(term, value) for term, value, _ in stored(settings)]


@pytest.mark.parametrize(
    "change",
    ["UPDATE detail_final SET title = 'changed'", "DELETE FROM detail_final WHERE board_id = 2"],
)
def test_rows_changed_after_the_build_take_the_certificate_away(settings, change):
    published(settings, [row(1, 1), row(2, 2)])
    certify_alone(settings, DAY)
    rows(settings, change)
    with pytest.raises(BalanceBroken, match="is_same_hash=False"):
        certify_alone(settings, DAY)
    assert rows(settings, STATUS) == [("rebuilt", False)]


def test_certifying_twice_keeps_one_certificate(settings):
    published(settings, [row(1, 1)])
    first, second = certify_alone(settings, DAY), certify_alone(settings, DAY)
    assert [term.value for term in second.terms] == [term.value for term in first.terms]
    assert stored(settings) == [(term.name, term.value, term.query) for term in second.terms]


def test_a_store_that_another_program_notes_meanwhile_is_missing(settings):
    """Behind one address are two gateways: the watch meets one, the certificate the other."""
    published(settings, [row(1, 1)])
    ids = {name: str(uuid.uuid4()) for name in ("asked", "lost")}

    def catch_up(_settings):
        note_stores(settings, {"http://a": Unsent(5, 0, 0, store_id=ids["lost"])})
        return all_is_known(settings)

    asked = {"http://a": Unsent(0, 0, 0, store_id=ids["asked"])}
    certificate = certify_alone(settings, DAY, lambda _: asked, catch_up)
    assert f"store {ids['lost']} of http://a" in certificate.reason
    assert certificate.count("missing_stores") == 1
    [term] = [term for term in certificate.terms if term.name == "missing_stores"]
    assert rows(settings, term.query, role="batch") == [(1,)]


def test_a_day_that_is_not_published_has_nothing_to_certify(settings):
    with pytest.raises(NothingBuilt, match="not published"):
        certify_alone(settings, DAY)


class TestGateways:
    def test_a_gateway_that_does_not_answer_is_tried_again_later_and_nothing_is_certified(
        self, postgres, settings, tmp_path
    ):
        published(settings, [row(1, 1)])
        (port,) = unused(1)
        with gateway_with(0) as up, pytest.raises(GatewayUnavailable):
            certify_alone(with_gateways(postgres, tmp_path, up, f"http://127.0.0.1:{port}"), DAY, unsent)
        assert rows(settings, STATUS) == [("rebuilt", False)]

    def test_each_is_asked_once_whatever_the_list_looks_like(self, postgres, tmp_path):
        settings = with_gateways(postgres, tmp_path, "http://a/", " http://b", "", "http://a")
        assert [gateway.url for gateway in gateways(settings)] == ["http://a", "http://b"]

    def test_asking_needs_the_admin_token(self, settings):
        with pytest.raises(ConfigurationError, match="GATEWAY_ADMIN_TOKEN"):
            unsent(settings)
