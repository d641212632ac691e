"""Prepares Airflow before its components start: `python -m stack.team.airflow_init`. Idempotent; renews passwords."""

import argparse

from stack.airflow_env import USERS, write_password_file
from stack.errors import one_line_errors
from stack.team.environment import required

VARIABLES = (
    "AIRFLOW_HOME",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    *(f"AIRFLOW_{user.upper()}_PASSWORD" for user in USERS),
)


def main() -> None:
    """Write the password file, migrate the metadata database, create the pool. Exits with 1 after a one-line error."""
    with one_line_errors("airflow_init"):
        write_password_file(required(VARIABLES))
    from include.airflow_support.init import prepare  # importing Airflow reads its settings and creates its home

    prepare()
    print("Airflow's database is migrated, its pool and password file are there")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
