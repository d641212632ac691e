"""Roles that log in, and their passwords."""

from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor
from psycopg2.extensions import encrypt_password

from include.adapters.postgres.sessions import AUTHENTICATION
from include.sql.named import query


def save_login_role(cursor: Cursor, role: str, password: str, attribute: str = "") -> None:
    """Create the role, or renew its password; `attribute` is one more of SQL's, such as CREATEROLE.

    The statement has the SCRAM verifier of the password: PostgreSQL writes statements into its log, whole.
    """
    cursor.execute(query("select_role", cursor), {"role": role})
    verb = "ALTER" if cursor.fetchone() else "CREATE"
    verifier = encrypt_password(password, role, cursor.connection, AUTHENTICATION)
    statement = sql.SQL(verb + " ROLE {} LOGIN " + attribute + " PASSWORD {}")
    cursor.execute(statement.format(sql.Identifier(role), sql.Literal(verifier)))
