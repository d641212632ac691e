#!/usr/bin/env bash
# Airflow 3.3.2 (provider standard 1.21.0): in a task group that is mapped by `expand`, `@task.short_circuit` and
# `@task.branch` skip nothing: the tasks that they exclude run, in each copy of the group. The same group called without
# `expand` skips them. Both operators store their decision under the copy's number, and the scheduler looks for it under
# -1, because the operator itself is not mapped. A task that raises AirflowSkipException skips those after it, mapped or
# not.
#
# Seen: "short_circuit: plain skipped, mapped success", "branch: plain skipped, mapped success", "raise: plain skipped,
# mapped skipped".
# Fails if another version is installed, or if a state changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check apache-airflow-core==3.3.2 \
    apache-airflow-task-sdk==1.3.2 apache-airflow-providers-standard==1.21.0 fastapi==0.136.3
mkdir "$folder/dags"
cat > "$folder/dags/groups.py" <<'PYTHON'
import importlib.metadata
import sys

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group
from airflow.sdk.exceptions import AirflowSkipException


@task.short_circuit
def short_circuit(number):
    return False


@task.branch
def branch(number):
    return []


@task(task_id="raise")
def raise_skip(number):
    raise AirflowSkipException


KINDS = {"short_circuit": short_circuit, "branch": branch, "raise": raise_skip}

with DAG("groups", schedule=None) as dag:
    for kind, decide in KINDS.items():

        @task_group
        def group(number, decide=decide):
            decide(number) >> EmptyOperator(task_id="after")

        group.override(group_id=f"plain_{kind}")(1)
        group.override(group_id=f"mapped_{kind}").expand(number=[1, 2])

if __name__ == "__main__":
    states = {}
    for instance in dag.test().get_task_instances():
        states.setdefault(instance.task_id, set()).add(str(instance.state))
    found = {kind: [*states[f"plain_{kind}.after"], *states[f"mapped_{kind}.after"]] for kind in KINDS}
    with open(sys.argv[1], "w") as results:
        for kind, (plain, mapped) in found.items():
            print(f"{kind}: plain {plain}, mapped {mapped}", file=results)
    decided = ["skipped", "success"]
    assert found == {"short_circuit": decided, "branch": decided, "raise": ["skipped", "skipped"]}, found
    assert importlib.metadata.version("apache-airflow-core") == "3.3.2"
PYTHON
export PATH="$folder/venv/bin:$PATH" AIRFLOW_HOME="$folder" AIRFLOW__CORE__LOAD_EXAMPLES=False
export AIRFLOW__CORE__DAGS_FOLDER="$folder/dags"
airflow db migrate > "$folder/log" 2>&1
python "$folder/dags/groups.py" "$folder/results" >> "$folder/log" 2>&1 || { tail -n 5 "$folder/log"; exit 1; }
cat "$folder/results"
