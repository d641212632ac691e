"""The product without one of its mends, to see that a property test finds the hole: SERVING_MUTATION=name pytest …

The docstrings of these tests say how many random examples that takes. One that finds it is kept as an explicit example,
so `make test` finds each of these holes too.
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example

from include.database import named
from include.integrity.days import catch_up, day_checks, publication
from include.integrity.days.day_pointer import run_locked
from include.runtime.settings import Settings
from tests.support.pipeline import rows

MUTATION = os.environ.get("SERVING_MUTATION")


def apply(monkeypatch: pytest.MonkeyPatch, folder: Path, database: Settings) -> None:
    """Apply the mutation that the environment names to the product and the database; nothing if it names none."""
    if MUTATION:
        MUTATIONS[MUTATION](monkeypatch, folder, database)


def examples(seeds: dict[str, int]) -> Callable[[Any], Any]:
    """Explicit examples of a test that takes `random`: of each mutation the seed of one that finds it."""

    def decorated(test: Any) -> Any:
        for seed in sorted(set(seeds.values())):
            test = example(random=Random(seed))(test)
        return test

    return decorated


def _in_query(name, old, new):
    """Another text in the place of one in a named query."""

    def mutate(monkeypatch, folder, _):
        statements = dict(named.statements(named.QUERIES))  # with what another mutation made of them
        assert statements[name].count(old) == 1, f"{name}: {old!r}"
        statements[name] = statements[name].replace(old, new)
        monkeypatch.setattr(named, "statements", lambda _: statements)
        named._filled.cache_clear()

    return mutate


def _in_database(statement):
    return lambda monkeypatch, folder, database: rows(database, statement)


def _no_pairs(monkeypatch, *_):
    monkeypatch.setattr(day_checks, "_goes_beyond", lambda *_: False)


def _no_live_rows(monkeypatch, *_):
    monkeypatch.setattr("include.integrity.days.due_days.mark_left_days", lambda _: None)


def _undo_unchecked(monkeypatch, *_):
    plain = publication._run_locked_and_checked

    def unchecked(settings, day, step):
        return run_locked(settings, day, step) if step.__name__ == "move" else plain(settings, day, step)

    monkeypatch.setattr(publication, "_run_locked_and_checked", unchecked)


def _late_members_dropped(monkeypatch, *_):
    plain = catch_up.find_late_versions

    def search(settings):
        plain(settings)
        day_checks.check_days(settings)
        rows(settings, "DELETE FROM late_version")

    monkeypatch.setattr(catch_up, "find_late_versions", search)


def _all(*mutations):
    def mutate(*context):
        for mutation in mutations:
            mutation(*context)

    return mutate


MUTATIONS = {
    # a check of a day looks at no other day
    "no-pairs": _no_pairs,
    # boards of which only the speed layer knows that they moved: their new day is not published
    "no-live-rows": _no_live_rows,
    # a day is checked after publications alone
    "undo-unchecked": _undo_unchecked,
    # versions of members are compared with what the days show when they are read, and forgotten
    "late-members-dropped": _late_members_dropped,
    # generations begun since the last search are not searched for from their cut on
    "no-second-search": _in_query("select_kept_generations", "s.generation_id IS NOT NULL", "true"),
    # a board that moved and was then left out is not known to its new day
    "left-out-unknown": _in_query("count_moved_keys", "AND (version_at IS NOT NULL OR", "AND (false OR"),
    # late versions are kept for what the days show, not for what they may show again
    "kept-for-shown": _in_query(
        "forget_late_versions", "'building', 'built', 'published', 'superseded'", "'published'"
    ),
    # a late replay of a board that the published day knows as deleted or moved is served
    "fence-without-left-out": _in_query("fence_staged", "e.{{key}} = s.{{key}}", "false"),
    # a row of a former topic stays on top of a newer version that the cut covers
    "older-row-stays": _in_query(
        "fence_staged", "(l.{{version}}, l.stream_offset) < (f.{{version}}, f.stream_offset)", "false"
    ),
    # what the generation has is compared, not the rows that its publication brings back
    "brought-back-uncompared": _in_query(
        "insert_corrections", "c.day = %(day)s AND c.{{key}} IN (SELECT {{key}} FROM changed_key)", "false"
    ),
    # rows that were served since the comparison, and set aside, are not compared again
    "set-aside-uncompared": _in_query("compare_served", "WHERE c.day = %(day)s", "WHERE false"),
    # covered deletions are forgotten with the covered rows
    "deletions-forgotten": _in_query("forget_covered", "NOT deleted AND ", ""),
    # older versions than a covered row are served
    "covered-unknown": _in_query("drop_superseded_staged", "c.{{key}} = s.{{key}}", "false"),
    # a deletion is of the day of a row alone
    "pending-deletion-dayless": _all(
        _in_query("select_shown_keys", "kind = 'pending'", "false"),
        _in_query("set_days_of_staged_tombstones", "w.{{key}} = s.{{key}}", "false"),
    ),
    # a board waits although its newer version is covered, or another day shows it
    "older-waits": _all(
        _in_query("select_served_versions", "detail_covered WHERE", "detail_covered WHERE false AND"),
        _in_query("select_shown_keys", "{{key}}, {{version}}", "{{key}}, timestamptz 'epoch'"),
    ),
    # a day that shows a newer version of a board lets older ones of other days wait, and shows older ones than those
    "waiting-elsewhere-unseen": _in_query("cover_pending", "OR {{key}} BETWEEN", "OR false AND {{key}} BETWEEN"),
    # a day whose row is hidden by a board that waits on another day is not marked
    "hidden-elsewhere-unmarked": _in_query("count_left_keys", "day <> %(day)s AND covered_by IS NULL", "false"),
    # a day that has a board as pending is not marked when that moves
    "pending-moves-unmarked": _all(
        _in_query("count_left_keys", "kind = 'pending'", "false"),
        _in_query("count_moved_keys", "generation_id = %(generation_id)s AND kind = 'pending'", "false"),
    ),
    # boards that waited for their member when the generation was built are covered for ever
    "pending-covered": _in_database(
        "CREATE OR REPLACE FUNCTION was_pending(generation_id bigint, key bigint) RETURNS boolean"
        " LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT false'"
    ),
}
