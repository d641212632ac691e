"""Builds that a person has to approve, on a real PostgreSQL."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.airflow_support import steps
from include.integrity.days.comparison import ApprovalOutdated, AskedBefore, request_approval, verify
from include.integrity.days.pruning import collect_orphans
from include.integrity.days.publication import publish
from tests.support.examples import examples
from tests.support.pipeline import environment, migrated, rows
from tests.support.serving import DAY, build, opened_store, row, serve


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "approvals", tmp_path)


@pytest.fixture(autouse=True)
def store(settings):
    """The speed layer's, which has served two rows of the day."""
    opened = opened_store(settings)
    serve(opened, [row(1, 1), row(2, 2)])
    yield opened
    opened.close()


def limited(settings, limit):
    return dataclasses.replace(settings, batch=dataclasses.replace(settings.batch, approve_unexplained_above=limit))


def test_explained_differences_need_nobody(settings):
    build(settings, [row(1, 1, nickname="아침", table_offset=4), row(2, 2), row(3, 3)], cut=9, run_id="r")

    assert not request_approval(settings, DAY, "r").is_needed


def test_unexplained_differences_above_the_limit_need_a_person(settings):
    build(settings, [row(1, 1, title="nobody knows why"), row(2, 2)], cut=9, run_id="r")

    request = request_approval(settings, DAY, "r")

    assert request.is_needed
    assert (request.unexplained.count, request.unexplained.vanishing) == (1, 0)
    assert [(sample.correction, sample.key) for sample in request.differences.samples] == [("unexplained", 1)]
    assert not request_approval(limited(settings, 1), DAY, "r").is_needed


def test_a_row_that_vanishes_needs_a_person_whatever_the_limit(settings):
    build(settings, [row(2, 2)], cut=9, run_id="r")

    request = request_approval(limited(settings, 1_000), DAY, "r")

    assert request.is_needed
    assert (request.unexplained.count, request.unexplained.vanishing) == (1, 1)


@pytest.mark.parametrize(("timeout_h", "kept_h"), [(1, 24), (12, 24), (36, 48), (100, 112)])
def test_a_build_is_kept_for_half_a_day_longer_than_its_question_and_for_a_day_at_least(settings, timeout_h, kept_h):
    generation = build(settings, [row(2, 2)], cut=9, run_id="r")
    waiting = dataclasses.replace(
        settings, batch=dataclasses.replace(settings.batch, approval_timeout_s=timeout_h * 3600.0)
    )
    built_at = "UPDATE generation SET built_at = now() - make_interval(hours => %s, mins => %s)"

    rows(settings, built_at, (kept_h, -1))
    assert collect_orphans(waiting) == []
    rows(settings, built_at, (kept_h, 1))
    assert [orphan.generation_id for orphan in collect_orphans(waiting)] == [generation]


class TestWhatWasApproved:
    """A publication is of the build, and of the differences, that the person saw."""

    @pytest.fixture
    def approved(self, settings):
        """The build takes row 1 from readers."""
        build(settings, [row(2, 2)], cut=9, run_id="r")
        return request_approval(settings, DAY, "r").unexplained.seen

    @pytest.fixture
    def shown(self, settings):
        return lambda: [board for (board,) in rows(settings, "SELECT board_id FROM board_detail ORDER BY board_id")]

    def test_is_published(self, settings, approved, shown):
        publish(settings, DAY, "r", approved=approved)

        assert shown() == [2]

    def test_with_rows_that_change_nothing_of_it_is_published(self, settings, store, approved, shown):
        serve(store, [row(4, 12)])
        publish(settings, DAY, "r", approved=approved)

        assert shown() == [2, 4]

    @pytest.mark.parametrize(
        "served", [row(3, 3), row(2, 4, title="another"), row(1, 5, title="another")],
        ids=["another row vanishes", "another row changes", "the row that vanishes is another"],
    )  # fmt: skip
    def test_is_asked_again_when_more_was_served(self, settings, store, approved, shown, served):
        serve(store, [served])
        before = shown()

        with pytest.raises(ApprovalOutdated, match=r"reprocess the day, or leave it to the next night.*generation=\d+"):
            publish(settings, DAY, "r", approved=approved)

        assert shown() == before
        publish(settings, DAY, "r", approved=request_approval(settings, DAY, "r").unexplained.seen)
        assert shown() == [2]

    def test_is_asked_again_when_the_day_was_built_again(self, settings, approved, shown):
        build(settings, [row(2, 2)], cut=9, run_id="r")
        verify(settings, DAY, "r")

        with pytest.raises(ApprovalOutdated, match=f"approved_generation={approved.generation_id}"):
            publish(settings, DAY, "r", approved=approved)

        assert shown() == [1, 2]

    def test_a_build_that_needed_nobody_needs_somebody_when_it_takes_rows_since(self, settings, store, shown):
        build(settings, [row(1, 1), row(2, 2)], cut=9, run_id="r")
        request = request_approval(settings, DAY, "r")
        assert not request.is_needed
        serve(store, [row(1, 5, title="another")])

        with pytest.raises(ApprovalOutdated):
            publish(settings, DAY, "r", approved=request.unexplained.seen)

        assert request_approval(settings, DAY, "r").is_needed
        assert shown() == [1, 2]


class TestAskedAgain:
    """Airflow keeps the text of a task's first question: only that one is asked again."""

    @pytest.fixture(autouse=True)
    def variables(self, settings, postgres, tmp_path, monkeypatch):
        for name, value in environment(None, postgres, "approvals", tmp_path).items():
            monkeypatch.setenv(name, value)

    @staticmethod
    def ask():
        return steps.approval_question("board_detail", str(DAY), "r")

    def test_about_the_same(self, settings):
        build(settings, [row(2, 2)], cut=9, run_id="r")

        assert self.ask() == self.ask()

    def test_about_other_differences(self, settings, store):
        build(settings, [row(2, 2)], cut=9, run_id="r")
        self.ask()
        serve(store, [row(3, 3)])

        with pytest.raises(AskedBefore):
            self.ask()

    def test_about_another_build(self, settings):
        build(settings, [row(2, 2)], cut=9, run_id="r")
        self.ask()
        build(settings, [row(2, 2)], cut=9, run_id="r")

        with pytest.raises(AskedBefore):
            self.ask()

    def test_nobody_is_asked_about_a_build_without_such_differences(self, settings):
        build(settings, [row(2, 2)], cut=9, run_id="r")
        self.ask()
        build(settings, [row(1, 1), row(2, 2)], cut=9, run_id="r")

        assert self.ask()[0] is None


BOARDS, TITLES = range(3), ("a", "b")
CUT = 50  # offsets of an example: the build has read those below
VERSIONS = st.lists(st.tuples(st.sampled_from(BOARDS), st.sampled_from(TITLES), st.sampled_from((1, CUT + 1))))
UNEXPLAINED = """
SELECT board_id, shown, rebuilt FROM detail_correction WHERE generation_id = %s AND class = 'unexplained' ORDER BY 1
"""
_numbers = itertools.count(1)


@examples(30, 300)
@given(
    built=st.dictionaries(st.sampled_from(BOARDS), st.sampled_from(TITLES), min_size=1),
    before=VERSIONS,
    since=VERSIONS,
    is_built_again=st.booleans(),
)
def test_what_is_published_is_what_was_approved_whatever_is_served_since(
    settings, store, built, before, since, is_built_again
):
    number = next(_numbers)
    day = DAY.before(number)
    offset = itertools.count(100 * number)

    def version(board, title, first=1):
        at = first + next(offset)
        return row(10 * number + board, at, title=title, day=day.date, created_at=day.start, modified_at=day.start)

    def serve_all(versions):
        if versions:
            serve(store, [version(*one) for one in versions])

    def unexplained():
        generation = request_approval(settings, day, "r").unexplained.seen.generation_id
        return generation, rows(settings, UNEXPLAINED, (generation,))

    def build_day():
        build(settings, [version(*one) for one in built.items()], cut=100 * number + CUT, run_id="r", day=day)

    serve_all(before)
    build_day()
    approved, seen = request_approval(settings, day, "r").unexplained.seen, unexplained()
    serve_all(since)
    if is_built_again:
        build_day()
        verify(settings, day, "r")
    try:
        publish(settings, day, "r", approved=approved)
        is_published = True
    except ApprovalOutdated:
        is_published = False

    assert is_published == (unexplained() == seen)
