"""The lineage of a rebuild in a live Airflow: of the tasks by Airflow's provider, of topics and tables by our jobs."""

import json
from pathlib import Path

import pytest

from include.contracts.clock import rfc3339
from tests.servers import wait_until
from tests.support.airflow import RUN_DEADLINE_S, backfill, post_board


@pytest.fixture(scope="module")
def day(pipeline, today):
    """A day that a night has rebuilt and published."""
    day = today.before(13)
    post_board(pipeline, day, 500)
    with pipeline.airflow("operator") as operator:
        operator.wait_for_dag("nightly_rebuild")
        assert backfill(operator, day).state == "success"
    return day


@pytest.fixture(scope="module")
def events(pipeline, day):
    """All events until the day's publication, of other tests' runs too."""

    def read():
        lines = Path(pipeline.variables["LINEAGE_RECEIVER"]).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def is_told():
        told = read()
        return of_day(told, day, "board_detail.publish") and of(told, "rebuild_day")

    wait_until(is_told, RUN_DEADLINE_S, "the end of the run is told")
    return read()


def of(events, job, state="COMPLETE"):
    return [one for one in events if (one["job"]["name"], one["eventType"]) == (job, state)]


def of_day(events, day, job):
    """The ends of the job's runs about the day."""
    start = rfc3339(day.start)
    return [one for one in of(events, job) if one["run"]["facets"]["nominalTime"]["nominalStartTime"] == start]


def names(datasets):
    return {(one["namespace"], one["name"]) for one in datasets}


def test_tasks_and_runs_are_told_by_the_provider(events):
    for job in ("nightly_rebuild", "nightly_rebuild.replay_fallback", "rebuild_day", "rebuild_day.rebuild"):
        for state in ("START", "COMPLETE"):
            assert of(events, job, state), (job, state)
    assert {one["job"]["namespace"] for one in events} == {"pipelines"}
    assert not [one for one in events if one["job"]["name"].startswith(("watch_pipeline", "audit_"))]


def test_a_rebuild_leads_from_topics_to_the_table_and_is_the_child_of_its_task(events, day, pipeline):
    settings = pipeline.settings
    (rebuild,) = of_day(events, day, "board_detail.rebuild_day")
    kafka = f"kafka://{settings.kafka.bootstrap_servers}"
    assert names(rebuild["inputs"]) == {(kafka, "board"), (kafka, "member"), (kafka, "board-detail")}
    database = f"postgres://{settings.database.host}:{settings.database.port}"
    assert names(rebuild["outputs"]) == {(database, f"{settings.database.name}.public.detail_final")}
    parent = rebuild["run"]["facets"]["parent"]
    assert parent["job"]["name"] == "rebuild_day.rebuild"
    tasks = of(events, parent["job"]["name"])
    assert parent["run"]["runId"] in {task["run"]["runId"] for task in tasks}


def test_a_publication_leads_from_the_generation_to_the_view(events, day, pipeline):
    (rebuild,), (publish,) = (of_day(events, day, f"board_detail.{job}") for job in ("rebuild_day", "publish"))
    assert names(publish["inputs"]) == names(rebuild["outputs"])
    versions = [one["facets"]["version"]["datasetVersion"] for one in rebuild["outputs"] + publish["inputs"]]
    assert len(set(versions)) == 1
    assert {name for _, name in names(publish["outputs"])} == {f"{pipeline.settings.database.name}.public.board_detail"}


def test_events_have_neither_code_nor_secrets_nor_values(events, pipeline):
    text = json.dumps(events)
    assert "sourceCode" not in {facet for one in events for facet in one["job"]["facets"]}
    assert not [secret for secret in pipeline.secrets if secret in text]
    assert "createdAt" in text  # a field's name
