"""Creates the databases and first roles, as the local stack does: `python -m deploy.databases`. Idempotent."""

import argparse
import sys

from deploy.environment import required
from stack.databases import create_databases
from stack.errors import StackError

VARIABLES = (
    "PIPELINES",
    "DATABASE_HOST",
    "DATABASE_PORT",
    "DATABASE_NAME",
    "POSTGRES_SUPERUSER_PASSWORD",
    "DB_OWNER_PASSWORD",
    "DB_AIRFLOW_PASSWORD",
)


def main() -> int:
    """Run the command; returns 1 after a one-line error if PostgreSQL refuses or a variable is missing."""
    try:
        create_databases(required(VARIABLES))
    except StackError as exc:
        print(f"databases: {exc}", file=sys.stderr)
        return 1
    print("databases and their owners are there")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
