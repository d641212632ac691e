"""A clone whose path has spaces, a percent sign and letters beyond Latin-1; then the same clone in another folder."""

import json
from collections.abc import Iterator

import pytest

from stack import env_file, leftovers
from stack.layout import Layout
from stack.machine import check_path
from tests.support.clone import Clone

ODD = "odd é 한 100% dir"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    made = Clone(tmp_path_factory.mktemp("clones") / ODD)
    check_path(made.layout.root)
    yield made
    made.run("-m", "stack", "down")


def test_stream_with_all_it_needs_runs_in_an_odd_path_and_keeps_its_data_there(clone):
    started = clone.run("-m", "stack", "up", "--only", "stream")
    assert started.returncode == 0, started.stdout + started.stderr
    assert started.stdout.splitlines()[-1].startswith("up in ")
    assert "starting services" in started.stdout
    assert (clone.layout.kafka / "data" / "meta.properties").exists()
    checkpoint = clone.layout.state / "checkpoints"
    assert any(checkpoint.iterdir())
    outside = [path.name for path in clone.layout.root.parent.iterdir()]
    assert outside == [ODD]


def test_down_in_an_odd_path_leaves_nothing(clone):
    stopped = clone.run("-m", "stack", "down")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert leftovers.find(clone.layout.state) == []


def test_clone_that_was_moved_goes_on_with_its_data(clone):
    before = env_file.read(clone.layout.env_file)
    cluster = (clone.layout.kafka / "data" / "meta.properties").read_text()
    moved = clone.layout.root.with_name("moved")
    clone.layout.root.rename(moved)
    clone.layout = Layout.of(moved)
    record = clone.layout.postgres / "binaries.json"
    chosen = json.loads(record.read_text())
    record.write_text(json.dumps(chosen | {"folder": str(moved.with_name(ODD) / "bin")}))  # as one of its environment
    started = clone.run("-m", "stack", "up", "--only", "kafka,postgres")
    assert started.returncode == 0, started.stdout + started.stderr
    assert env_file.read(clone.layout.env_file) == before
    assert (clone.layout.kafka / "data" / "meta.properties").read_text() == cluster
    assert json.loads(record.read_text()) == chosen
    for path in clone.layout.run.rglob("*.conf"):
        assert ODD not in path.read_text()


def test_clean_removes_the_data_of_the_moved_clone(clone):
    removed = clone.run("-m", "stack", "clean")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert not clone.layout.kafka.exists()
    assert [path.name for path in clone.layout.root.parent.iterdir()] == ["moved"]
