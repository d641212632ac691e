"""Checks that a database fits this process: revision of the schema, columns of the definition, time zone of its days.

Rows, generations and files of one time zone are wrong in another.
"""

from collections.abc import Mapping
from pathlib import Path

from psycopg2 import ProgrammingError, sql
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import ConfigurationError, ContractMismatch
from include.contracts.evolution import compare
from include.database.named import COORDINATES, query
from include.database.sessions import connect
from include.runtime.settings import DatabaseSettings, Role, Settings

_OTHERS = ["generation_id", "day", "replayed", *COORDINATES]


def detail_columns(cursor: Cursor) -> Mapping[str, str]:
    """Return the types of the definition's columns that the tables of rows have, by name."""
    cursor.execute(query("select_detail_columns", cursor), {"others": _OTHERS})
    return dict(cursor.fetchall())


VERSIONS = Path(__file__).parent / "migrations" / "versions"
_REMEDY = "run the migrations: pipeline database migrate"


def revisions() -> list[str]:
    """Return the revisions that have a migration in this version, the oldest first. Their files begin with them."""
    return sorted(path.name[:4] for path in VERSIONS.glob("[0-9]*.py"))


def newest_revision() -> str:
    """Return the revision of a database that has the schema of this version."""
    return revisions()[-1]


def require_schema(database: DatabaseSettings, role: Role) -> None:
    """Raise ContractMismatch when migrations or columns of the definition are missing. Raises DatabaseUnavailable.

    Newer migrations, and columns that the definition of this process does not have, are accepted.
    """
    try:
        with connect(database, role, "schema") as connection, connection.cursor() as cursor:
            cursor.execute(query("select_revision", cursor))
            row = cursor.fetchone()
            columns = detail_columns(cursor) if row and row[1] and row[0] >= newest_revision() else {}
    except ProgrammingError as exc:  # a table, or the right to read it, that a migration gives
        raise ContractMismatch(
            f"the database has no schema of the pipeline, or an older one; {_REMEDY}", sqlstate=exc.pgcode
        ) from exc
    if row is not None and not row[1]:
        raise other_pipeline(database)
    if row is None or row[0] < newest_revision():
        raise ContractMismatch(f"the database is behind this version; {_REMEDY}",
                               revision=row and row[0], needed=newest_revision())  # fmt: skip
    if missing := compare(database.pipeline, columns, None).added:
        raise ContractMismatch(f"database {database.name} lacks columns that {database.pipeline.name}.toml has"
                               f" ({', '.join(missing)}); {_REMEDY}")  # fmt: skip


def checked_settings(role: Role, pipeline: str = "", environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of the pipeline: the one named, or else the one that PIPELINE names.

    They are read from the process's environment unless another is given. Raises the errors of `require_schema`, also
    for a database that is another pipeline's.
    """
    settings = Settings.from_environment(environment, pipeline)
    require_schema(settings.database, role)
    return settings


def other_pipeline(database: DatabaseSettings) -> ContractMismatch:
    """Return the error for a database that has the schema of another pipeline than the settings name."""
    return ContractMismatch(
        f"database {database.name} is not that of pipeline {database.pipeline.name}; set DATABASE_NAME or PIPELINE"
    )


def keep_zone(cursor: Cursor, zone: str) -> None:
    """Save the zone if none is saved yet, and make it the database's, for queries by `created_at`.

    Raises ConfigurationError if another zone is saved.
    """
    cursor.execute(query("keep_zone", cursor), {"zone": zone})
    _refuse_other(cursor, zone)
    name = sql.Identifier(cursor.connection.info.dbname)
    cursor.execute(sql.SQL("ALTER DATABASE {} SET timezone = {}").format(name, sql.Literal(zone)))


def require_zone(settings: Settings, role: Role) -> None:
    """Raise ConfigurationError if the database's days were counted in another zone. Blocks on PostgreSQL."""
    with connect(settings.database, role, "zone") as connection, connection.cursor() as cursor:
        _refuse_other(cursor, settings.timezone)


def _refuse_other(cursor: Cursor, zone: str) -> None:
    cursor.execute(query("select_zone", cursor))
    row = cursor.fetchone()
    if row and row[0] != zone:
        raise ConfigurationError(
            f"PIPELINE_TIMEZONE={zone}: the days of this database and its archive were filed under {row[0]}; set it "
            "back, or begin with a new database and another ARCHIVE_DIR, see docs/deployment/compose.md"
        )
