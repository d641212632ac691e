"""Lineage events: their datasets, a file and a real HTTP receiver, and receivers that fail."""

import json
import logging
import threading

import pytest

from include.contracts.day import Day
from include.runtime import lineage
from include.runtime.lineage import Dataset, lineage_of, publish_job, rebuild_job, stream_job, transport_of
from include.runtime.settings import LineageSettings, Settings
from stack.machine import unused
from tests.support.webhook import Webhook

VARIABLES = {"KAFKA_BOOTSTRAP_SERVERS": "k1:9092,k2:9092", "DATABASE_HOST": "db", "DATABASE_PORT": "5433"}
DAY = Day.parse("2026-11-20", "Asia/Seoul")


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch):
    """The client's first import takes seconds there."""
    monkeypatch.setattr(lineage, "CLOSE_TIMEOUT_S", 60.0)


def settings_of(pipeline="board_detail"):
    return Settings.from_environment(VARIABLES, pipeline)


def names(datasets):
    return [(one.namespace, one.name) for one in datasets]


def datasets(events):
    return {(one["namespace"], one["name"]) for event in events for one in event["inputs"] + event["outputs"]}


@pytest.fixture
def receiver():
    server = Webhook()
    yield server
    server.close()


class TestJobs:
    def test_datasets_have_the_names_of_the_specification(self):
        job = rebuild_job(settings_of(), DAY)
        kafka = "kafka://k1:9092"
        assert names(job.inputs) == [(kafka, "board"), (kafka, "member"), (kafka, "board-detail")]
        assert names(job.outputs) == [("postgres://db:5433", "pipeline.public.detail_final")]

    def test_from_the_raw_topics_both_layers_lead_to_the_view(self):
        settings = settings_of("order_detail")
        jobs = [stream_job(settings, "join"), stream_job(settings, "serve"), rebuild_job(settings, DAY),
                publish_job(settings, DAY)]  # fmt: skip
        reached = {("kafka://k1:9092", "order")}
        for speed in (True, False):
            found = set(reached)
            for job in jobs[:2] if speed else jobs[2:]:
                if found & set(names(job.inputs)):
                    found |= set(names(job.outputs))
            assert ("postgres://db:5433", "pipeline.public.order_detail") in found

    @pytest.mark.parametrize("pipeline", ["board_detail", "order_detail"])
    def test_fields_are_those_of_the_definition(self, pipeline):
        settings = settings_of(pipeline)
        job = rebuild_job(settings, DAY)
        assert job.inputs[0].fields == tuple((field.name, field.type) for field in settings.pipeline.stream.fields)
        assert tuple(name for name, _ in job.outputs[0].fields) == settings.pipeline.relational_columns


class TestFile:
    def test_a_job_starts_and_is_complete(self, tmp_path, monkeypatch):
        path = tmp_path / "lineage.jsonl"
        monkeypatch.setenv(lineage.PARENT, "a/b/nightly_rebuild.rebuild/01890a5d-ac96-774b-bcce-b302099a8057")
        with lineage_of(LineageSettings(str(path), "here"), rebuild_job(settings_of(), DAY)) as outcome:
            outcome.generation_id = 12
        start, complete = map(json.loads, path.read_text().splitlines())
        assert [each["eventType"] for each in (start, complete)] == ["START", "COMPLETE"]
        assert start["run"]["runId"] == complete["run"]["runId"]
        assert complete["job"]["namespace"] == "here"
        assert complete["job"]["name"] == "board_detail.rebuild_day"
        facets = complete["run"]["facets"]
        assert facets["nominalTime"]["nominalStartTime"] == "2026-11-19T15:00:00.000Z"
        parent = facets["parent"]["job"]
        assert (parent["namespace"], parent["name"]) == ("a/b", "nightly_rebuild.rebuild")
        (output,) = complete["outputs"]
        assert output["facets"]["version"]["datasetVersion"] == "12"
        assert {"name": "phone", "type": "string"} in [
            {key: each[key] for key in ("name", "type")} for each in output["facets"]["schema"]["fields"]
        ]
        assert "version" not in start["outputs"][0]["facets"]

    def test_a_job_that_fails_is_told_by_the_type_of_its_error(self, tmp_path):
        path = tmp_path / "lineage.jsonl"
        with (
            pytest.raises(ValueError, match="010"),
            lineage_of(LineageSettings(str(path)), publish_job(settings_of(), DAY)),
        ):
            raise ValueError("010-1234-5678")
        text = path.read_text()
        fail = json.loads(text.splitlines()[-1])
        assert (fail["eventType"], fail["run"]["facets"]["errorMessage"]["message"]) == ("FAIL", "ValueError")
        assert "010-1234" not in text

    def test_each_job_of_a_process_has_a_run(self, tmp_path):
        path = tmp_path / "lineage.jsonl"
        settings = settings_of()
        with lineage_of(LineageSettings(str(path)), stream_job(settings, "join"), stream_job(settings, "serve")):
            pass
        events = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(each["eventType"], each["job"]["name"]) for each in events] == [
            (state, f"board_detail.{query}") for state in ("START", "COMPLETE") for query in ("join", "serve")
        ]
        assert events[0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert len({each["run"]["runId"] for each in events}) == 2


class TestHttp:
    def test_a_receiver_gets_every_event(self, receiver):
        url = receiver.url.rpartition("/hooks")[0]
        with lineage_of(LineageSettings(url), publish_job(settings_of(), DAY)):
            pass
        assert [(path, body["eventType"]) for path, _, body in receiver.calls] == [
            ("/api/v1/lineage", "START"), ("/api/v1/lineage", "COMPLETE"),
        ]  # fmt: skip
        assert ("postgres://db:5433", "pipeline.public.board_detail") in datasets(body for _, _, body in receiver.calls)

    @pytest.mark.parametrize("fault", ["refuses", "is down"])
    def test_one_that_fails_is_logged_once_and_fails_nothing(self, receiver, caplog, fault):
        receiver.status = 500
        url = (
            receiver.url.rpartition("/hooks")[0]
            if fault == "refuses"
            else f"http://user:secret@127.0.0.1:{unused(1)[0]}"
        )
        with lineage_of(LineageSettings(url), publish_job(settings_of(), DAY)):
            done = True
        assert done
        told = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(told) == 1
        assert told[0].message.startswith("LINEAGE_RECEIVER did not take an event (")
        assert "secret" not in caplog.text
        assert len(receiver.calls) == (2 if fault == "refuses" else 0)  # each once

    def test_one_that_never_answers_delays_a_job_by_its_bound(self, caplog, monkeypatch):
        release = threading.Event()

        class Client:
            def emit(self, event):
                release.wait(60)

        monkeypatch.setattr(lineage, "_client", lambda settings: Client())
        monkeypatch.setattr(lineage, "CLOSE_TIMEOUT_S", 0.1)
        with lineage_of(LineageSettings("http://h"), publish_job(settings_of(), DAY)):
            pass
        assert not release.is_set()
        assert "it takes too long" in caplog.text
        release.set()


class TestOff:
    def test_without_a_receiver_nothing_starts(self):
        before = {*threading.enumerate()}  # those of other tests may end meanwhile
        with lineage_of(LineageSettings(), publish_job(settings_of(), DAY)) as outcome:
            outcome.generation_id = 1
            assert {*threading.enumerate()} <= before

    def test_the_transport_is_named_by_the_receiver(self):
        assert transport_of("") == {}
        assert transport_of("/logs/l.jsonl") == {"type": "file", "log_file_path": "/logs/l.jsonl", "append": True}
        assert transport_of("https://h:5000")["type"] == "http"

    def test_a_receiver_that_is_neither_is_refused(self):
        with pytest.raises(Exception, match="LINEAGE_RECEIVER='ftp://h/': neither a file nor http://host:port"):
            Settings.from_environment({**VARIABLES, "LINEAGE_RECEIVER": "ftp://h/"})


def test_a_dataset_has_no_values():
    assert set(Dataset.__dataclass_fields__) == {"namespace", "name", "fields", "version"}
