"""Clients of Kafka that cannot be made: the state of the machine is the cause, and no record."""

from pathlib import Path

import pytest

from include.contracts.errors import ConfigurationError
from include.kafka.reader import RangeReader
from include.runtime.kafka_connection import KafkaConnection, Tls

ELSEWHERE = KafkaConnection("127.0.0.1:1", "SSL", Tls(ca_file=Path("/nowhere/ca.pem")))


def test_a_reader_names_the_setting_of_a_file_that_this_machine_lacks():
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location"):
        RangeReader(ELSEWHERE)
