"""Roles and schema: `pipeline database migrate`. Idempotent; run it before anything of a new version connects.

A migration waits for a table's lock for a short time only, because later sessions queue behind it. It names the
sessions that block it: PostgreSQL reports them only while it waits. Afterwards the tables and views are brought to the
pipeline's definition.
"""

import dataclasses
import datetime as dt
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import sqlalchemy
from alembic import command
from alembic.config import Config
from psycopg2 import sql
from psycopg2.errors import DeadlockDetected, DependentObjectsStillExist, LockNotAvailable
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import ConfigurationError, ContractMismatch, DatabaseUnavailable, Transient
from include.contracts.evolution import compare, kept_form
from include.contracts.pipelines import SITE_PIPELINE
from include.database import schema_check
from include.database.named import fill, pipeline_of, query
from include.database.schema_check import detail_columns, keep_zone
from include.database.sessions import (
    MIGRATION,
    KeptConnection,
    connect,
    open_connection,
    open_session,
    own_errors,
    save_login_role,
)
from include.runtime.retry import retry_transient
from include.runtime.settings import DatabaseSettings, Role, Settings

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2


class Blocking(NamedTuple):
    """A blocking session, and the table. `state` and `since` are None if the role may not see the session."""

    pid: int
    application: str
    user: str
    state: str | None
    since: dt.datetime | None
    table: str | None

    def __str__(self) -> str:
        state = "state unknown" if self.since is None else f"{self.state}, transaction since {self.since:%H:%M:%S} UTC"
        return f"session {self.pid} of user {self.user} (application {self.application or 'without a name'}, {state})"


@contextmanager
def blocking_sessions(database: DatabaseSettings, role: Role, application: str, pid: int) -> Iterator[list[Blocking]]:
    """Yield the sessions that backend `pid` waited for last; the list is updated until the end of the block."""
    seen: list[Blocking] = []
    is_over = threading.Event()

    def look() -> None:
        connection = KeptConnection(database, role, application)
        with suppress(DatabaseUnavailable):  # the caller gets the same error from its own connection
            while not is_over.wait(_LOOK_EVERY_S):
                with connection.transaction() as cursor:  # a new one each time: within one the result never changes
                    cursor.execute(query("select_blocking_sessions", cursor), {"pid": pid})
                    seen[:] = map(Blocking._make, cursor.fetchall()) if cursor.rowcount else seen
        connection.close()

    thread = threading.Thread(target=look, name="blocking-sessions")
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


_HERE = Path(__file__).parent
VIEW = _HERE / "view.sql"
_TABLES = ("detail_live", "detail_covered", "detail_empty", "detail_final")
ANALYST_LIMITS = _HERE / "limit_analysts.sql"
SCHEMA, SITE = _HERE / "schema.sql", _HERE / "site.sql"
ROLES: tuple[Role, ...] = ("pipeline_owner", "gateway", "stream", "batch", "integrity", "analyst")
GROUP_ROLES = ("analyst_personal",)  # nobody logs in as one; it is granted to those who may see personal values


# The stream waits for a lock for 10 s, and the job `migrate` of the stack ends after 120 s.
STEP = dataclasses.replace(MIGRATION, lock_s=2.0)
MAX_WAIT_S = 90.0


class MigrationBlocked(Transient):
    """A migration waits for a lock that other sessions hold."""


def migrate(settings: Settings) -> str:
    """Bring the database to the newest revision, and return its name.

    An empty database gets the schema from schema.sql. Another one gets the migrations since its revision, then the
    columns that the definition has since.
    Each migration is a transaction. One that cannot have a lock within 2 s lets all others go on and is tried again,
    for a minute and a half; then MigrationBlocked is raised. Those before it stay done.

    Raises DatabaseUnavailable; ContractMismatch when its revision has no migration here, or when the definition changed
    in a way that the database cannot take, see `evolve`; ConfigurationError when the time zone is another one than days
    were filed under, or where an administrator has to make a role or give the database to pipeline_owner first.

    With a superuser's password the roles are made (or their passwords renewed) first; without, they must exist.
    """
    if settings.database.superuser_password:
        _make_roles(settings.database)
    with connect(settings.database, "pipeline_owner", "migrate") as connection:
        with connection.cursor() as cursor:
            cursor.execute(query("lock_migrations", cursor))
            for role in (*ROLES, *GROUP_ROLES):
                cursor.execute(query("select_role", cursor), {"role": role})
                if cursor.fetchone() is None:
                    how = "NOLOGIN" if role in GROUP_ROLES else f"LOGIN, and \\password {role}"
                    raise ConfigurationError(f"role {role} is missing; as a superuser: CREATE ROLE {role} {how}")
            cursor.execute(query("select_is_database_owner", cursor))
            if cursor.fetchone() != (True,):
                name = settings.database.name
                raise ConfigurationError(
                    f"pipeline_owner does not own database {name}, so it may not change its settings;"
                    f' as a superuser: ALTER DATABASE "{name}" OWNER TO pipeline_owner'
                )
            cursor.execute(query("select_is_limited", cursor))
            if cursor.fetchone() != (True,):
                log.warning(
                    "analysts can take the pipeline's locks and fill the disk; as a superuser, in database %s: "
                    "\\i include/database/limit_analysts.sql", settings.database.name,
                )  # fmt: skip
        with connection.cursor() as cursor:

            def upgrade() -> str:
                # it is lost when the session is, and then nothing is tried
                cursor.execute(query("lock_migrations", cursor))
                cursor.execute(query("select_is_migrated", cursor))
                is_migrated, is_of_another = cursor.fetchone()
                if is_of_another:
                    raise schema_check.other_pipeline(settings.database)
                if not is_migrated:
                    return _create(settings.database)
                cursor.execute(query("select_revision", cursor))
                found = cursor.fetchone()
                _require_known(found and found[0], settings.database.name)
                revision = _upgrade(settings.database)
                _evolve(settings.database)
                return revision

            revision = retry_transient(upgrade, MAX_WAIT_S)
            keep_zone(cursor, settings.timezone)
            cursor.execute(
                query("save_setting", cursor),
                {"name": "retention_days", "value": str(settings.kafka.retention_days)},
            )
    return revision


def _require_known(revision: str | None, database: str) -> None:
    """Raise ContractMismatch if no migration here leads on from the database's revision; None is no revision."""
    known = schema_check.revisions()
    if revision is not None and revision > known[-1]:
        raise ContractMismatch(
            f"a later version migrated the database (to revision {revision}); update to it, or restore a backup from"
            " before that (docs/runbooks/database.md)",
            newest=known[-1],
        )
    if revision not in known:
        raise ContractMismatch(
            f"database {database} is at revision {revision}, and this version migrates from {known[0]} on; migrate it"
            f" to {known[0]} with an earlier version, or replace it by an empty one (locally `make clean`)",
            oldest=known[0],
        )


def _make_roles(database: DatabaseSettings) -> None:
    connection = open_session(
        host=database.host, port=database.port, database=database.name, user=database.superuser,
        password=database.superuser_password, application="migrate", limits=MIGRATION, pipeline=database.pipeline,
        libpq=database.libpq,
    )  # fmt: skip
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query("lock_migrations", cursor))
            for role in ROLES:
                save_login_role(cursor, role, database.password(role))
            for group in GROUP_ROLES:
                cursor.execute(query("select_role", cursor), {"role": group})
                if cursor.fetchone() is None:
                    cursor.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(group)))
            cursor.execute(sql.SQL("GRANT batch, pg_read_all_stats TO pipeline_owner"))
            name = sql.Identifier(database.name)
            cursor.execute(sql.SQL("ALTER DATABASE {} OWNER TO pipeline_owner").format(name))
            cursor.execute(sql.SQL("GRANT ALL ON SCHEMA public TO pipeline_owner"))
            cursor.execute(ANALYST_LIMITS.read_text(encoding="utf-8"))
    finally:
        connection.close()


def _create(database: DatabaseSettings) -> str:
    """Make the schema of today in an empty database, in one transaction, and return its revision."""
    revision = schema_check.newest_revision()
    with connect(database, "pipeline_owner", "migrate", MIGRATION) as connection, connection.cursor() as cursor:
        cursor.execute(fill(SCHEMA.read_text(encoding="utf-8"), database.pipeline))
        make_view(cursor)
        if database.pipeline is SITE_PIPELINE:
            cursor.execute(SITE.read_text(encoding="utf-8"))
        cursor.execute(query("save_revision", cursor), {"revision": revision})
    return revision


def _upgrade(database: DatabaseSettings) -> str:
    config = Config()
    scripts = str(schema_check.VERSIONS.parent)
    config.set_main_option("script_location", scripts.replace("%", "%%"))  # which the parser of options interpolates
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg2://", poolclass=sqlalchemy.NullPool,
        creator=lambda: open_connection(database, "pipeline_owner", "migrate", STEP),
    )  # fmt: skip
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        session = connection.connection.driver_connection
        assert session is not None
        _unless_blocked(database, session.info.backend_pid, lambda: command.upgrade(config, "head"))
        return str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())


def _evolve(database: DatabaseSettings) -> None:
    connection = open_connection(database, "pipeline_owner", "migrate", STEP)
    try:
        _unless_blocked(database, connection.info.backend_pid, lambda: evolve(connection))
    finally:
        connection.close()


def _unless_blocked(database: DatabaseSettings, pid: int, upgrade: Callable[[], None]) -> None:
    """Call it, on that backend. Raises MigrationBlocked without a lock, DatabaseUnavailable without the server."""
    with blocking_sessions(database, "pipeline_owner", "migrate", pid) as blocking:
        try:
            with own_errors(database):
                try:
                    upgrade()
                except sqlalchemy.exc.DBAPIError as exc:
                    raise (exc.orig or exc) from None
        except DatabaseUnavailable as exc:
            if not isinstance(exc.__cause__, LockNotAvailable | DeadlockDetected):
                raise
            if not blocking:
                raise MigrationBlocked from exc
            place = f"table {blocking[0].table}" if blocking[0].table else "transactions that are older"
            kept_by = ", ".join(map(str, blocking))
            raise MigrationBlocked(
                f"a migration waits for {place}, held by {kept_by}; end the transaction, or as a"
                f" superuser the session: SELECT pg_terminate_backend({blocking[0].pid}); then run it again"
            ) from exc


def make_view(cursor: Cursor) -> None:
    """Make the views that have the definition's columns, and keep the definition and the hash of the statements."""
    cursor.execute(_views_of(cursor))
    for name, value in (("definition", _kept_definition(cursor)), ("views", _views_hash(cursor))):
        cursor.execute(query("save_setting", cursor), {"name": name, "value": value})


def evolve(connection: Connection) -> None:
    """Add the definition's new columns to the tables, and make the views again if they or the definition have changed.

    It is one transaction. New columns are nullable: rows that exist have NULL in them. Raises ContractMismatch, and
    changes nothing, for any other change of a column, the key, the join, the day or the topics, and when other objects
    depend on the views.
    """
    with connection, connection.cursor() as cursor:
        definition = pipeline_of(cursor)
        kept = _setting(cursor, "definition")
        evolution = compare(definition, detail_columns(cursor), json.loads(kept) if kept else None)
        if evolution.refused:
            raise ContractMismatch(
                f"{definition.name}.toml: {evolution.refused[0]}; see docs/pipelines.md, Effect of a migration"
            )
        if evolution.added or kept != _kept_definition(cursor) or _setting(cursor, "views") != _views_hash(cursor):
            _make_again(cursor, evolution.added)


def _make_again(cursor: Cursor, added: tuple[str, ...]) -> None:
    cursor.execute(query("select_view_grants", cursor))
    grants = [statement for (statement,) in cursor.fetchall()]
    try:
        cursor.execute(query("drop_view", cursor))  # before the tables are locked: readers lock them in this order
    except DependentObjectsStillExist as exc:
        raise ContractMismatch(
            f"the views have to be made again, and other objects depend on them ({exc.diag.message_detail}); drop "
            "those, run the migrations, and create them again"
        ) from exc
    for column in added:
        for table in _TABLES:
            _add_column(cursor, sql.Identifier("public", table), column)
        cursor.execute(query("select_tables_without_column", cursor), {"column": column})
        for (table,) in cursor.fetchall():
            _add_column(cursor, sql.Identifier("generations", table), column)
    make_view(cursor)
    for statement in grants:
        cursor.execute(statement)
    if added:
        cursor.execute(query("save_added_columns", cursor), {"columns": list(added)})
        log.info("added column %s; rows that exist have NULL in it until their day is built again", ", ".join(added))


def _add_column(cursor: Cursor, table: sql.Identifier, column: str) -> None:
    kind = sql.SQL(pipeline_of(cursor).postgres_type(column))
    cursor.execute(sql.SQL(query("add_column", cursor)).format(table=table, column=sql.Identifier(column), type=kind))


def _setting(cursor: Cursor, name: str) -> str | None:
    cursor.execute(query("select_setting", cursor), {"name": name})
    row = cursor.fetchone()
    return str(row[0]) if row else None


def _views_of(cursor: Cursor) -> str:
    return fill(VIEW.read_text(encoding="utf-8"), pipeline_of(cursor))


def _views_hash(cursor: Cursor) -> str:
    return sha256(_views_of(cursor).encode()).hexdigest()


def _kept_definition(cursor: Cursor) -> str:
    return json.dumps(kept_form(pipeline_of(cursor)), ensure_ascii=False)
