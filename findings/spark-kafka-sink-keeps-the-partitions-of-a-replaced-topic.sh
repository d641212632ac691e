#!/usr/bin/env bash
# pyspark 4.2.0, its Kafka connector (kafka-clients 3.9.2) and a Kafka broker 4.1.1: Spark keeps the producer of a batch
# write for ten minutes and gives it to the next write with the same settings. If the topic was deleted meanwhile and
# made again with fewer partitions, the producer still assigns records to partitions that are gone, and does not assign
# them again: they expire after `delivery.timeout.ms` (two minutes by default), and the write fails. The write after
# that gets a new producer and succeeds.
#
# Seen: "20 partitions: written", "made again with 3: TimeoutException, expiring records of a partition above 2",
# "once more: written".
# Fails if another version is installed, or if one of the three changes. Needs Java 17 on PATH.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0 confluent-kafka==2.16.1
ivy=("$folder"/venv/lib/python3*/site-packages/pyspark/jars/ivy-*.jar)
java -Divy.default.ivy.user.dir="$folder/ivy" -cp "${ivy[0]}" org.apache.ivy.Main -m2compatible -confs default -warn \
    -dependency org.apache.kafka kafka_2.13 4.1.1 -retrieve "$folder/kafka/[artifact]-[revision].[ext]" > "$folder/log"
cat > "$folder/sink.py" <<'PYTHON'
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

FOLDER = Path(sys.argv[1])
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
    servers, controller = (f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
(FOLDER / "server.properties").write_text(
    "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
    f"controller.quorum.voters=1@{controller}\nlisteners=PLAINTEXT://{servers},CONTROLLER://{controller}\n"
    f"log.dirs={FOLDER}/data\n")


def kafka(*arguments):
    options = ["-Xmx512m", f"-Djava.io.tmpdir={FOLDER}", "-cp", f"{FOLDER}/kafka/*"]
    return subprocess.Popen(["java", *options, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make(partitions):
    admin.create_topics([NewTopic("t", partitions, 1)])["t"].result(30)
    while "t" not in (topics := admin.list_topics(timeout=30).topics) or len(topics["t"].partitions) != partitions:
        time.sleep(0.1)


def write():
    """Write 200 records with keys. Return "written", or the error and the kind of partition that it names."""
    rows = spark.range(200).selectExpr("CAST(id AS string) AS key", "CAST(id AS string) AS value")
    options = {"kafka.bootstrap.servers": servers, "topic": "t", "kafka.delivery.timeout.ms": "10000",
               "kafka.request.timeout.ms": "5000"}
    try:
        rows.write.format("kafka").options(**options).save()
    except Py4JJavaError as exc:
        expired = re.search(r"\.(\w+): Expiring \d+ record\(s\) for t-(\d+)", str(exc))
        return f"{expired[1]}, expiring records of a partition {'above' if int(expired[2]) > 2 else 'up to'} 2"
    return "written"


settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.jars.packages": CONNECTOR,
            "spark.jars.ivy": f"{FOLDER}/ivy"}
kafka("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", f"{FOLDER}/server.properties").wait()
broker = kafka("kafka.Kafka", f"{FOLDER}/server.properties")
try:
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    make(20)
    found = [write()]
    admin.delete_topics(["t"], operation_timeout=30)["t"].result(30)
    make(3)
    found += [write(), write()]
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()  # the JVM ends, and removes its files
    jvm.wait()
finally:
    broker.terminate()
    broker.wait()
print(f"20 partitions: {found[0]}\nmade again with 3: {found[1]}\nonce more: {found[2]}")
expired = "TimeoutException, expiring records of a partition above 2"
sys.exit(pyspark.__version__ != "4.2.0" or found != ["written", expired, "written"])
PYTHON
export SPARK_SUBMIT_OPTS="-Djava.io.tmpdir=$folder -Duser.home=$folder" SPARK_LOCAL_DIRS="$folder"
"$folder/venv/bin/python" "$folder/sink.py" "$folder" 2> "$folder/error" || { tail -n 5 "$folder/error"; exit 1; }
