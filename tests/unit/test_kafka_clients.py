"""Clients of Kafka that cannot be made: the state of the machine is the cause, and no record."""

from pathlib import Path

import pyarrow as pa
import pytest

from include.contracts.errors import ConfigurationError
from include.kafka.reader import RangeReader
from include.runtime.kafka_connection import KafkaConnection, Tls
from spark_jobs.speed.record_sender import RecordSender

ELSEWHERE = KafkaConnection("127.0.0.1:1", "SSL", Tls(ca_file=Path("/nowhere/ca.pem")))


def test_a_reader_names_the_setting_of_a_file_that_this_machine_lacks():
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        RangeReader(ELSEWHERE)


def test_a_sender_names_it_too():
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        RecordSender(ELSEWHERE, "board-detail").send(pa.table({"key": [b"k"], "value": [b"v"]}))
