"""A migrated database of a test's own."""

from include.database.migrate import migrate
from include.runtime.settings import DatabaseSettings, Settings
from tests.servers import PostgresTestServer

PASSWORDS = {
    f"DB_{role}_PASSWORD": f"{role.lower()}-test"
    for role in ("OWNER", "GATEWAY", "STREAM", "BATCH", "INTEGRITY", "ANALYST")
}


def database_environment(server: PostgresTestServer, name: str) -> dict[str, str]:
    """The variables of a database on that server."""
    return {
        "DATABASE_HOST": server.host,
        "DATABASE_PORT": str(server.port),
        "DATABASE_NAME": name,
        "POSTGRES_SUPERUSER_PASSWORD": server.superuser_password,
        **PASSWORDS,
    }


def migrated(server: PostgresTestServer, name: str) -> DatabaseSettings:
    """A new database, migrated; one of that name is replaced."""
    server.new_database(name)
    settings = Settings.from_environment(
        {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", **database_environment(server, name)}
    )
    migrate(settings)
    return settings.database
