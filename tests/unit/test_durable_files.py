"""Files are replaced durably: whole or not at all, and synchronized before they have their name."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from include.runtime.durable_files import NEW, replacing, sync_file, sync_folder


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    return path


@pytest.fixture
def calls(monkeypatch):
    """The files and folders that were synchronized and the names that were replaced, in order."""
    made: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor):
        made.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def recorded_replace(source, target):
        made.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    return made


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_a_file_is_replaced_at_the_end_of_the_block(path):
    with replacing(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert names(path) == ["file"]


def test_the_content_is_durable_before_the_name_and_the_name_at_the_end(path, calls):
    with replacing(path) as file:
        file.write(b"after")
    assert calls == [("fsync", f"file{NEW}"), ("replace", "file"), ("fsync", path.parent.name)]


def test_an_open_file_and_a_folder_are_synchronized(path, calls):
    with path.open("ab") as file:
        file.write(b" and after")
        sync_file(file)
        assert path.read_bytes() == b"before and after"
    sync_folder(path.parent)
    assert calls == [("fsync", "file"), ("fsync", path.parent.name)]


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_file_has_its_mode_before_it_has_content(path, mode):
    with replacing(path, mode) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode
        file.write(b"after")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_an_error_in_the_block_leaves_the_file_as_it_was(path):
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"before"
    assert names(path) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch, call):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"), replacing(path) as file:
        file.write(b"after")
    assert path.read_bytes() == b"before"
    assert names(path) == ["file"]


def test_a_process_that_dies_leaves_the_file_as_it_was_and_does_not_hinder_the_next(path):
    dying = (
        "import os, sys; from pathlib import Path; from include.runtime.durable_files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file: file.write(b'aft'); file.flush(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", dying, path], check=False).returncode == 9
    assert path.read_bytes() == b"before"
    assert names(path) == ["file", f"file{NEW}"]
    with replacing(path) as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    assert names(path) == ["file"]


def test_a_link_with_the_name_of_the_new_file_is_not_followed(path, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"other")
    path.with_name(path.name + NEW).symlink_to(other)
    with replacing(path) as file:
        file.write(b"after")
    assert (path.read_bytes(), other.read_bytes()) == (b"after", b"other")
