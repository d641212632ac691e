"""The small disk of the tests is really full, free or read-only."""

import errno
import subprocess
import sys

import pytest

from tests.support.full_disk import SmallDisk, small_disk

APPEND = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "ab", buffering=0) as file:
            for _ in range(2):  # the first may be cut short
                file.write(bytes(8192))
        print(0, flush=True)
    except OSError as exc:
        print(exc.errno, flush=True)
"""


def appends(process: subprocess.Popen[bytes]) -> int:
    """0, or the error of writing 8 KiB more."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def writer(disk: SmallDisk) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", APPEND, str(disk.folder / "file")]
    return disk.run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("mounts", [True, False], ids=["mounted", "limited"])
def test_full_disk_takes_nothing_until_it_is_freed(tmp_path, monkeypatch, mounts):
    if not mounts:
        monkeypatch.setattr(SmallDisk, "_open", lambda disk: disk.folder.mkdir())
    with small_disk(tmp_path / "disk", 1 << 20) as disk, writer(disk) as process:
        assert appends(process) == 0
        disk.fill()
        assert appends(process) == (errno.ENOSPC if disk.is_real else errno.EFBIG)
        with writer(disk) as late:
            assert appends(late) != 0
            late.stdin.close()
        disk.free()
        assert appends(process) == 0
        process.stdin.close()
        process.wait()
        assert (disk.copy_to(tmp_path / "copy") / "file").stat().st_size >= 16384
        is_real = disk.is_real
    assert is_real in (mounts, False)
    assert not is_real or not list((tmp_path / "disk").iterdir())  # it was never in the folder of the others


def test_read_only_disk_is_so_for_root_too(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        with disk.read_only(), writer(disk) as process:
            assert appends(process) == errno.EROFS
            process.stdin.close()
        with writer(disk) as process:
            assert appends(process) == 0
            process.stdin.close()
