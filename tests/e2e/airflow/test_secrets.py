"""No secret of Airflow's environment is in what the runs of this folder left: its last file looks for all of them.

Command lines are watched from the start to the end of Airflow by `batch_side`.
"""

import psycopg2
import pytest
from psycopg2 import sql

from stack.airflow_env import airflow_environment
from tests.support.airflow import RUN_DEADLINE_S
from tests.support.http import HTTP
from tests.support.pipeline_processes import ROOT

MARK = "a reason to be found"  # shows that each search finds what is there


@pytest.fixture(scope="module")
def searched(pipeline):
    """The secrets, after a run of each kind: tasks of Python, a Spark job, an alert and an error of a server."""
    with pipeline.airflow("operator") as operator:
        forms = {
            "watch_pipeline": {},
            "audit": {},
            "reconcile_sources": {"reason": MARK},
            "forget_member": {"key": "490", "key_again": "490", "reason": MARK},
        }
        for dag_id in forms:
            operator.wait_for_dag(dag_id)
        for run in [operator.trigger(dag_id, form) for dag_id, form in forms.items()]:
            operator.wait(run, RUN_DEADLINE_S)
    return pipeline.secrets


def test_the_secrets_are_those_of_airflows_environment(pipeline, searched):
    environment = airflow_environment(pipeline.variables, ROOT, "scheduler")
    known = [secret for secret in searched if any(secret in value for value in environment.values())]

    assert len(known) >= 9  # of six roles and users, the admin token, webhook, SMTP, and Airflow's own keys
    assert min(map(len, searched)) >= 12


def test_no_log_has_a_secret(pipeline, searched):
    texts = {path: path.read_text(errors="replace") for path in pipeline.logs}

    assert [path for path, text in texts.items() if any(secret in text for secret in searched)] == []
    assert any(MARK in text for text in texts.values())


def test_no_row_of_airflows_database_has_a_secret(pipeline, searched):
    def tables_with(words):
        encoded = [form for word in words for form in (word, word.encode().hex())]  # bytes are shown in hexadecimal
        found = set()
        for table in tables:
            cursor.execute(
                sql.SQL(
                    "SELECT count(*) FROM {} t WHERE EXISTS (SELECT FROM unnest(%s) w WHERE strpos(t::text, w) > 0)"
                ).format(sql.Identifier(table)),
                (encoded,),
            )
            if cursor.fetchone()[0]:
                found.add(table)
        return found

    database = pipeline.settings.database
    connection = psycopg2.connect(
        host=database.host, port=database.port, dbname="airflow", user="airflow",
        password=pipeline.variables["DB_AIRFLOW_PASSWORD"],
    )  # fmt: skip
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
            tables = [table for (table,) in cursor.fetchall()]
            assert {"dag_run", "rendered_task_instance_fields", "xcom", "log", "connection"} <= {*tables}
            assert tables_with(searched) == set()
            assert {"dag_run", "rendered_task_instance_fields"} <= tables_with([MARK])
    finally:
        connection.close()


def test_no_page_and_no_answer_of_airflow_has_a_secret(pipeline, searched):
    instances = "/api/v2/dags/~/dagRuns/~/taskInstances?limit=100&order_by=-start_date"  # with rendered templates
    with pipeline.airflow("admin") as admin:
        answers = {
            path: HTTP.get(f"{pipeline.airflow_url}{path}", headers=admin.authorization()).text
            for path in (
                instances,
                "/api/v2/dags/~/dagRuns/~/taskInstances/~/xcomEntries?limit=100",
                "/api/v2/dags?limit=100",
                "/api/v2/config",
                "/api/v2/connections",
                "/api/v2/variables",
                "/api/v2/eventLogs?limit=100",
                "/integrity/",
                "/integrity/order_detail/",
            )
        }

    assert [path for path, text in answers.items() if any(secret in text for secret in searched)] == []
    assert MARK in answers[instances]
