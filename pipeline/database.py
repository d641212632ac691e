"""`pipeline database`: the schema and the roles."""

import logging

import click

from include.contracts.errors import OK
from pipeline.group import Group

log = logging.getLogger(__name__)


@click.group(cls=Group)
def database() -> None:
    """Migrate the database; print the rights of its roles."""


@database.command()
def migrate() -> int:
    """Bring roles and schema to this version.

    Run it before anything of a new version connects; running it again changes nothing. Exit codes: 75 the database is
    down, or a session blocks the migration; 78 a setting is wrong, or a role is missing.
    """
    from include.database.migrate import migrate
    from include.runtime.settings import Settings

    settings = Settings.from_environment()
    log.info("database %s is at revision %s", settings.database.name, migrate(settings))
    return OK


@database.command()
def rights() -> int:
    """Print the least rights of each role as GRANT statements."""
    from include.database.sessions import grants
    from include.runtime.settings import Settings

    print(*grants(Settings.from_environment().pipeline), sep="\n")
    return OK
