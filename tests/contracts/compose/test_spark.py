"""The deployment's Spark, really started: its master, one worker, and a driver of ours on that cluster."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stack.layout import Layout
from stack.ports import unused
from stack.prerequisites import find_java
from stack.service import HttpHealth
from tests.servers import KafkaServer, ServerProcess, wait_until
from tests.support.compose import Compose, generated_variables
from tests.support.image import copy_tree, read_stages
from tests.support.other_user import fetch_block

pytestmark = pytest.mark.servers

BIN = Path(sys.executable).parent
HOSTS = ("spark-master", "spark-worker-1")

TOPIC = "compose-spark"
DRIVER = """
import json, sys, time
from pathlib import Path
import pyarrow as pa
from include.settings import Settings
from spark_jobs.connectors.session import open_session
from include.adapters.kafka.offsets import OffsetReader
from spark_jobs.connectors.kafka import read_range

def on_executor(batches):
    import include.contracts.day, psycopg2, spark_jobs.batch.rebuild
    file, count = include.contracts.day.__file__, sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"file": [file], "tz": [time.tzname[0]], "rows": [count]})

settings = Settings.from_environment()
session = open_session(settings.spark, "compose-test", "512m")
records = read_range(session, OffsetReader(settings.kafka.connection), "compose-spark", {0: 0}, {0: 3})
rows = records.mapInArrow(on_executor, "file string, tz string, rows long").collect()
answer = {"rows": [row.asDict() for row in rows], "master": session.sparkContext.master,
          "host": session.conf.get("spark.driver.host"),
          "executors": session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1}
Path(sys.argv[1]).write_text(json.dumps(answer))  # a container's standard output is its log's
session.stop()
"""


class SparkCluster:
    """A master and a worker on loopback, with the commands and variables of docker-compose.yaml."""

    def __init__(self, compose: Compose, folder: Path) -> None:
        self.compose = compose
        self.folder = folder
        self.image = copy_tree(read_stages()[-1], folder / "image")
        self.configuration = folder / "conf"
        self.configuration.mkdir()
        for service in (*HOSTS, "stream", "airflow-scheduler"):
            for config in compose.services[service]["configs"]:
                content = compose.content["configs"][config["source"]]["content"]
                (self.configuration / Path(config["target"]).name).write_text(content)
        self.ports = dict(zip(("7077", "7078", "8080", "8081"), map(str, unused(4)), strict=True))

    def moved(self, text: str) -> str:
        """The text with the containers' names, ports and folders replaced."""
        if text in self.ports:
            return self.ports[text]
        for host in HOSTS:
            text = text.replace(f"//{host}:", "//localhost:")
        for inside, outside in self.ports.items():
            text = text.replace(f":{inside}", f":{outside}")
        return text.replace("/var/lib/pipeline", str(self.folder))

    def environment(self, name: str) -> dict[str, str]:
        """A service's variables here; its image's too."""
        of_service = {variable: self.moved(value) for variable, value in self.compose.environment(name).items()}
        assert of_service["SPARK_LOCAL_HOSTNAME"] == name
        return {
            **read_stages()[-1].environment,
            **of_service,
            "SPARK_LOCAL_HOSTNAME": "localhost",
            "JAVA_HOME": str(find_java(os.environ)),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": "/nowhere" if name in HOSTS else str(self.image),  # executors get the driver's code
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_KAFKA_JARS_DIR": str(Layout.of().spark_jars),
            "SPARK_CONF_DIR": str(self.configuration),
        }

    def command(self, name: str) -> list[str]:
        """A service's command, in an environment of its own."""
        variables = [f"{key}={value}" for key, value in self.environment(name).items()]
        return ["env", "-i", *variables, *map(self.moved, self.compose.command(name))]

    def process(self, name: str) -> ServerProcess:
        """The service's process, healthy when the address of its health check answers."""
        health = HttpHealth(self.moved(self.compose.services[name]["healthcheck"]["test"][-1]))
        return ServerProcess(name, self.folder / f"{name}.log", health, signal.SIGTERM)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    compose = Compose.load(generated_variables(tmp_path_factory.mktemp("env")))
    cluster = SparkCluster(compose, tmp_path_factory.mktemp("spark"))
    (cluster.folder / "spark-master").mkdir()
    master, worker = cluster.process("spark-master"), cluster.process("spark-worker-1")
    try:
        master.start(cluster.command("spark-master"))
        worker.start(cluster.command("spark-worker-1"))
        yield cluster
    finally:
        worker.stop()
        master.stop()


@pytest.fixture(scope="module")
def bootstrap_servers(kafka: KafkaServer) -> str:
    """A broker with three records in a topic of one partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(3):
        producer.produce(TOPIC, str(number))
    wait_until(lambda: producer.flush(1) == 0, 30, "three records in Kafka")
    return kafka.bootstrap_servers


def as_stream(cluster: SparkCluster, script: Path) -> list[str]:
    """The stream is a Python program that opens its own session."""
    return [sys.executable, str(script)]


def as_airflow(cluster: SparkCluster, script: Path) -> list[str]:
    """A rebuild is submitted by Airflow over the connection spark_default."""
    environment = cluster.environment("airflow-scheduler")
    connection = json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])
    options = ["--master", connection["host"], "--deploy-mode", connection["extra"]["deploy-mode"]]
    jars = f"{environment['SPARK_KAFKA_JARS_DIR']}/*.jar"
    return [str(BIN / connection["extra"]["spark-binary"]), *options, "--jars", jars, str(script)]


@pytest.mark.parametrize(
    ("service", "launch"),
    [("stream", as_stream), pytest.param("airflow-scheduler", as_airflow, marks=pytest.mark.long)],
)
def test_a_driver_runs_our_code_on_the_workers(
    cluster: SparkCluster,
    bootstrap_servers: str,
    tmp_path: Path,
    service: str,
    launch: Callable[[SparkCluster, Path], list[str]],
) -> None:
    script = tmp_path / "driver.py"
    answered = tmp_path / "answer.json"
    script.write_text(DRIVER)
    environment = {**cluster.environment(service), "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers}

    result = subprocess.run(
        [*launch(cluster, script), str(answered)],
        cwd=cluster.image,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert result.returncode == 0, result.stderr[-3000:]
    answer = json.loads(answered.read_text())
    assert answer["master"] == cluster.moved("spark://spark-master:7077")
    assert answer["host"] == "localhost", "executors could not find the driver by its service's name"
    assert answer["executors"] == 1
    assert sum(row["rows"] for row in answer["rows"]) == 3
    for row in answer["rows"]:
        work = cluster.folder / "spark-work"
        assert row["file"].startswith(str(work)), "executors run other code than the driver's"
        assert row["tz"] == "UTC"


@pytest.mark.parametrize("port", ["7077", "7078"])
def test_master_and_worker_answer_nobody_without_the_secret(cluster: SparkCluster, port: str) -> None:
    assert b"Expected SaslMessage" in fetch_block(int(cluster.ports[port]), "rdd_0_0")
