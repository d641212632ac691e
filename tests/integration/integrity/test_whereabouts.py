"""Every stage of a post on its way is found, on a real broker and a real PostgreSQL."""

import dataclasses
import datetime as dt
import json

import pytest

from include.contracts.headers import ACCEPTED_AT, EVENT_ID, REPLAYED_AT
from include.gateway.client import GatewayUnavailable
from include.integrity.days.comparison import verify
from include.integrity.days.gateways import Unsent
from include.integrity.days.pruning import cover
from include.integrity.days.publication import undo
from include.integrity.pages.app import FIND_LIMITS
from include.integrity.pages.whereabouts import NothingToFind, SearchLimits, SearchTooLong, find
from include.kafka import offsets
from include.runtime.kafka_connection import KafkaConnection
from pipeline.__main__ import main
from tests.fakes.events import board
from tests.support.certifying import STORE, nothing_waits, take_everything
from tests.support.pipeline import environment, produce, rows, with_topics
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, exclude, opened_store, pending, row, serve, tombstone

ACCEPTED = "2026-11-20T03:00:00.000Z"


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    settings = with_topics(kafka, postgres, "whereabouts", tmp_path)
    take_everything(settings)  # records of other tests
    return settings


@pytest.fixture
def streamed(settings):
    """The stream has written posts 1 and 2."""
    store = opened_store(settings)
    try:
        serve(store, [row(1, 11, nickname="저녁"), row(2, 12)])
        yield store
    finally:
        store.close()


def look(settings, ask_gateways=nothing_waits, **arguments):
    """The result, which is the same for the page: with its limits and the rights of its role."""
    found = find(settings, ask_gateways=ask_gateways, **arguments)
    assert find(settings, ask_gateways=ask_gateways, limits=FIND_LIMITS, **arguments) == found
    return found


def places(found):
    return [(trace.place, trace.is_shown) for trace in found.traces]


def test_a_post_is_shown_as_the_stream_wrote_it(settings, streamed):
    found = look(settings, key=1)

    assert found.verdict == f"board 1 is shown in day {DAY}, as the stream wrote it"
    (trace,) = found.traces
    assert (trace.place, trace.day, trace.generation_id, trace.event_id) == ("live", DAY.date, None, "e11")
    assert (trace.stream, trace.table, trace.output) == ((0, 11), (0, 0), (0, 11))
    assert trace.version_at == NOON


def test_a_rebuilt_post_names_its_generation_and_the_reason_it_differs(settings, streamed):
    morning = row(1, 11, nickname="아침", phone="010-1234-5678", table_offset=4)
    generation = build(settings, [morning, row(2, 12)], cut=20, run_id="night")
    verify(settings, DAY, "night")
    publish(settings, DAY, "night")

    found = look(settings, key=1)

    assert found.verdict == f"board 1 is shown in day {DAY}, from generation {generation}"
    assert ("final", True) in places(found)
    assert ("live", True) not in places(found)
    (sample,) = found.corrections
    assert (sample.correction, sample.after["nickname"]) == ("member_version_changed", "아침")
    assert sample.after["phone"] == "(hidden)"


def test_an_undone_generation_is_found_and_not_shown(settings, streamed):
    build(settings, [row(1, 11, nickname="아침", table_offset=4), row(2, 12)], cut=20, run_id="night")
    verify(settings, DAY, "night")
    publish(settings, DAY, "night")
    undo(settings, DAY, made_by="a test", reason="wrong")

    found = look(settings, key=1)

    assert found.verdict == f"board 1 is shown in day {DAY}, as the stream wrote it"
    assert sorted(places(found)) == [("final", False), ("live", True)]


def test_an_event_is_found_by_its_id_in_the_stream_and_in_a_published_day(settings, streamed):
    assert look(settings, event_id="e12").key == 2
    build(settings, [row(1, 11), row(2, 12), row(3, 13)], cut=20, run_id="night")
    verify(settings, DAY, "night")
    publish(settings, DAY, "night")

    found = look(settings, event_id="e13")

    assert (found.key, found.traces[0].event_id) == (3, "e13")
    assert look(settings, event_id="e13", day=DAY).key == 3
    assert look(settings, event_id="e13", day=DAY.before(1)).key is None


def test_a_post_whose_author_is_unknown_waits(settings):
    pending(settings, board_id=5, offset=3)

    assert look(settings, key=5).verdict == "board 5 waits: its member 99 is not known, or was deleted"


def test_the_newest_record_says_how_far_a_post_is(settings, streamed):
    """A build that the day shows, or showed, has it as pending; it was deleted since, and comes again and waits."""
    pending(settings, board_id=5, offset=13)
    others = [row(1, 11, nickname="저녁"), row(2, 12)]
    built = build(settings, others, cut=20, run_id="night", pending=[(5, 13)])
    publish(settings, DAY, "night")
    waits = "board 5 waits: its member 99 is not known, or was deleted"
    assert look(settings, key=5).verdict == waits

    serve(streamed, [tombstone(5, 25, at=NOON + dt.timedelta(minutes=1))])
    found = look(settings, key=5)
    assert found.verdict == "board 5 was deleted"
    assert ("pending", built) in [(trace.place, trace.generation_id) for trace in found.traces]

    again = build(settings, others, cut=26, run_id="again")
    exclude(settings, again, "deleted", board_id=5, offset=25, at=NOON + dt.timedelta(minutes=1))
    publish(settings, DAY, "again")
    cover(settings, DAY)
    assert look(settings, key=5).verdict == "board 5 was deleted"

    pending(settings, board_id=5, offset=27, version_at=NOON + dt.timedelta(minutes=2))
    assert look(settings, key=5).verdict == waits


def test_a_deleted_post(settings, streamed):
    serve(streamed, [tombstone(1, 15, at=NOON + dt.timedelta(minutes=1))])

    found = look(settings, key=1)

    assert found.verdict == "board 1 was deleted"
    assert places(found) == [("live", False)]


def test_a_post_that_a_rebuild_left_out_says_why(settings, streamed):
    generation = build(settings, [row(2, 12)], cut=20, run_id="night")
    exclude(settings, generation, "rejected", board_id=9, offset=9)

    found = look(settings, key=9)

    assert found.verdict == "board 9 was rejected by the rebuild: a test says so"
    assert [(trace.generation_id, trace.stream) for trace in found.traces] == [(generation, (0, 9))]


def test_a_rejected_record_says_why(settings):
    rows(
        settings,
        'INSERT INTO reject (topic, partition, "offset", reason, key, rejected_by)'
        " VALUES ('board', 1, 4, '/memberId: missing', '6', 'join')",
        role="stream",
    )

    found = look(settings, key=6)

    assert found.verdict == "board 6 was rejected: /memberId: missing"
    assert found.traces[0].stream == (1, 4)


@pytest.mark.parametrize("name", [{"key": 7}, {"event_id": "e-7"}])
def test_a_record_that_the_stream_has_not_taken_is_found_in_kafka(settings, name):
    produce(settings, [("board", 8, board(8, 7))], headers={EVENT_ID: "e-8"})
    produce(
        settings, [("board", 7, board(7, 7))], headers={EVENT_ID: "e-7", ACCEPTED_AT: ACCEPTED, REPLAYED_AT: ACCEPTED}
    )

    found = look(settings, **name)

    assert found.verdict.startswith("board 7 is in Kafka, and the stream has not taken it yet")
    (trace,) = found.traces
    assert (trace.place, trace.event_id, trace.at.isoformat()) == ("untaken", "e-7", "2026-11-20T03:00:00+00:00")
    assert trace.note.startswith("kept in a fallback store until 2026-11-20")


def test_a_detail_that_is_not_served_yet_is_found_in_the_output_topic(settings):
    produce(settings, [("board-detail", 7, {"boardId": 7})])

    assert places(look(settings, key=7)) == [("unserved", False)]


def test_a_taken_record_says_when_it_was_accepted(settings):
    produce(settings, [("board", 7, board(7, 7))], headers={EVENT_ID: "e-7", ACCEPTED_AT: ACCEPTED})
    at = look(settings, key=7).traces[0].stream
    store = opened_store(settings)
    try:
        serve(store, [row(7, at.offset, stream_partition=at.partition)])
    finally:
        store.close()

    accepted = next(trace for trace in look(settings, key=7).traces if trace.place == "accepted")

    assert (accepted.stream, accepted.event_id) == (at, "e-7")
    assert accepted.at.isoformat() == "2026-11-20T03:00:00+00:00"


def test_an_event_that_may_wait_in_a_gateway(settings):
    found = look(settings, key=7, ask_gateways=lambda _: {"http://gateway": Unsent(12, 0, 0, store_id=STORE)})

    assert "12 events are in the gateways' stores" in found.verdict


def test_a_key_without_a_trace(settings):
    found = look(settings, key=7)

    assert found.verdict.startswith("board 7 left no trace: it was never accepted")
    assert (found.traces, found.unknown) == ([], [])


def test_places_that_do_not_answer_are_named(settings, streamed, monkeypatch):
    def silent(_):
        raise GatewayUnavailable(url="http://gateway", reason="ConnectError")

    found = look(settings, key=404, ask_gateways=silent)
    assert found.verdict == "board 404 left no trace in the places that answered"
    assert ["gateways: " in place for place in found.unknown] == [True]
    lost = dataclasses.replace(
        settings, kafka=dataclasses.replace(settings.kafka, connection=KafkaConnection("127.0.0.1:1"))
    )
    monkeypatch.setattr(offsets, "TIMEOUT_S", 1)
    shown = look(lost, key=1)
    assert "is shown" in shown.verdict
    assert [place.split(":")[0] for place in shown.unknown] == ["Kafka"]


def test_a_search_ends_at_its_limit(settings, streamed):
    build(settings, [row(1, 11), row(2, 12)], cut=20, run_id="night")
    verify(settings, DAY, "night")
    publish(settings, DAY, "night")
    spent = SearchLimits(place_s=0)

    found = find(settings, key=1, ask_gateways=nothing_waits, limits=spent)
    assert found.verdict.startswith("board 1 is shown")
    assert found.unknown == ["Kafka: the search took longer than 0 s"]
    with pytest.raises(SearchTooLong, match="longer than 0 s"):
        find(settings, event_id="of none", ask_gateways=nothing_waits, limits=spent)


@pytest.mark.parametrize("arguments", [{}, {"key": 1, "event_id": "e"}])
def test_one_of_key_and_event_is_needed(settings, arguments):
    with pytest.raises(NothingToFind, match="name one of the two"):
        look(settings, **arguments)


def test_as_a_command(kafka, postgres, tmp_path, settings, streamed, monkeypatch, capsys):
    for name, value in environment(kafka, postgres, "whereabouts", tmp_path).items():
        monkeypatch.setenv(name, value)

    assert main(["days", "find", "--key", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"board 1 is shown in day {DAY}")
    assert "not known: gateways: GATEWAY_ADMIN_TOKEN is not set" in text
    assert main(["days", "find", "--event-id", "e12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == 2
