"""The catalogue of a database as text: relations, columns, constraints, indexes, views, comments, owners and grants."""

from psycopg2.extensions import connection as Connection

_PARTS = (
    """
    SELECT 'relation', c.relkind, c.relname, pg_get_userbyid(c.relowner), pg_get_partkeydef(c.oid),
           obj_description(c.oid, 'pg_class'),
           (SELECT string_agg(acl::text, ' ' ORDER BY acl::text) FROM unnest(c.relacl) acl)
      FROM pg_class c WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind <> 'i' ORDER BY c.relname
    """,
    """
    SELECT 'column', c.relname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname,
           format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
           pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum),
           (SELECT string_agg(acl::text, ' ' ORDER BY acl::text) FROM unnest(a.attacl) acl)
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind IN ('r', 'p', 'v') ORDER BY c.relname, a.attnum
    """,
    """
    SELECT 'constraint', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid)
      FROM pg_constraint c
     WHERE c.connamespace = to_regnamespace(%(schema)s) AND c.contype IN ('p', 'u', 'c', 'f')
     ORDER BY c.conrelid::regclass::text, c.conname
    """,
    "SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = %(schema)s ORDER BY indexname",
    """
    SELECT 'view', c.relname, pg_get_viewdef(c.oid, true)
      FROM pg_class c WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'v' ORDER BY c.relname
    """,
    """
    SELECT 'function', p.oid::regprocedure, pg_get_functiondef(p.oid), p.proacl
      FROM pg_proc p WHERE p.pronamespace = to_regnamespace(%(schema)s) ORDER BY p.oid::regprocedure::text
    """,
    "SELECT 'schema', nspname, nspacl FROM pg_namespace WHERE nspname = %(schema)s",
)


def catalogue(connection: Connection, schema: str = "public") -> list[str]:
    """Return a line per object of the schema, in an order that does not depend on the order of creation."""
    lines = []
    with connection.cursor() as cursor:
        for part in _PARTS:
            cursor.execute(part, {"schema": schema})
            lines += [" | ".join("-" if value is None else str(value) for value in row) for row in cursor]
    return [line for text in lines for line in text.splitlines()]
