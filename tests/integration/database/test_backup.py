"""A dump restored in an empty server, by the commands of the runbook, is the database that it was."""

import dataclasses
import os
import shlex
import subprocess
import sys
from contextlib import closing

import pytest

from include.database.migrate import migrate
from include.integrity.days.publication import undo
from include.runtime.settings import Settings
from stack.postgres import find, from_wheel
from tests.servers import postgres_server
from tests.support.documents import ROOT, fenced
from tests.support.pipeline import environment, migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve
from tests.support.standby import as_superuser

SHOWN = "SELECT * FROM board_detail ORDER BY day, board_id"
OF_THE_DATABASE = """
SELECT s.setrole::regrole::text, unnest(s.setconfig) AS setting
  FROM pg_db_role_setting s LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE d.datname = current_database() OR s.setdatabase = 0
 ORDER BY 1, 2
"""
ACCESS = """
SELECT c.oid::regclass::text, c.relowner::regrole::text,
       (SELECT array_agg(a ORDER BY a::text) FROM unnest(c.relacl) a)::text
  FROM pg_class c WHERE c.relnamespace IN ('public'::regnamespace, 'generations'::regnamespace) ORDER BY 1
"""
FUNCTIONS = """
SELECT p.oid::regprocedure::text, p.proowner::regrole::text, has_function_privilege('analyst', p.oid, 'EXECUTE'),
       has_function_privilege('batch', p.oid, 'EXECUTE')
  FROM pg_proc p
 WHERE p.proname ~ '^(pg_(try_)?advisory_|lo_)' OR p.proname = 'shown_rows'
    OR p.pronamespace = 'generations'::regnamespace
 ORDER BY 1
"""


@pytest.fixture
def other(tmp_path_factory):
    with postgres_server(tmp_path_factory.mktemp("other")) as server:
        yield server


def run_block(first, folder, server, database):
    """The commands of the runbook's block that begins with this one, one after the other."""
    binaries = (from_wheel() or find(os.environ)).postgres.parent
    if not (binaries / "pg_dump").exists():
        pytest.skip("this PostgreSQL has no pg_dump")
    variables = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "PGPASSWORD": server.superuser_password,
                 "DATABASE_HOST": server.host, "DATABASE_PORT": str(server.port),
                 "DATABASE_NAME": database}  # fmt: skip
    blocks = fenced(ROOT / "docs" / "runbooks" / "database.md", "sh")
    [block] = [text for _, text in blocks if text.startswith(f"{first} ")]
    lines = [line for line in block.splitlines() if not line.startswith(".state")]
    assert {shlex.split(line)[0] for line in lines} <= {"pg_dump", "pg_dumpall", "psql", "pg_restore"}
    for line in lines:
        subprocess.run(["bash", "-c", line], cwd=folder, env=variables, check=True, capture_output=True)


def test_a_restored_database_is_the_one_that_was_dumped(postgres, other, tmp_path):
    settings = migrated(None, postgres, "dumped", tmp_path)
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1), row(2, 2)])
        build(settings, [row(1, 1), row(2, 2)], cut=3, run_id="r")
        publish(settings, DAY, "r")
        serve(store, [row(2, 4), row(3, 5)])
    run_block("pg_dump", tmp_path, postgres, "dumped")

    run_block("psql", tmp_path, other, "dumped")
    moved = dataclasses.replace(settings.database, host=other.host, port=other.port)
    restored = dataclasses.replace(settings, database=moved)
    migrate(restored)

    for question in (SHOWN, OF_THE_DATABASE, ACCESS, FUNCTIONS):
        expected = rows(settings, question)
        assert expected
        assert rows(restored, question) == expected
    assert rows(restored, "SHOW plan_cache_mode", role="analyst") == [("force_custom_plan",)]
    assert rows(restored, "SELECT day, shown_rows FROM day_status", role="analyst") == [(DAY.date, 3)]
    with closing(opened_store(restored, next_offset=1)) as store:
        serve(store, [row(4, 6)])
    undo(restored, DAY, "a test", to=0)
    assert [board for board, *_ in rows(restored, SHOWN)] == [1, 2, 3, 4]


def test_a_dump_restored_in_its_own_server_is_noted_in_each_pipelines_database(postgres, tmp_path):
    postgres.new_database("restored_here")
    variables = environment(None, postgres, "restored_here", tmp_path) | {
        "PIPELINE": "", "PIPELINES": "board_detail,order_detail", "ORDER_DETAIL__DATABASE_NAME": "orders_here"
    }  # fmt: skip
    settings = Settings.from_environment(variables, "board_detail")
    migrate(settings)
    orders = migrated(None, postgres, "orders_here", tmp_path, "order_detail")
    run_block("pg_dump", tmp_path, postgres, "restored_here")
    as_superuser(postgres, "DROP DATABASE restored_here")
    run_block("psql", tmp_path, postgres, "restored_here")
    migrate(settings)
    before = [next_ids(settings), next_ids(orders)]
    command = [sys.executable, "-m", "pipeline", "gateway", "reconcile", "--restored"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, capture_output=True, text=True)
    assert done.stdout == "noted as restored: restored_here, orders_here\n"
    assert rows(settings, "SELECT replayed_until, reconciled_at FROM database_timeline") == [(None, None)]
    # without the site's tables nothing is to be written back: the stream reads the topics again
    assert rows(orders, "SELECT reconciled_at IS NOT NULL FROM database_timeline") == [(True,)]
    for then, now in zip(before, [next_ids(settings), next_ids(orders)], strict=True):
        assert then
        assert all(now[name] > then[name] + 999_999 for name in then)


def next_ids(settings):
    """The next id of each sequence, by its name."""
    return dict(rows(settings, "SELECT sequencename, coalesce(last_value, 0) + 1 FROM pg_sequences"
                               " WHERE schemaname IN ('public', 'site')"))  # fmt: skip
