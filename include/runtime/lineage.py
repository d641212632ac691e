"""Lineage of datasets that no listener sees, as OpenLineage events: topics and tables of jobs, by the spec's names.

Off without LINEAGE_RECEIVER. Events hold names of datasets and columns, and no values. A receiver that fails or is slow
never fails a job, and delays its end by CLOSE_TIMEOUT_S at most.
"""

import datetime as dt
import logging
import os
import queue
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.topics import Topic
from include.runtime.settings import LineageSettings, Settings

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 5.0
PARENT = "OPENLINEAGE_PARENT_ID"  # the task that submitted the job: namespace/job/run
_PRODUCER = "urn:pipelines:lineage"
State = Literal["START", "COMPLETE", "FAIL"]


@dataclass(frozen=True)
class Dataset:
    """A topic or table. `fields` are names and types, from the definition; `version` is a generation."""

    namespace: str
    name: str
    fields: tuple[tuple[str, str], ...]
    version: str | None = None


@dataclass(frozen=True)
class Job:
    """A job and its datasets. `day` is the one that a batch job is about; a streaming job has none."""

    name: str
    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...]
    day: Day | None = None


@dataclass
class Outcome:
    """The generation that a job made or published; set by the job before its end."""

    generation_id: int | None = None


def transport_of(receiver: str) -> dict[str, Any]:
    """Return the OpenLineage transport to a file or to an HTTP server; empty for none. Pure."""
    if not receiver:
        return {}
    if receiver.startswith(("http://", "https://")):
        no_retry = {"total": 0, "connect": 0, "read": 0}
        return {"type": "http", "url": receiver, "timeout": SEND_TIMEOUT_S, "retry": no_retry}
    return {"type": "file", "log_file_path": receiver, "append": True}


def topic(settings: Settings, topic: Topic) -> Dataset:
    """Return the dataset of a topic. Of several brokers the first one names the cluster."""
    fields = tuple((field.name, field.type) for field in topic.fields)
    return Dataset(f"kafka://{settings.kafka.bootstrap_servers.split(',')[0]}", topic.name, fields)


def table(settings: Settings, name: str) -> Dataset:
    """Return the dataset of a table or view of the pipeline's rows. Of several hosts the first one names the server."""
    database, pipeline = settings.database, settings.pipeline
    fields = tuple((pipeline.column_name(each), pipeline.output.field(each.output).type) for each in pipeline.columns)
    host = database.host.split(",")[0]
    return Dataset(f"postgres://{host}:{database.port}", f"{database.name}.public.{name}", fields)


def rebuild_job(settings: Settings, day: Day) -> Job:
    """The rebuild of a day: from the raw topics into a generation, which is a partition of detail_final."""
    pipeline = settings.pipeline
    inputs = (topic(settings, pipeline.stream), topic(settings, pipeline.table), topic(settings, pipeline.output))
    return Job(f"{pipeline.name}.rebuild_day", inputs, (table(settings, "detail_final"),), day)


def publish_job(settings: Settings, day: Day) -> Job:
    """The publication of a day: readers of the view see the generation."""
    pipeline = settings.pipeline
    outputs = (table(settings, pipeline.name),)
    return Job(f"{pipeline.name}.publish", (table(settings, "detail_final"),), outputs, day)


def stream_job(settings: Settings, query: str) -> Job:
    """A query of the stream: *join* from the raw topics into the output topic, *serve* from there into the live table.

    The view shows rows of the live table as soon as they are written.
    """
    pipeline = settings.pipeline
    output = topic(settings, pipeline.output)
    if query == "join":
        return Job(
            f"{pipeline.name}.join", (topic(settings, pipeline.stream), topic(settings, pipeline.table)), (output,)
        )
    outputs = (table(settings, "detail_live"), table(settings, pipeline.name))
    return Job(f"{pipeline.name}.{query}", (output,), outputs)


@contextmanager
def lineage_of(settings: LineageSettings, *jobs: Job) -> Iterator[Outcome]:
    """Tell the receiver that the jobs start, and at the end of the block that they are complete or have failed."""
    outcome = Outcome()
    if not settings.receiver:
        yield outcome
        return
    sender = _Sender(settings)
    runs = [_Run(job, str(uuid.uuid4())) for job in jobs]
    sender.tell("START", runs)
    try:
        yield outcome
    except BaseException as exc:
        sender.tell("FAIL", runs, type(exc).__name__)
        raise
    else:
        version = None if outcome.generation_id is None else str(outcome.generation_id)
        sender.tell("COMPLETE", [_with_version(run, version) for run in runs])
    finally:
        sender.close()


@dataclass(frozen=True)
class _Run:
    job: Job
    run_id: str


def _with_version(run: _Run, version: str | None) -> _Run:
    """The run with the generation in each dataset of detail_final."""

    def versioned(datasets: Sequence[Dataset]) -> tuple[Dataset, ...]:
        return tuple(replace(one, version=version) if one.name.endswith(".detail_final") else one for one in datasets)

    return replace(run, job=replace(run.job, inputs=versioned(run.job.inputs), outputs=versioned(run.job.outputs)))


class _Sender:
    """Sends events from a thread of its own, which also imports the client: that takes a second."""

    def __init__(self, settings: LineageSettings) -> None:
        self._settings = settings
        self._events: queue.SimpleQueue[tuple[State, _Run, dt.datetime, str | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._has_failed = False
        self._thread.start()

    def tell(self, state: State, runs: Sequence[_Run], error: str | None = None) -> None:
        """Queue an event for each run. Never blocks."""
        for run in runs:
            self._events.put((state, run, SystemClock().now(), error))

    def close(self) -> None:
        """Wait until all is sent, CLOSE_TIMEOUT_S at most."""
        self._events.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._failed("it takes too long")

    def _run(self) -> None:
        client = None
        while (event := self._events.get()) is not None:
            try:
                client = client or _client(self._settings)
                client.emit(_event(self._settings.namespace, *event))
            except Exception as exc:  # noqa: BLE001 - of any library; without its message, which may have an address
                self._failed(type(exc).__name__)

    def _failed(self, why: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.warning("LINEAGE_RECEIVER did not take an event (%s); the job goes on without lineage", why)


def _client(settings: LineageSettings) -> Any:
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport import get_default_factory

    for name in ("openlineage", "urllib3"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return OpenLineageClient(transport=get_default_factory().create(transport_of(settings.receiver)))


def _event(namespace: str, state: State, run: _Run, at: dt.datetime, error: str | None) -> Any:
    """Return the client's event."""
    from openlineage.client import event_v2 as v2
    from openlineage.client.facet_v2 import error_message_run, job_type_job, nominal_time_run, parent_run

    job = run.job
    facets: dict[str, Any] = {}
    if job.day is not None:
        facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(rfc3339(job.day.start), rfc3339(job.day.end))
    if error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(error, "python")
    if parent := os.environ.get(PARENT):
        rest, _, parent_run_id = parent.rpartition("/")
        parent_namespace, _, parent_job = rest.rpartition("/")
        facets["parent"] = parent_run.ParentRunFacet(
            parent_run.Run(parent_run_id), parent_run.Job(parent_namespace, parent_job)
        )
    kind = job_type_job.JobTypeJobFacet("BATCH" if job.day else "STREAMING", "PIPELINE", "JOB")
    return v2.RunEvent(
        eventType=v2.RunState[state],
        eventTime=rfc3339(at),
        run=v2.Run(run.run_id, facets),
        job=v2.Job(namespace, job.name, {"jobType": kind}),
        inputs=[v2.InputDataset(one.namespace, one.name, facets=_facets(one)) for one in job.inputs],
        outputs=[v2.OutputDataset(one.namespace, one.name, facets=_facets(one)) for one in job.outputs],
        producer=_PRODUCER,
    )


def _facets(dataset: Dataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in dataset.fields]
    facets: dict[str, Any] = {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}
    if dataset.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(dataset.version)
    return facets
