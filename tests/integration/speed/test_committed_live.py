"""Offsets that a group has committed, asked of a broker that has just started: the group has no coordinator yet."""

import subprocess
import sys

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.servers import KafkaServer
from tests.support.pipeline import ROOT

GROUPS = 20
ASK = f"""
import sys
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection

reader = OffsetReader(KafkaConnection(sys.argv[1]))
print(reader.groups())
for number in range({GROUPS}):
    print(*(each.offset for each in reader.committed(f"group-{{number}}", "board")))
"""


@pytest.mark.parametrize("_", range(3))
def test_a_group_without_coordinator_is_waited_for(tmp_path, _):
    broker = KafkaServer(tmp_path)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("board", 2, 1)])["board"].result()
        asked = subprocess.run([sys.executable, "-c", ASK, broker.bootstrap_servers], cwd=ROOT, capture_output=True,
                               text=True, timeout=120)  # fmt: skip
    finally:
        broker.kill()
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines() == ["set()", *["-1001 -1001"] * GROUPS]
