"""A small client of Airflow's REST API with an operator's calls, for the demo and the tests.

A call takes milliseconds; Airflow's command line takes seconds.
"""

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from include.contracts.errors import PipelineError, Retryable

TaskStates = dict[str, str]
Progress = Callable[[TaskStates], None]

_FINISHED = {"success", "failed"}
_POLL_S = 0.5


class AirflowUnavailable(Retryable):
    """Airflow's API server does not answer."""


class AirflowRefused(PipelineError):
    """Airflow refused the request."""


class RunFailed(PipelineError):
    """The DAG run failed."""


class RunTookTooLong(PipelineError):
    """Airflow did not finish in time."""


@dataclass(frozen=True)
class Run:
    """A DAG run. `partition_key` is the day of a partitioned DAG's run."""

    dag_id: str
    run_id: str
    state: str
    partition_key: str | None = None

    @property
    def is_finished(self) -> bool:
        """True if the run has succeeded or failed."""
        return self.state in _FINISHED


class AirflowClient:
    """Calls one Airflow as one user. Every call blocks; errors are the four above."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._user, self._password = user, password
        self._token: str | None = None
        self._http = httpx.Client(base_url=url, timeout=60.0, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def health(self) -> dict[str, str]:
        """Return the status by component: metadatabase, scheduler, dag_processor, triggerer. Needs no token."""
        answer = self._send("GET", "/api/v2/monitor/health")
        return {name: str((part or {}).get("status")) for name, part in answer.json().items()}

    def authorization(self) -> dict[str, str]:
        """Return the Authorization header, for other requests. Fetches a token if there is none yet."""
        if self._token is None:
            self._token = self._fetch_token()
        return {"Authorization": f"Bearer {self._token}"}

    def wait_for_dag(self, dag_id: str, timeout_s: float = 60.0) -> None:
        """Block until the DAG processor has parsed the DAG, which takes a while after the first start."""
        self._until(
            lambda: self._request("GET", f"/api/v2/dags/{dag_id}", accept=(404,)).is_success,
            f"DAG {dag_id} does not appear; look at the DAG processor's log for import errors",
            timeout_s,
        )

    def pause(self, dag_id: str) -> None:
        """Pause the DAG: the scheduler starts no task of it."""
        self._request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": True}, params={"update_mask": "is_paused"})

    def unpause(self, dag_id: str) -> None:
        """Unpause the DAG, and block until the scheduler has created the run that is due, if there is one.

        Without the wait that run could start before a backfill, and Airflow refuses to backfill a day that is running.
        """
        self._request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False}, params={"update_mask": "is_paused"})
        self._until(lambda: not self._is_run_due(dag_id), f"the scheduler does not make the due run of {dag_id}")

    def runs_of_day(self, dag_id: str, day: dt.date) -> list[Run]:
        """Return the runs of a partitioned DAG for one day, newest first."""
        return self._runs(dag_id, {"partition_key_pattern": str(day), "order_by": "-id"})

    def failed_runs(self) -> list[Run]:
        """Return the newest failed runs of all DAGs."""
        return self._runs("~", {"state": "failed", "order_by": "-id"})

    def preview_backfill(self, dag_id: str, day: dt.date) -> list[str]:
        """Return the partition keys that a backfill of the day would run: the day, or none while it is running."""
        answer = self._request("POST", "/api/v2/backfills/dry_run", json=_backfill(dag_id, day))
        return [row["partition_key"] for row in answer.json()["backfills"]]

    def backfill_day(self, dag_id: str, day: dt.date, conf: Mapping[str, Any] | None = None) -> Run:
        """Start a backfill of one day and return its run. Completed runs of the day are repeated.

        First blocks, for ten minutes at most, until runs for that day have finished: otherwise Airflow would accept the
        backfill and do nothing.
        """
        self._until(
            lambda: all(run.is_finished for run in self.runs_of_day(dag_id, day)),
            f"another run of {dag_id} for {day} goes on",
            timeout_s=600.0,
        )
        self._close_finished_backfills(dag_id)
        earlier = {run.run_id for run in self.runs_of_day(dag_id, day)}
        body = _backfill(dag_id, day) | {"dag_run_conf": dict(conf) if conf else None}
        answer = self._request("POST", "/api/v2/backfills", json=body)
        created = [run for run in self.runs_of_day(dag_id, day) if run.run_id not in earlier]
        if not created:
            raise AirflowRefused(
                "the backfill made no run: another run of that day is under way",
                dag=dag_id,
                day=day,
                backfill=answer.json()["id"],
            )
        return created[0]

    def rebuilds_of(self, night: Run, dag_id: str = "rebuild_day") -> list[Run]:
        """Return the runs that a finished night has started, one per day that it chose, in their order.

        Blocks until the scheduler has created them.
        """
        days = [dt.date.fromisoformat(day) for day in self.result(night, "days")]
        found: list[Run] = []

        def are_there() -> bool:
            runs = [run for day in days for run in self.runs_of_day(dag_id, day)]
            found[:] = [run for run in runs if night.run_id in self._producers(run)]
            return len(found) == len(days)

        self._until(are_there, f"{dag_id} lacks runs for the days of {night.run_id}")
        return found

    def asset_events(self, run: Run) -> list[dict[str, Any]]:
        """Return the asset events that started the run."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/upstreamAssetEvents"
        events: list[dict[str, Any]] = self._request("GET", path).json()["asset_events"]
        return events

    def result(self, run: Run, task_id: str) -> Any:
        """Return the value that a task of the run has returned."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self._request("GET", path, params={"deserialize": True}).json()["value"]

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> Run:
        """Start a run by hand, with the form's values. Raises AirflowRefused, which names an invalid value."""
        answer = self._request(
            "POST", f"/api/v2/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": dict(conf)}
        )
        return _run(answer.json())

    def tasks(self, run: Run) -> list[dict[str, Any]]:
        """Return the task instances of a run as Airflow describes them."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances"
        rows: list[dict[str, Any]] = self._request("GET", path, params={"limit": 100}).json()["task_instances"]
        return rows

    def task_states(self, run: Run) -> TaskStates:
        """Return the state by task, `none` before it is scheduled. Mapped task instances are `task[0]`, `task[1]`, …"""
        return {_task_name(row): row["state"] or "none" for row in self.tasks(run)}

    def wait(self, run: Run, timeout_s: float, on_progress: Progress | None = None) -> Run:
        """Block until the run has succeeded; `on_progress` is called with the tasks' states when they change.

        Raises RunFailed with the failed task's last log lines, or RunTookTooLong with the states.
        """
        deadline = time.monotonic() + timeout_s
        seen: TaskStates | None = None
        while True:
            current = _run(self._request("GET", f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}").json())
            states = self.task_states(run)
            if states != seen and on_progress:
                on_progress(states)
            seen = states
            if current.state == "failed":
                raise RunFailed(self._failure(run), dag=run.dag_id, run=run.run_id)
            if current.is_finished:
                return current
            if time.monotonic() > deadline:
                raise RunTookTooLong(f"not finished after {timeout_s:.0f} s", run=run.run_id, tasks=states)
            time.sleep(_POLL_S)

    def give_up(self, run: Run) -> None:
        """Mark a run as failed, which ends its tasks, and its backfill when no other run of that is left."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"
        self._request("PATCH", path, json={"state": "failed"}, params={"update_mask": "state"})
        self._close_finished_backfills(run.dag_id)

    def rerun(self, run: Run) -> None:
        """Clear all tasks of a finished run, so that it runs again with the same type: scheduled run or backfill."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/clear"
        self._request("POST", path, json={"dry_run": False, "only_failed": False})

    def task_log(self, run: Run, task_id: str, try_number: int = 1, map_index: int = -1) -> list[str]:
        """Return the log lines of one try of a task."""
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self._request("GET", path, params={"map_index": map_index, "full_content": True}).json()["content"]
        return [line if isinstance(line, str) else _log_line(line) for line in content]

    def _producers(self, run: Run) -> set[str]:
        return {event["source_run_id"] for event in self.asset_events(run)}

    def _failure(self, run: Run, lines: int = 15) -> str:
        failed = [row for row in self.tasks(run) if row["state"] == "failed"]
        if not failed:
            return "the run failed, none of its tasks did"
        first = min(failed, key=lambda row: str(row["end_date"]))
        log = self.task_log(run, first["task_id"], first["try_number"], first["map_index"])
        return "\n".join([f"task {_task_name(first)} failed; the end of its log:", *log[-lines:]])

    def _close_finished_backfills(self, dag_id: str) -> None:
        """Close backfills whose runs have finished. Airflow does so every 30 s, and refuses a new one until then."""
        unfinished = self._runs(dag_id, {"run_type": "backfill", "state": ["queued", "running"]})
        if unfinished:
            return  # Airflow will refuse, and say why
        answer = self._request("GET", "/api/v2/backfills", params={"dag_id": dag_id, "order_by": "-id", "limit": 10})
        for row in answer.json()["backfills"]:
            if row["completed_at"] is None:
                self._request("PUT", f"/api/v2/backfills/{row['id']}/cancel", accept=(409,))

    def _is_run_due(self, dag_id: str) -> bool:
        due = self._request("GET", f"/api/v2/dags/{dag_id}").json()["next_dagrun_run_after"]
        return due is not None and dt.datetime.fromisoformat(due) <= dt.datetime.now(dt.UTC)

    def _runs(self, dag_id: str, params: Mapping[str, Any]) -> list[Run]:
        return [
            _run(row)
            for row in self._request("GET", f"/api/v2/dags/{dag_id}/dagRuns", params=params).json()["dag_runs"]
        ]

    def _until(self, condition: Callable[[], bool], complaint: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise RunTookTooLong(f"{complaint} (waited {timeout_s:.0f} s)")
            time.sleep(_POLL_S)

    def _request(self, method: str, path: str, accept: tuple[int, ...] = (), **arguments: Any) -> httpx.Response:
        for attempt in (1, 2):
            answer = self._send(method, path, headers=self.authorization(), **arguments)
            if answer.status_code != 401 or attempt == 2:
                break
            self._token = None  # expired: Airflow was restarted, or a day has passed
        if answer.is_success or answer.status_code in accept:
            return answer
        raise AirflowRefused(_reason(answer), request=f"{method} {path}", status=answer.status_code, user=self._user)

    def _fetch_token(self) -> str:
        answer = self._send("POST", "/auth/token", json={"username": self._user, "password": self._password})
        if answer.status_code != 201:
            raise AirflowRefused(
                _reason(answer), request="POST /auth/token", status=answer.status_code, user=self._user
            )
        return str(answer.json()["access_token"])

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **arguments)
        except httpx.TransportError as exc:
            raise AirflowUnavailable(url=str(self._http.base_url), reason=str(exc) or type(exc).__name__) from exc


def _backfill(dag_id: str, day: dt.date) -> dict[str, Any]:
    midnight = f"{day}T00:00:00Z"  # stands for the date, see DayTimetable
    return {
        "dag_id": dag_id,
        "from_date": midnight,
        "to_date": midnight,
        "reprocess_behavior": "completed",
        "max_active_runs": 1,
    }


def _run(row: Mapping[str, Any]) -> Run:
    return Run(row["dag_id"], row["dag_run_id"], row["state"], row["partition_key"])


def _task_name(row: Mapping[str, Any]) -> str:
    return str(row["task_id"]) if row["map_index"] < 0 else f"{row['task_id']}[{row['map_index']}]"


def _log_line(line: Mapping[str, Any]) -> str:
    details = [f"{e['exc_type']}: {e['exc_value']}" for e in line.get("error_detail") or []]
    return " ".join(part for part in (line.get("level", ""), line["event"], *details) if part)


def _reason(answer: httpx.Response) -> str:
    try:
        return f"Airflow said: {answer.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"Airflow said: {answer.text[:300]}"
