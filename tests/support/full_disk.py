"""A small disk that a test fills, frees and makes read-only, and processes that run on it.

    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        gateway = disk.gateway(tmp_path, broker.bootstrap_servers).start()
        disk.fill()                      # no byte is left: writes fail with ENOSPC
        disk.free()                      # room again, without a restart
        gateway.kill()
        disk.copy_to(tmp_path / "copy")  # what lies on it, for whoever is not on it

It is a tmpfs of that size in a mount namespace of its own: `unshare -m` for root, `unshare -Urm` for others. What
`disk.run` started sees it at `disk.folder`, nobody else does; it is gone with the last of them, however the test ends.

Where the machine allows no mounts (`disk.is_real` is false) the disk is a plain folder, and filling it sets the
processes' RLIMIT_FSIZE to nothing: every write to a file fails, with EFBIG in place of ENOSPC, until it is freed.
"""

import contextlib
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.gateway_process import ROOT, GatewayProcess

_BALLAST = "ballast"
_MOUNT = 'mount -t tmpfs -o size="$1",mode=700 tmpfs "$2" && echo mounted && exec cat'
_CHANGE_FOLDER = 'cd "$0" && exec "$@"'  # joining a mount namespace forgets the working folder


class SmallDisk:
    """See small_disk, which makes it."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes
        self._holder: subprocess.Popen[bytes] | None = None
        self._enter: tuple[str, ...] = ()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._is_full = False

    @property
    def is_real(self) -> bool:
        """True for a file system of its own, false for a limit on the processes only."""
        return self._holder is not None

    def run(self, command: Sequence[str], *, cwd: Path = ROOT, **options: Any) -> subprocess.Popen[bytes]:
        """Start a process that sees the disk at `folder`; its pid is the command's. The options are Popen's."""
        inside = [*self._enter, "sh", "-c", _CHANGE_FOLDER, str(cwd), *command] if self._enter else list(command)
        process = subprocess.Popen(inside, cwd=cwd, **options)
        self._processes.append(process)
        if self._is_full:
            self._limit()
        return process

    def gateway(self, folder: Path, bootstrap_servers: str, **more: str) -> "GatewayOnDisk":
        """A gateway whose fallback folder is on the disk; its log and the rest are in `folder`, outside of it."""
        made = GatewayOnDisk.over(folder, bootstrap_servers, GATEWAY_FALLBACK_DIR=str(self.folder / "fallback"), **more)
        made.disk = self
        return made

    def fill(self) -> None:
        """Fill the free space. Files stay, and their existing bytes can be overwritten."""
        self._is_full = True
        if not self.is_real:
            self._limit()
            return
        with (self._seen / _BALLAST).open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def free(self) -> None:
        """Free the space again."""
        self._is_full = False
        if self.is_real:
            (self._seen / _BALLAST).unlink(missing_ok=True)
        else:
            self._limit()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """Within the block nothing on it can be written, by root neither. Only while no process writes there.

        Skips the test where the disk is not real.
        """
        if not self.is_real:
            import pytest

            pytest.skip("a read-only mount needs `unshare` and `mount`")
        self._remount("ro")
        try:
            yield
        finally:
            self._remount("rw")

    def copy_to(self, target: Path) -> Path:
        """Copy the disk's files, except the ballast, to a new folder; returns that folder."""
        shutil.copytree(self._seen, target, ignore=shutil.ignore_patterns(_BALLAST))
        return target

    @property
    def _seen(self) -> Path:
        # The disk from outside. The way through /proc is good for plain files; SQLite resolves it to the outer folder.
        return self.folder if self._holder is None else Path(f"/proc/{self._holder.pid}/root{self.folder}")

    def _open(self) -> None:
        self.folder.mkdir(parents=True)
        for unshare, enter in (
            (["unshare", "-m"], ["-m"]),
            (["unshare", "-Urm"], ["-U", "-m", "--preserve-credentials"]),
        ):
            try:
                holder = subprocess.Popen(
                    [*unshare, "sh", "-c", _MOUNT, "sh", str(self._size_bytes), str(self.folder)],
                    stdin=subprocess.PIPE,  # it ends when we do
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except FileNotFoundError:
                return
            assert holder.stdout is not None
            if holder.stdout.readline() == b"mounted\n":
                self._holder, self._enter = holder, ("nsenter", "-t", str(holder.pid), *enter)
                return
            holder.communicate()

    def _close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        if self._holder is not None:
            self._holder.communicate()

    def _limit(self) -> None:
        for process in self._processes:
            if not self.is_real and process.poll() is None:
                _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
                soft = 0 if self._is_full else hard
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (soft, hard))

    def _remount(self, mode: str) -> None:
        subprocess.run([*self._enter, "mount", "-o", f"remount,bind,{mode}", str(self.folder)], check=True)


class GatewayOnDisk(GatewayProcess):
    """A gateway process that runs on a small disk."""

    disk: SmallDisk

    def run(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """See GatewayProcess.run."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            return self.disk.run(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk of that size at a new folder; at the end it and the processes on it are gone."""
    disk = SmallDisk(folder, size_bytes)
    try:
        disk._open()
        yield disk
    finally:
        disk._close()
