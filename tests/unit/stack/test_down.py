"""`clean` takes nothing without a word that was accepted and is nowhere else."""

import pytest

from stack.down import clean
from stack.layout import Layout, StackError
from tests.support.stores import fill


@pytest.fixture
def layout(tmp_path):
    made = Layout.of(tmp_path, tmp_path / "state", tmp_path / ".env")
    made.make_folders()
    return made


def is_removed(layout):
    return not (layout.state / "fallback").exists()


def test_store_without_events_is_removed(layout):
    fill(layout.state / "fallback", 0)
    clean(layout)
    assert is_removed(layout)


@pytest.mark.parametrize("refused", [0, 3], ids=["waiting", "set aside"])
def test_store_with_accepted_events_is_kept_unless_forced_and_their_count_is_said(layout, refused):
    fill(layout.state / "fallback", 3, refused)
    with pytest.raises(StackError, match=r"3 accepted events are in the gateway's fallback store.*make clean FORCE=1"):
        clean(layout)
    assert not is_removed(layout)
    clean(layout, force=True)
    assert is_removed(layout)


def test_store_that_cannot_be_read_is_kept_unless_forced(layout):
    (layout.state / "fallback" / "fallback.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StackError, match="how many cannot be read"):
        clean(layout)
    assert not is_removed(layout)


@pytest.mark.parametrize(
    ("external", "is_kept"), [("postgres", True), ("kafka,postgres", True), ("kafka", False), ("", False)]
)
@pytest.mark.parametrize("folder", ["archive", "pipelines/order_detail/archive"])
def test_archive_that_a_catalogue_outside_lists_is_kept_unless_forced(layout, external, is_kept, folder):
    layout.env_file.write_text(f"STACK_EXTERNAL={external}\n")
    day = layout.state / folder / "board" / "day=2026-11-20"
    day.mkdir(parents=True)
    (day / "part-1.parquet").write_bytes(b"PAR1")
    if is_kept:
        with pytest.raises(StackError, match="1 files of the archive"):
            clean(layout)
    clean(layout, force=is_kept)
    assert not day.exists()
