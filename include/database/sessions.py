"""Opens connections to PostgreSQL, and gives roles the passwords for it. Knows the GRANT statements of each role.

No other module opens one, so every session has its limits.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psycopg2
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege, ReadOnlySqlTransaction, UndefinedFunction
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extensions import encrypt_password

from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, DatabaseUnavailable
from include.database.named import PipelineConnection, fill, query
from include.runtime.settings import DatabaseSettings, Role

CLOSE_TIMEOUT_S = 5.0
HOUR_S = 3600.0


class DatabaseAccessDenied(ConfigurationError):
    """PostgreSQL denies a statement to this role."""


@dataclass(frozen=True)
class SessionLimits:
    """Time limits of a session: of the client while it connects, of PostgreSQL afterwards.

    Without them, the session of a frozen process or a lost host would keep its transaction's locks.
    """

    statement_s: float = 60.0
    lock_s: float = 10.0
    idle_in_transaction_s: float = 30.0
    connect_s: int = 5


# Statements that read or build a whole day, and transactions that are open while Spark or Kafka is read.
LONG = SessionLimits(statement_s=2 * HOUR_S, lock_s=60.0, idle_in_transaction_s=600.0)
# A migration may rewrite the largest table; the session that holds the lock of migrations is idle meanwhile.
MIGRATION = SessionLimits(statement_s=12 * HOUR_S, lock_s=300.0, idle_in_transaction_s=12 * HOUR_S)

_OF_ROLE: Mapping[Role, SessionLimits] = {
    "pipeline_owner": MIGRATION,
    "gateway": SessionLimits(),
    "stream": SessionLimits(),
    "batch": LONG,
    "integrity": SessionLimits(statement_s=15.0, lock_s=5.0),  # a person waits for the page
    "analyst": SessionLimits(),
}
# They write what is lost if a standby is promoted that had not received it yet.
_NOTING: frozenset[Role] = frozenset({"gateway", "stream", "batch"})
# Both ends detect within seconds, not hours, that the other host is gone.
_CLIENT_KEEPALIVES = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000,
}  # fmt: skip
# without it, libpq would send the password in clear text to any program on the port that asks for it
AUTHENTICATION = "scram-sha-256"
_SERVER_KEEPALIVES = {
    "tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3, "tcp_user_timeout": 20_000,
    "client_connection_check_interval": 1_000,  # ends the statement of a killed client, and frees its locks
}  # fmt: skip


def open_session(
    *,
    host: str,
    port: int,
    database: str,
    user: str,
    password: str,
    application: str,
    limits: SessionLimits,
    settings: Mapping[str, object] = MappingProxyType({}),
    pipeline: Definition | None = None,
    libpq: Mapping[str, str] = MappingProxyType({}),
) -> Connection:
    """Return an open connection, which the caller closes. Raises DatabaseUnavailable.

    `host` may be several, separated by commas. `settings` are further settings of PostgreSQL, and `libpq` those of the
    client. Named statements need the `pipeline` to whose database it connects. A server that asks for the password by
    any method other than SCRAM is refused without sending it. Blocks up to `connect_s` for each host. A statement can
    block for longer than its limit only while PostgreSQL itself is frozen.
    """
    parameters = {
        "timezone": "UTC",
        "statement_timeout": _milliseconds(limits.statement_s),
        "lock_timeout": _milliseconds(limits.lock_s),
        "idle_in_transaction_session_timeout": _milliseconds(limits.idle_in_transaction_s),
        **_SERVER_KEEPALIVES,
        **settings,
    }
    try:
        connection = psycopg2.connect(
            host=host,
            port=port,
            dbname=database,
            user=user,
            password=password,
            require_auth=AUTHENTICATION,
            application_name=application,
            connect_timeout=limits.connect_s,
            options=" ".join(f"-c {name}={value}" for name, value in parameters.items()),
            connection_factory=PipelineConnection,
            **libpq,
            **_CLIENT_KEEPALIVES,
        )
    except psycopg2.OperationalError as exc:
        raise DatabaseUnavailable(host=host, port=port, role=user, reason=str(exc).strip()) from exc
    if pipeline:
        connection.pipeline = pipeline
    return connection


def open_connection(
    database: DatabaseSettings,
    role: Role,
    application: str = "",
    limits: SessionLimits | None = None,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Connection:
    """Return an open connection of a role, with the role's limits unless others are given. See `open_session`.

    Before a role that writes can give out an id, the timeline of the database is noted: see `note_timeline` in
    schema.sql. A promoted standby ends all sessions of the old primary, so this costs a round trip for each session,
    and none for its transactions. Such a role gets no session of a standby, since a later promotion would not end it:
    that is DatabaseUnavailable.
    """
    connection = open_session(
        host=database.host, port=database.port, database=database.name, user=role, password=database.password(role),
        application=application or role, limits=limits or _OF_ROLE[role], settings=settings,
        pipeline=database.pipeline, libpq=database.libpq,
    )  # fmt: skip
    if role in _NOTING:
        try:
            with own_errors(database):
                _note_timeline(connection, database)
        except BaseException:
            connection.close()
            raise
    return connection


def _note_timeline(connection: Connection, database: DatabaseSettings) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor, suppress(UndefinedFunction):  # an older schema: `require_schema` refuses it
        cursor.execute(query("note_timeline", cursor))
        if cursor.fetchone() == (None,):
            raise DatabaseUnavailable(host=database.host, port=database.port, reason="the server is a standby")
    connection.autocommit = False


@contextmanager
def connect(
    database: DatabaseSettings, role: Role, application: str = "", limits: SessionLimits | None = None
) -> Iterator[Connection]:
    """Yield a connection for one transaction: committed at the end, rolled back on an error, then closed.

    Raises DatabaseUnavailable if the server is unavailable, goes away, or ends the session; its cause says which.
    """
    connection = open_connection(database, role, application, limits)
    try:
        with own_errors(database), connection:
            yield connection
    finally:
        connection.close()


@contextmanager
def hold_lock(
    database: DatabaseSettings, application: str, lock: str, parameters: Mapping[str, object], busy: Exception
) -> Iterator[None]:
    """Hold an advisory lock of role `batch`, in a session of its own, until the block ends.

    `lock` names the statement that takes it, which is true or false. Raises `busy` if another session holds the lock.
    It is given back before the session closes: a server keeps the locks of a closed session until it has noticed that.
    """
    connection = open_connection(database, "batch", application)
    try:
        connection.autocommit = True
        with own_errors(database), connection.cursor() as cursor:
            cursor.execute(query(lock, cursor), parameters)
            if not cursor.fetchone()[0]:
                raise busy
        try:
            yield
        finally:
            with suppress(psycopg2.Error), connection.cursor() as cursor:  # the server may be gone by now
                cursor.execute(query("release_locks", cursor))
    finally:
        connection.close()


class KeptConnection:
    """One connection kept open between transactions; after an error the next transaction opens another.

    Thread-safe: one transaction at a time.
    """

    def __init__(
        self, database: DatabaseSettings, role: Role, application: str, limits: SessionLimits | None = None
    ) -> None:
        self._database = database
        self._role: Role = role
        self._application = application
        self._limits = limits
        self._connection: Connection | None = None
        self._lock = threading.RLock()

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """Yield a cursor for one transaction. Raises DatabaseUnavailable if the server is unavailable or goes away."""
        with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = open_connection(self._database, self._role, self._application, self._limits)
            try:
                with own_errors(self._database), self._connection, self._connection.cursor() as cursor:
                    yield cursor
            except DatabaseUnavailable:
                self._let_go()
                raise

    def close(self) -> None:
        """Close the connection, unless it stays in use for 5 s. The next transaction opens another."""
        if self._lock.acquire(timeout=CLOSE_TIMEOUT_S):
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        if self._connection is not None and not self._connection.closed:
            self._connection.close()
        self._connection = None


@contextmanager
def own_errors(database: DatabaseSettings) -> Iterator[None]:
    """Raise DatabaseUnavailable for errors of a server that is unavailable, goes away or ends the session.

    Raises DatabaseAccessDenied if the role lacks a right.
    """
    try:
        yield
    except InsufficientPrivilege as exc:
        message = exc.diag.message_primary or ""
        granted = " ".join(missing_grants(message, database.pipeline)) or "none of the schema concerns it"
        raise DatabaseAccessDenied(
            f"PostgreSQL: {message}; rights of the schema, granted by its owner: {granted}"
        ) from exc
    except (psycopg2.OperationalError, psycopg2.InterfaceError, ReadOnlySqlTransaction) as exc:
        # without DETAIL and CONTEXT, which may quote a row
        reason = exc.diag.message_primary or str(exc).strip()
        raise DatabaseUnavailable(host=database.host, port=database.port, sqlstate=exc.pgcode, reason=reason) from exc


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def save_login_role(cursor: Cursor, role: str, password: str, attribute: str = "") -> None:
    """Create the role, or set its password; `attribute` is a further role attribute, such as CREATEROLE.

    The statement has the SCRAM verifier instead of the password, because PostgreSQL may log whole statements.
    """
    cursor.execute(query("select_role", cursor), {"role": role})
    verb = "ALTER" if cursor.fetchone() else "CREATE"
    verifier = encrypt_password(password, role, cursor.connection, AUTHENTICATION)
    statement = sql.SQL(verb + " ROLE {} LOGIN " + attribute + " PASSWORD {}")
    cursor.execute(statement.format(sql.Identifier(role), sql.Literal(verifier)))


def present_timeline(database: DatabaseSettings, role: Role) -> str:
    """Return the timeline of the database and since when it is used; both change with a restore or a failover.

    Raises DatabaseUnavailable.
    """
    with connect(database, role, "timeline") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_present_timeline", cursor))
        found: str = cursor.fetchone()[0]
        return found


_FOLDER = Path(__file__).parent
_GRANT = re.compile(r"^GRANT [^;]+;", re.MULTILINE)
_DENIED = re.compile(r"permission denied for \w+(?: \w+)? (\w+)")


def grants(pipeline: Definition) -> list[str]:
    """Return the GRANT statements of a pipeline's database, and of the site's tables if they are in it; on one line."""
    from include.contracts.pipelines import SITE_PIPELINE  # reads all definitions, of which one may be wrong

    files = ["schema.sql", *(["site.sql"] if pipeline is SITE_PIPELINE else [])]
    text = fill("\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in files), pipeline)
    return [" ".join(found.split()) for found in _GRANT.findall(text)]


def missing_grants(message: str, pipeline: Definition) -> list[str]:
    """Return the GRANT statements for the relation that PostgreSQL's message denies; none if it names no relation."""
    denied = _DENIED.search(message)
    named = re.compile(rf" ON (?:\w+ )*?(?:\w+\.)?{denied[1]}\b") if denied else None
    return [each for each in grants(pipeline) if named and named.search(each)]
