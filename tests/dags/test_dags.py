"""Rules that hold for every DAG."""

import datetime as dt
import inspect
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from include.integrity.jobs import BASES, SITE_BASES
from tests.support.errors import pipeline_errors
from tests.support.messages import WRONG_PIPELINES

ROOT = Path(__file__).resolve().parents[2]
PIPELINES = {"": "board_detail", "_order_detail": "order_detail"}  # by the suffix of their DAGs
DAGS = tuple((base, suffix) for suffix in PIPELINES for base in BASES if not suffix or base not in SITE_BASES)
DAG_IDS = tuple(base + suffix for base, suffix in DAGS)
RUNBOOKS = {
    "nightly_rebuild": "nightly_rebuild",
    "rebuild_day": "nightly_rebuild",
    "reprocess_days": "reprocess_days",
    "undo_day": "undo",
    "replay_fallback": "gateway-fallback",
    "reconcile_sources": "reconcile",
    "forget_member": "forget",
    "watch_pipeline": "alerts",
    "audit": "audit",
}
GROUPS = {"rebuild_day": "", "reprocess_days": "rebuild_day."}  # of the tasks that rebuild a day, by the DAG's base


def test_every_file_imports_and_holds_the_dag_it_is_named_for_of_each_pipeline(dag_bag):
    assert dag_bag.import_errors == {}
    assert {dag_id: Path(dag.fileloc) for dag_id, dag in dag_bag.dags.items()} == {
        dag_id: ROOT / "dags" / f"{dag_id.removesuffix('_order_detail')}.py" for dag_id in DAG_IDS
    }
    assert {path.name for path in (ROOT / "dags").glob("*.py")} == {
        Path(dag.fileloc).name for dag in dag_bag.dags.values()
    }


@pytest.mark.parametrize("names", ["board_detail,orders", "board_detail,board_detail"])
@pytest.mark.usefixtures("dag_bag")  # Airflow reads its environment when it is imported
def test_wrong_pipelines_are_an_import_error_of_each_dag_file(monkeypatch, names):
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("PIPELINES", names)
    bag = DagBag(dag_folder=str(ROOT / "dags"))
    assert bag.dags == {}
    assert {Path(file).stem for file in bag.import_errors} == {*BASES}
    for error in bag.import_errors.values():
        assert f"PIPELINES={names!r}: {WRONG_PIPELINES}" in error


@pytest.mark.parametrize(("base", "suffix"), DAGS)
class TestEveryDagOfAPipeline:
    def test_has_its_name_as_a_tag(self, dag_bag, base, suffix):
        assert set(PIPELINES.values()) & dag_bag.dags[base + suffix].tags == {PIPELINES[suffix]}

    def test_each_of_its_tasks_works_for_the_pipeline(self, dag_bag, base, suffix):
        for task in dag_bag.dags[base + suffix].tasks:
            assert pipeline_of(task) == PIPELINES[suffix], task.task_id

    def test_its_documentation_names_no_dag_of_another_pipeline(self, dag_bag, base, suffix):
        text, _ = dag_bag.dags[base + suffix].doc_md.split("[Runbook]")  # which pipelines share
        names, words = ("|".join(base for base in BASES if ("_" in base) is is_name) for is_name in (True, False))
        named = re.findall(rf"\b(?:{names})\w*|(?:(?<=`)|(?<=^# ))(?:{words})\w*", text, re.MULTILINE)

        assert named
        assert "{" not in text
        assert set(named) <= {each for each in DAG_IDS if each.endswith("_order_detail") == bool(suffix)}

    def test_its_documentation_ends_with_a_link_to_its_runbook(self, dag_bag, base, suffix):
        from include.integrity.pages.app import show_runbooks

        link = re.search(r"\n\n\[Runbook\]\(/runbooks(/[\w-]+)\)\n\Z", dag_bag.dags[base + suffix].doc_md)
        page = TestClient(show_runbooks(lambda: None)).get(link[1])

        assert page.text == (ROOT / "docs" / "runbooks" / f"{RUNBOOKS[base]}.md").read_text(encoding="utf-8")

    def test_a_failure_names_the_runbook(self, dag_bag, base, suffix, caplog):
        for task in dag_bag.dags[base + suffix].tasks:
            caplog.clear()
            for callback in callbacks(task):
                callback({})

            assert caplog.messages[0].endswith(f"docs/runbooks/{RUNBOOKS[base]}.md"), task.task_id


@pytest.mark.parametrize("dag_id", DAG_IDS)
class TestEveryDag:
    def test_tells_its_operator_purpose_danger_and_how_to_run_it_again(self, dag_bag, dag_id):
        doc = dag_bag.dags[dag_id].doc_md

        assert doc.strip().startswith(f"# {dag_id}")
        assert "**Danger**" in doc
        assert "**How to run again**" in doc
        assert dag_bag.dags[dag_id].description

    def test_starts_at_a_fixed_date_and_does_not_catch_up(self, dag_bag, dag_id):
        dag = dag_bag.dags[dag_id]

        assert dag.start_date == dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
        assert dag.catchup is False
        # a run that waits for a person counts, and must not hold up the other days
        assert dag.max_active_runs == (4 if dag_id.startswith("rebuild_day") else 1)

    def test_every_task_has_an_owner_retries_with_backoff_a_time_limit_and_a_runbook(self, dag_bag, dag_id):
        for task in dag_bag.dags[dag_id].tasks:
            assert task.owner == "data-platform", task.task_id
            if task.task_id.endswith("approve"):  # a retry would ask again
                assert (task.retries, task.execution_timeout) == (3, None)  # the time-out of the answer is another
                assert task.response_timeout == dt.timedelta(hours=12)
            else:
                assert task.retries == (0 if dag_id.startswith("watch_pipeline") else 3), task.task_id
                assert task.execution_timeout > dt.timedelta(0), task.task_id
            assert task.retry_exponential_backoff == 2.0, task.task_id
            assert [one.func.__name__ for one in callbacks(task)] == ["log_runbook"], task.task_id

    def test_survives_serialisation(self, dag_bag, dag_id):
        from airflow.serialization.serialized_objects import DagSerialization

        copy = DagSerialization.from_dict(DagSerialization.to_dict(dag_bag.dags[dag_id]))

        assert copy.dag_id == dag_id


@pytest.mark.parametrize("suffix", PIPELINES)
@pytest.mark.parametrize("base", GROUPS)
class TestDagsThatRebuild:
    def test_rebuilds_one_day_at_a_time_by_the_named_connection(self, dag_bag, base, suffix):
        rebuild = dag_bag.dags[base + suffix].get_task(f"{GROUPS[base]}rebuild")

        arguments = _arguments(rebuild)
        assert rebuild.pool == "rebuild"
        assert arguments["conn_id"] == "spark_default"
        assert arguments["application"] == str(ROOT / "spark_jobs" / "rebuild_day.py")
        assert arguments["name"] == "rebuild_day"
        assert arguments["jars"].endswith("/*.jar")

    def test_each_day_is_built_verified_published_and_certified_in_that_order(self, dag_bag, base, suffix):
        dag, group = dag_bag.dags[base + suffix], GROUPS[base]
        after = {
            "rebuild": {"verify"},
            "verify": {"approve"},
            "approve": {"publish"},
            "publish": {"certify", "cover"},
            "certify": set(),
            "cover": set(),
        }
        if group:  # only a person has dry runs, and a form with a result
            after |= {"verify": {"approve", "difference"}, "difference": set()}
        found = {name: dag.get_task(group + name).downstream_task_ids - {"summary"} for name in after}

        assert found == {name: {group + each for each in names} for name, names in after.items()}


class TestSubmissions:
    @pytest.mark.parametrize(("base", "task_id"), [("nightly_rebuild", "archive"), ("rebuild_day", "rebuild")])
    def test_a_pipelines_job_has_its_own_memory_and_the_pool_of_its_kind(self, dag_bag, base, task_id):
        jobs = [dag_bag.dags[f"{base}{suffix}"].get_task(task_id) for suffix in PIPELINES]

        assert [job._driver_memory for job in jobs] == ["2g", "3g"]
        assert [job.pool for job in jobs] == [task_id, task_id]


class TestRetryPolicy:
    @pytest.mark.parametrize(
        ("error", "action"),
        [("BrokerUnavailable", "default"), ("DatabaseUnavailable", "default"), ("BalanceBroken", "fail")],
    )
    def test_tries_again_only_where_our_error_says_it_can_help(self, dag_bag, error, action):
        from include.airflow_support.defaults import retry_policy
        from include.contracts import errors

        decision = retry_policy().evaluate(getattr(errors, error)(), try_number=1, max_tries=3)

        assert decision.action.value == action

    def test_a_task_and_a_job_that_end_with_the_same_error_are_both_retried_or_both_not(self, dag_bag):
        from include.airflow_support.defaults import retry_policy
        from include.airflow_support.steps import NotPublished
        from include.contracts.errors import FINAL

        errors = pipeline_errors()
        retried = {
            error.__name__
            for error in errors
            if retry_policy().evaluate(error.__new__(error), try_number=1, max_tries=3).action.value == "default"
        }

        assert len(errors) > 60
        assert retried == {error.__name__ for error in errors if error.exit_code not in FINAL}
        assert NotPublished.__name__ not in retried

    def test_leaves_what_is_not_ours_to_airflow(self, dag_bag):
        from include.airflow_support.defaults import retry_policy

        assert retry_policy().evaluate(OSError("disk"), try_number=1, max_tries=3).action.value == "default"


def _arguments(task):
    """An operator's arguments, whether it is mapped or not."""
    public = {"conn_id": getattr(task, "_conn_id", None)}
    return public | {name: getattr(task, name) for name in ("application", "name", "jars")}


def pipeline_of(task):
    """The pipeline that a task works for: the first argument of its function, or the environment of its job."""
    if hasattr(task, "env_vars"):
        return task.env_vars["PIPELINE"]
    if hasattr(task, "response_timeout"):
        return task.pipeline
    arguments = dict(task.partial_kwargs) if task.is_mapped else {"op_args": task.op_args, "op_kwargs": task.op_kwargs}
    signature = inspect.signature(task.python_callable)
    assert next(iter(signature.parameters)) == "pipeline", task.task_id
    return signature.bind_partial(*arguments.get("op_args", ()), **arguments["op_kwargs"]).arguments["pipeline"]


def callbacks(task):
    """Return the callbacks of a failed task; a mapped task has them as they were given."""
    found = task.on_failure_callback
    return found if isinstance(found, list) else [found]
