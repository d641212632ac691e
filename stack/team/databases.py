"""Creates the databases and first roles, as the local stack does: `python -m stack.team.databases`. Idempotent."""

import argparse

from stack.databases import create_databases
from stack.errors import one_line_errors
from stack.team.environment import required

VARIABLES = (
    "PIPELINES",
    "DATABASE_HOST",
    "DATABASE_PORT",
    "DATABASE_NAME",
    "POSTGRES_SUPERUSER_PASSWORD",
    "DB_OWNER_PASSWORD",
    "DB_AIRFLOW_PASSWORD",
)


@one_line_errors("databases")
def main() -> None:
    """Run the command; exits with 1 after a one-line error if PostgreSQL refuses or a variable is missing."""
    create_databases(required(VARIABLES))
    print("databases and their owners are there")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
