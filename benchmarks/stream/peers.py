"""The peers' programs for Kafka Streams and Flink, compiled from the sources in folder `java`.

python -m benchmarks.stream.peers lock      resolve their jars again and write jars.lock
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stack.jars import ensure, pyspark_jars, write_lock
from stack.layout import Layout, StackError
from stack.machine import find_java

LOCK_FILE = Path(__file__).with_name("jars.lock")
SOURCES = Path(__file__).with_name("java")
KAFKA_STREAMS, FLINK = "bench-kafka-streams", "bench-flink"
_FLINK_VERSION = "2.0.1"
_COMMON = ("com.fasterxml.jackson.core:jackson-databind:2.19.0", "org.slf4j:slf4j-simple:1.7.36")
ROOTS: Mapping[str, tuple[str, ...]] = {
    KAFKA_STREAMS: ("org.apache.kafka:kafka-streams:4.4.0", *_COMMON),
    FLINK: (
        f"org.apache.flink:flink-streaming-java:{_FLINK_VERSION}",
        f"org.apache.flink:flink-clients:{_FLINK_VERSION}",
        f"org.apache.flink:flink-connector-base:{_FLINK_VERSION}",
        f"org.apache.flink:flink-statebackend-rocksdb:{_FLINK_VERSION}",
        "org.apache.flink:flink-connector-kafka:4.0.1-2.0",
        *_COMMON,
    ),
}
_PROGRAMS = {KAFKA_STREAMS: "KafkaStreamsJoin", FLINK: "FlinkJoin"}
_OPENED = ("java.util", "java.lang", "java.time")  # Flink's serializers look into these
_HEAP = "2g"


def ensure_jars() -> None:
    """Fetch the peers' jars if they are missing, which takes minutes the first time. Raises StackError."""
    ensure(Layout.of(), pyspark_jars(Path(sys.prefix)), find_java(os.environ), LOCK_FILE)


def command(name: str, folder: Path) -> list[str]:
    """Compile a peer into the folder; returns its command without arguments. Raises StackError without a compiler."""
    jars = Layout.of().jars / name
    home = find_java(os.environ)
    classes = folder / f"{name}-classes"
    program = _PROGRAMS[name]
    if not classes.exists():
        _compile(home, jars, classes, program)
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED if name == FLINK]
    return [
        str(home / "bin" / "java"), f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *opens, "-cp", f"{classes}:{jars}/*", program,
    ]  # fmt: skip


def _compile(home: Path, jars: Path, classes: Path, program: str) -> None:
    compiler = home / "bin" / "javac"
    if not compiler.exists():
        raise StackError(f"{compiler} is missing: the peers need a JDK, not only a JRE; install one and set JAVA_HOME")
    source = SOURCES / f"{program}.java"
    made = subprocess.run(
        [str(compiler), "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(classes), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        shutil.rmtree(classes, ignore_errors=True)
        raise StackError(f"{source.name} does not compile:\n{made.stderr[-3000:]}")


if __name__ == "__main__":
    if sys.argv[1:] != ["lock"]:
        sys.exit("usage: python -m benchmarks.stream.peers lock")
    write_lock(LOCK_FILE, ROOTS)
