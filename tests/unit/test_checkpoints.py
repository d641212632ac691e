"""A checkpoint that believes more was served than the ledger knows is refused."""

import json

import pytest

from include.errors import CheckpointAhead
from spark_jobs.speed.checkpoints import committed_offsets, refuse_checkpoint_ahead


def checkpoint(folder, committed, planned=None):
    (folder / "offsets").mkdir()
    (folder / "commits").mkdir()
    for number, offsets in enumerate([committed, *([planned] if planned else [])]):
        text = "\n".join(["v1", "{}", json.dumps({"board-detail": offsets})])
        (folder / "offsets" / str(number)).write_text(text, encoding="utf-8")
    (folder / "commits" / "0").write_text("v1\n{}", encoding="utf-8")
    return folder


def test_a_new_checkpoint_has_no_opinion(tmp_path):
    assert committed_offsets(tmp_path, "board-detail") is None
    refuse_checkpoint_ahead(tmp_path, "board-detail", {0: 5})


def test_only_what_was_committed_counts(tmp_path):
    folder = checkpoint(tmp_path, {"0": 7, "1": 3}, planned={"0": 99, "1": 99})
    assert committed_offsets(folder, "board-detail") == {0: 7, 1: 3}


def test_behind_or_equal_is_no_harm(tmp_path):
    refuse_checkpoint_ahead(checkpoint(tmp_path, {"0": 7, "1": 3}), "board-detail", {0: 7, 1: 4})


def test_ahead_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(CheckpointAhead, match=r"1: \(3, 2\).*Delete the folder"):
        refuse_checkpoint_ahead(checkpoint(tmp_path, {"0": 7, "1": 3}), "board-detail", {0: 7, 1: 2})
