"""Creates roles that log in, and sets their passwords."""

from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor
from psycopg2.extensions import encrypt_password

from include.database.named import query
from include.database.sessions import AUTHENTICATION


def save_login_role(cursor: Cursor, role: str, password: str, attribute: str = "") -> None:
    """Create the role, or set its password; `attribute` is a further role attribute, such as CREATEROLE.

    The statement has the SCRAM verifier instead of the password, because PostgreSQL may log whole statements.
    """
    cursor.execute(query("select_role", cursor), {"role": role})
    verb = "ALTER" if cursor.fetchone() else "CREATE"
    verifier = encrypt_password(password, role, cursor.connection, AUTHENTICATION)
    statement = sql.SQL(verb + " ROLE {} LOGIN " + attribute + " PASSWORD {}")
    cursor.execute(statement.format(sql.Identifier(role), sql.Literal(verifier)))
