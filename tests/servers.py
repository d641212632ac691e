"""A Kafka broker and a PostgreSQL for tests: real, on ports and data of their own, gone when the tests are.

They share no process, port or folder with the stack that `make up` starts, so both can run at once. A server dies with
the test run however that ends: by teardown, by `atexit`, and by the kernel's parent-death signal after a SIGKILL.
"""

import atexit
import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor

from include.runtime.kafka_connection import KafkaConnection
from include.runtime.process_tree import die_with_parent, kill_with_children
from stack.health import probe
from stack.kafka import KafkaBroker
from stack.layout import Layout
from stack.machine import LOOPBACK, find_java, unused
from stack.postgres import SUPERUSER, PostgresServer, find, from_wheel
from stack.services import Health, KafkaHealth, PostgresHealth

START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 30.0
_POLL_S = 0.05
_SUPERUSER_PASSWORD = "test"
# Commits survive a killed server, not a machine that loses power: CREATE DATABASE takes a fifth of the time. A session
# opens in 3 ms instead of 6: its password is hashed once, not 4,096 times.
_FAST = {"fsync": "off", "full_page_writes": "off", "scram_iterations": "1"}
# Without the optimizing compiler a broker is ready in half the time, and is slower under load.
QUICK_START = ("-XX:TieredStopAtLevel=1",)
DEFAULTS = {"fsync": "on", "full_page_writes": "on", "scram_iterations": "4096"}  # for benchmarks
_HASHING_SINCE = 16  # the first major version with scram_iterations
_MEMORY = Path("/dev/shm")
_IN_MEMORY = "board-tests-"  # before the pid
_ROOM = 4 << 30  # the databases of a run take 1 GB in each of its processes
# CREATE DATABASE copies what is in the template, and not what is said of it.
_COPY_OF_DATABASE = """
UPDATE pg_database made SET datdba = template.datdba, datacl = template.datacl
  FROM pg_database template WHERE made.datname = %(name)s AND template.datname = %(template)s;
INSERT INTO pg_db_role_setting
SELECT made.oid, setrole, setconfig
  FROM pg_db_role_setting JOIN pg_database template ON setdatabase = template.oid, pg_database made
 WHERE made.datname = %(name)s AND template.datname = %(template)s
"""


@contextlib.contextmanager
def fast_folder(other: Path) -> Iterator[Path]:
    """A folder in memory for the block, if it has room there, else `other`: CREATE DATABASE makes 400 files.

    What a killed run left in memory is removed by the next one.
    """
    for left in _MEMORY.glob(f"{_IN_MEMORY}*"):
        pid = left.name.removeprefix(_IN_MEMORY)
        if pid == str(os.getpid()) or not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM:
        yield other
        return
    folder = _MEMORY / f"{_IN_MEMORY}{os.getpid()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Return as soon as the condition holds. Raises AssertionError naming `what` after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(_POLL_S)


class ServerProcess:
    """One server process, its output in a log file."""

    allowed = True  # pytest: only in tests that are marked servers

    def __init__(self, name: str, log: Path, health: Health, stop_signal: signal.Signals) -> None:
        self._name = name
        self._log = log
        self._health = health
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)

    def start(self, command: list[str]) -> None:
        """Start and wait until healthy. Raises AssertionError with the end of the log when it dies."""
        assert self._process is None, f"{self._name} runs already"
        assert self.allowed, f"{self._name} is started by a test without the marker servers"
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent
            )
        wait_until(self._is_healthy, START_DEADLINE_S, f"{self._name} healthy, see {self._log}")

    def stop(self) -> None:
        """Stop it cleanly and wait; SIGKILL when it does not. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.send_signal(self._stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_DEADLINE_S)
            self.kill()

    def kill(self) -> None:
        """SIGKILL it and wait. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs."""
        return self._process.pid if self._process else None

    def _is_healthy(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self._process = None
            raise AssertionError(f"{self._name} exited with {code}:\n{self._log.read_text(errors='replace')[-3000:]}")
        return probe(self._health) is None


@dataclasses.dataclass(frozen=True)
class Listener:
    """A further listener of a broker, and the port that its clients are told to use; None means its own."""

    name: str
    port: int
    protocol: str = "PLAINTEXT"
    advertised_port: int | None = None


@dataclasses.dataclass(frozen=True)
class _Broker(KafkaBroker):
    """The stack's broker with more configuration and listeners."""

    more: Mapping[str, str] = dataclasses.field(default_factory=dict)
    listeners: tuple[Listener, ...] = ()
    java_options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        java, *rest = super().command()
        return [java, *self.java_options, *rest]

    def properties(self) -> dict[str, str]:
        found = super().properties()
        if self.listeners:
            protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
            for each in self.listeners:
                found["listeners"] += f",{each.name}://{LOOPBACK}:{each.port}"
                found["advertised.listeners"] += f",{each.name}://{LOOPBACK}:{each.advertised_port or each.port}"
                protocols[each.name] = each.protocol
            found["listener.security.protocol.map"] = ",".join(":".join(pair) for pair in protocols.items())
        return {**found, **self.more}


class KafkaServer:
    """A broker that a test may stop, kill and start again; its data and port stay.

    `more` are properties, `jars` those of another version than the stack's.
    """

    def __init__(
        self,
        folder: Path,
        more: Mapping[str, str] = MappingProxyType({}),
        listeners: tuple[Listener, ...] = (),
        java_options: tuple[str, ...] = QUICK_START,
        controller_port: int | None = None,
        cluster_id: str | None = None,
        jars: Path | None = None,
    ) -> None:
        port, unused_port = unused(2)
        java = find_java(os.environ)
        self._broker = _Broker(
            folder, jars or Layout.of().kafka_jars, java, port, controller_port or unused_port, "512m", cluster_id,
            more, listeners, java_options,
        )  # fmt: skip
        health = KafkaHealth(KafkaConnection(self._broker.bootstrap_servers), self._broker.data)
        self._process = ServerProcess("kafka", folder / "kafka.log", health, signal.SIGTERM)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients."""
        return self._broker.bootstrap_servers

    @property
    def pid(self) -> int | None:
        """The broker's pid while it runs."""
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers."""
        self._broker.prepare()
        self._process.start(self._broker.command())

    def stop(self) -> None:
        """A clean shutdown."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL: what a crash looks like to clients."""
        self._process.kill()


class PostgresTestServer:
    """A PostgreSQL from the wheel where there is one, else the machine's. `more` are settings."""

    def __init__(
        self, folder: Path, more: Mapping[str, str] = MappingProxyType({}), host: str = LOOPBACK, port: int = 0
    ) -> None:
        self._host = host
        self._port = port or unused(1)[0]
        binaries = from_wheel() or find(os.environ)
        settings = {"listen_addresses": host, **_FAST, **more}
        if binaries.major < _HASHING_SINCE:
            del settings["scram_iterations"]
        self._more = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._server = PostgresServer(folder / "data", binaries, self._port, _SUPERUSER_PASSWORD)
        health = PostgresHealth(host, self._port, SUPERUSER, _SUPERUSER_PASSWORD)
        self._process = ServerProcess("postgres", folder / "postgres.log", health, signal.SIGINT)
        self.templates: set[str] = set()  # databases to copy, see `new_database`

    @property
    def host(self) -> str:
        """The address it listens on."""
        return self._host

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs."""
        return self._process.pid

    @property
    def data(self) -> Path:
        """The data folder; one that is there already is used."""
        return self._server.data

    @property
    def superuser(self) -> str:
        """The name of the superuser."""
        return SUPERUSER

    @property
    def superuser_password(self) -> str:
        """The superuser's password."""
        return _SUPERUSER_PASSWORD

    def superuser_dsn(self, database: str = "postgres") -> str:
        """A DSN that connects as the superuser."""
        return f"host={self.host} port={self.port} dbname={database} user={SUPERUSER} password={_SUPERUSER_PASSWORD}"

    def new_database(self, name: str, template: str = "template0") -> str:
        """Create a database, replacing one of that name, and return the superuser's DSN for it.

        It is empty, or has all that the template has: its owner, privileges and settings too. Nobody may be connected
        to the template.
        """
        with self._superuser() as cursor:
            cursor.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            cursor.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
            if template != "template0":
                cursor.execute(_COPY_OF_DATABASE, {"name": name, "template": template})
        return self.superuser_dsn(name)

    def hash_password_again(self) -> None:
        """Hash the superuser's password as often as the server's settings say; initdb has its own."""
        with self._superuser() as cursor:
            cursor.execute("SET default_transaction_read_only = off")  # a test's own settings may forbid it
            cursor.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{_SUPERUSER_PASSWORD}'")

    @contextlib.contextmanager
    def _superuser(self) -> Iterator[Cursor]:
        connection = psycopg2.connect(self.superuser_dsn())
        connection.autocommit = True
        with contextlib.closing(connection), connection.cursor() as cursor:
            yield cursor

    def with_password(self, password: str) -> PostgresServer:
        """Return the same server as started with another password in `.env`."""
        return dataclasses.replace(self._server, superuser_password=password)

    def with_major(self, major: int) -> PostgresServer:
        """The same server, as programs of another version see it."""
        return dataclasses.replace(self._server, binaries=dataclasses.replace(self._server.binaries, major=major))

    def start(self) -> None:
        """Start and wait until it answers; the data folder is made the first time."""
        self._server.prepare()
        self._process.start([*self._server.command(death_signal="INT"), *self._more])

    def stop(self) -> None:
        """A clean, quick shutdown; open connections are cut."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL the server with all its processes: the loss of its host."""
        if self._process.pid is not None:
            kill_with_children(self._process.pid)
        self._process.kill()


@contextlib.contextmanager
def kafka_server(
    folder: Path,
    more: Mapping[str, str] = MappingProxyType({}),
    listeners: tuple[Listener, ...] = (),
    java_options: tuple[str, ...] = QUICK_START,
) -> Iterator[KafkaServer]:
    """A running broker, stopped at the end of the block. Benchmarks give `java_options=()`, as in the stack."""
    server = KafkaServer(folder, more, listeners, java_options)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def postgres_server(
    folder: Path, more: Mapping[str, str] = MappingProxyType({}), host: str = LOOPBACK, port: int = 0
) -> Iterator[PostgresTestServer]:
    """A running PostgreSQL, stopped at the end of the block."""
    server = PostgresTestServer(folder, more, host, port)
    try:
        server.start()
        server.hash_password_again()
        yield server
    finally:
        server.stop()
