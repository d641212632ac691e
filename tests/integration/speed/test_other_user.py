"""Another user of the machine cannot read a driver's files or blocks, nor call its functions."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.java_gateway import ensure_callback_server_started

from stack.layout import Layout
from tests.servers import wait_until
from tests.support.other_user import can_read, fetch_block, readable_below
from tests.support.pipeline import ROOT

PHONE = "010-1234-5678"
DRIVER = """
import json, sys
from pathlib import Path
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import open_context

context = open_context(SparkSettings("local[1]", Path(sys.argv[1]), Path(sys.argv[2])), "test", "512m")
rows = context.parallelize([(number, "010-1234-5678") for number in range(100)], 2)
rows.groupByKey(2).count()
block_manager = context._jvm.org.apache.spark.SparkEnv.get().blockManager()
folders = [folder.getPath() for folder in block_manager.diskBlockManager().localDirs()]
print(json.dumps({"folders": folders, "jvm": context._gateway.proc.pid}), flush=True)
sys.stdin.read()
"""
NEXT = "import sys; from pathlib import Path; from spark_jobs.connectors.session import make_scratch; " \
       "make_scratch(Path(sys.argv[1]))"  # fmt: skip


@pytest.fixture
def open_folder():
    """A folder that every user may enter, as a clone in /srv or a home folder may be."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def run(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def test_nobody_else_reads_shuffle_files_and_a_killed_drivers_go(open_folder):
    scratch = open_folder / "spark"
    driver = run(DRIVER, Layout.of().spark_jars, scratch)
    try:
        told = json.loads(next(line for line in driver.stdout if line.startswith(b"{")))
        files = [path for folder in told["folders"] for path in Path(folder).rglob("*") if path.is_file()]
        assert any(PHONE.encode() in path.read_bytes() for path in files), "the driver wrote no shuffle file"
        assert [path for path in files if can_read(path)] == []
        assert all(path.is_relative_to(scratch) for path in files)
        assert readable_below(scratch) == []
        os.kill(told["jvm"], signal.SIGKILL)  # or it would remove the files when it sees that its driver is gone
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    wait_until(lambda: not Path(f"/proc/{told['jvm']}").exists(), 30, "the driver's JVM has ended")
    assert all(path.exists() for path in files)
    assert run(NEXT, scratch).wait(60) == 0  # as the next driver does first
    assert list(scratch.iterdir()) == []


def test_a_driver_that_lives_keeps_its_folder(open_folder):
    keeping = run(NEXT + "; print(flush=True); sys.stdin.read()", open_folder)
    keeping.stdout.readline()
    (folder,) = open_folder.iterdir()
    assert run(NEXT, open_folder).wait(60) == 0
    assert list(open_folder.iterdir()) == [folder]
    keeping.communicate(timeout=60)


def test_nobody_else_has_blocks_of_a_drivers_ports(spark):
    rows = spark.sparkContext.parallelize([PHONE], 1).cache()
    rows.count()
    block_manager = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager()
    answer = fetch_block(block_manager.blockManagerId().port(), f"rdd_{rows.id()}_0")
    rows.unpersist()
    assert PHONE.encode() not in answer
    assert b"Expected SaslMessage" in answer


class Function:
    """A function that the JVM calls for each batch."""

    def __init__(self):
        self.calls = []

    def call(self, *arguments):
        self.calls.append(arguments)


def test_nobody_else_calls_a_drivers_functions(spark):
    gateway = spark.sparkContext._gateway
    function = Function()
    name = gateway.gateway_property.pool.put(function)
    ensure_callback_server_started(gateway)  # as foreachBatch does
    port = gateway._callback_server.server_socket.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"c\n{name}\ncall\ne\n".encode())
        with suppress(ConnectionResetError):
            assert b"!y" not in connection.recv(1000)
    assert function.calls == []


def test_the_jvm_calls_them(spark, tmp_path):
    batches = []
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = stream.writeStream.foreachBatch(lambda batch, number: batches.append(number))
    query = writer.trigger(once=True).option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(60)
    assert batches == [0]
