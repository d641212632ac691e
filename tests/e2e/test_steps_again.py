"""Steps that run twice, in any order, or die at any commit: the day is that of an undisturbed night. Real servers."""

import signal

import pytest

from include.contracts.errors import NothingBuilt
from include.integrity.days.comparison import NotVerified
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from tests.support.certifying import gateway_with, take_everything
from tests.support.day_steps import DAY, OF_DAY, OF_NIGHT, STEPS, KilledStep, of_day
from tests.support.pipeline import environment, migrated, rows, with_topics
from tests.support.publication import wait_for_end_of_backends
from tests.support.serving import opened_store, serve

PICTURE = {
    "shown": "SELECT board_id, nickname, title, finality FROM board_detail ORDER BY board_id",
    "status": "SELECT day, status, row_count, pending_count, rejected_count, dirty_count FROM day_status",
    "generations shown": "SELECT g.content_hash, g.status, count(*) FROM generation g JOIN day_publication d"
                         " ON d.generation_id = g.id GROUP BY 1, 2",
    "built and not shown": "SELECT count(*) FROM generation WHERE status = 'building'",
    "moves": "SELECT action, covered_rows, restored_rows FROM publication ORDER BY id",
    "certificate": "SELECT term, value FROM day_certificate ORDER BY position",
    "corrections": "SELECT board_id, class FROM detail_correction JOIN day_publication USING (generation_id)"
                   " ORDER BY 1, 2",
    "live": "SELECT board_id FROM detail_live ORDER BY 1",
}  # fmt: skip
ORDER = tuple(OF_DAY)
DATABASE = "steps_again"


@pytest.fixture(scope="module")
def variables(kafka, postgres, tmp_path_factory):
    """The environment of the steps, this process's too: a gateway whose store is empty, and topics without records."""
    state = tmp_path_factory.mktemp("steps-again")
    with_topics(kafka, postgres, DATABASE, state)
    with gateway_with(0) as url, pytest.MonkeyPatch.context() as patch:
        gateway = {"GATEWAY_URL": url, "GATEWAY_ADMIN_TOKEN": "admin"}
        made = environment(kafka, postgres, DATABASE, state) | gateway
        for name, value in made.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def new_day(kafka, postgres, variables, tmp_path_factory):
    """Makes a database in which the stream shows three posts of the day."""
    topic_id = OffsetReader(KafkaConnection(kafka.bootstrap_servers)).topic_id("board-detail")
    state = tmp_path_factory.mktemp("steps-again")

    def make():
        settings = migrated(kafka, postgres, DATABASE, state)
        store = opened_store(settings, topic_id=topic_id)
        try:
            serve(store, [of_day(1, 0), of_day(2, 1), of_day(3, 7)])
        finally:
            store.close()
        take_everything(settings)
        return settings

    return make


def run(*steps):
    for step in steps:
        STEPS[step]()


def picture(settings):
    """The day as an undisturbed night leaves it, without ids and times."""
    return {name: rows(settings, statement) for name, statement in PICTURE.items()}


@pytest.fixture(scope="module")
def undisturbed(new_day):
    settings = new_day()
    run(*OF_NIGHT, *ORDER)
    seen = picture(settings)
    assert [row[1] for row in seen["status"]] == ["certified"]
    assert [board for board, *_ in seen["shown"]] == [1, 2, 3, 4]
    assert {finality for *_, finality in seen["shown"]} == {"final"}
    return seen


def test_each_step_may_run_twice_and_those_of_the_night_at_any_time(new_day, undisturbed):
    settings = new_day()
    for step in ORDER:
        run(*OF_NIGHT, step, step)

    assert picture(settings) == undisturbed


def test_each_step_may_run_again_when_the_night_is_over_alone_and_with_what_follows(new_day, undisturbed):
    settings = new_day()
    run(*ORDER)
    for step in STEPS:
        run(step)
        assert picture(settings) == undisturbed, step
    for at, step in enumerate(ORDER):
        run(*ORDER[at:])
        assert picture(settings) == undisturbed, step


@pytest.mark.long
@pytest.mark.parametrize("step", ORDER)
def test_a_step_may_run_again_after_each_later_one_with_what_follows(new_day, undisturbed, step):
    at = ORDER.index(step)
    for end in range(at, len(ORDER)):
        settings = new_day()
        run(*ORDER[: end + 1], *ORDER[at:])

        assert picture(settings) == undisturbed, f"{step} again after {ORDER[end]}"


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_night_whose_steps_are_all_killed_at_each_commit_and_tried_again_leaves_the_same_day(
    new_day, undisturbed, variables, place
):
    settings = new_day()
    killed = KilledStep(variables)
    try:
        for step in (*OF_NIGHT, *ORDER, *OF_NIGHT):
            codes = []
            while not codes or codes[-1] != 0:
                codes.append(killed.run(step, place, len(codes) + 1))
                wait_for_end_of_backends(settings)
            assert {*codes[:-1]} <= {-signal.SIGKILL}, step
            assert len(codes) > 1 or step == "replay", step  # it knows no database
    finally:
        killed.close()

    assert picture(settings) == undisturbed


@pytest.mark.parametrize(
    ("marked", "refusing", "error"),
    [("rebuild", "verify", NothingBuilt), ("verify", "publish", NotVerified), ("publish", "certify", NothingBuilt)],
)
def test_a_step_that_was_marked_and_not_run_is_missed_by_the_next(new_day, undisturbed, marked, refusing, error):
    settings = new_day()
    before = rows(settings, PICTURE["shown"])
    run(*ORDER[: ORDER.index(marked)])
    with pytest.raises(error):
        run(refusing)
    assert rows(settings, PICTURE["shown"]) == before

    run(*ORDER[ORDER.index(marked) :])
    assert picture(settings) == undisturbed


@pytest.mark.parametrize("marked", ["certify", "cover"])
def test_a_step_at_the_end_that_was_marked_and_not_run_is_made_up_for_by_the_next_night(new_day, undisturbed, marked):
    settings = new_day()
    run(*(step for step in ORDER if step != marked))
    assert picture(settings)["shown"] == undisturbed["shown"]

    run(*OF_NIGHT)
    for day in STEPS["choose to certify"]():
        assert day == str(DAY)
        run("certify")
    assert picture(settings) == undisturbed
