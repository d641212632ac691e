"""Builds that a person has to approve, on a real PostgreSQL."""

import dataclasses

import pytest

from include.integrity.approval import request_approval
from tests.support.pipeline import migrated
from tests.support.serving import DAY, build, opened_store, row, serve


@pytest.fixture
def settings(postgres, tmp_path):
    made = migrated(None, postgres, "approvals", tmp_path)
    store = opened_store(made)
    try:
        serve(store, [row(1, 1), row(2, 2)])
    finally:
        store.close()
    return made


def limited(settings, limit):
    return dataclasses.replace(settings, batch=dataclasses.replace(settings.batch, approve_unexplained_above=limit))


def test_explained_differences_need_nobody(settings):
    build(settings, [row(1, 1, nickname="아침", table_offset=4), row(2, 2), row(3, 3)], cut=9, run_id="r")

    assert request_approval(settings, DAY, "r") is None


def test_unexplained_differences_above_the_limit_need_a_person(settings):
    build(settings, [row(1, 1, title="nobody knows why"), row(2, 2)], cut=9, run_id="r")

    request = request_approval(settings, DAY, "r")

    assert (request.unexplained, request.vanishing) == (1, 0)
    assert [(sample.correction, sample.board_id) for sample in request.differences.samples] == [("unexplained", 1)]
    assert request_approval(limited(settings, 1), DAY, "r") is None


def test_a_row_that_vanishes_needs_a_person_whatever_the_limit(settings):
    build(settings, [row(2, 2)], cut=9, run_id="r")

    request = request_approval(limited(settings, 1_000), DAY, "r")

    assert (request.unexplained, request.vanishing) == (1, 1)
