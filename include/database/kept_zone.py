"""The time zone in which days were counted. Rows, generations and files of one zone are wrong in another."""

from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import ConfigurationError
from include.database.named import query
from include.database.sessions import connect
from include.runtime.settings import Role, Settings


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
