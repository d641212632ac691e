"""Brokers of older versions of Kafka, which users may have: their jars are fetched on demand.

python -m tests.support.older_brokers lock          resolve the jars again and write older_brokers.lock
python -m tests.support.older_brokers versions      print the versions
"""

import argparse
import os
import sys
from pathlib import Path

from stack.jars import ROOTS, ensure, pyspark_jars, write_lock
from stack.layout import Layout
from stack.machine import find_java

LOCK_FILE = Path(__file__).with_suffix(".lock")
VERSIONS = ("3.9.2", "4.1.2")


def ensure_jars(version: str) -> Path:
    """Return the folder with the jars of a broker of that version. Fetches those of all versions; raises StackError."""
    ensure(Layout.of(), pyspark_jars(Path(sys.prefix)), find_java(os.environ), LOCK_FILE)
    return Layout.of().jars / _set_name(version)


def _set_name(version: str) -> str:
    return f"kafka-broker-{version}"


def _roots(version: str) -> tuple[str, ...]:
    """Return those of the stack's broker with another version of Kafka."""
    coordinates = (root.rpartition(":") for root in ROOTS["kafka-broker"])
    return tuple(f"{name}:{version if name.startswith('org.apache.kafka:') else own}" for name, _, own in coordinates)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.support.older_brokers", description=__doc__)
    parser.add_argument("command", choices=["lock", "versions"])
    if parser.parse_args().command == "versions":
        print(*VERSIONS)
        sys.exit()
    write_lock(LOCK_FILE, {_set_name(version): _roots(version) for version in VERSIONS})
