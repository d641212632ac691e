"""The servers that all other integration tests use."""

import os
import uuid
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from include.runtime.kafka_connection import KafkaConnection
from stack.health import probe
from stack.layout import StackError
from stack.postgres import from_wheel
from stack.services import KafkaHealth
from tests.servers import KafkaServer, PostgresTestServer, wait_until
from tests.support.broker import remove_topics
from tests.support.sending import sending


def produce(kafka: KafkaServer, topic: str, value: bytes) -> None:
    with sending(kafka.bootstrap_servers) as sender:
        sender.send(topic, value)


def read_all(kafka: KafkaServer, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    name = f"t-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(20)
    return name


def test_kafka_keeps_what_it_acknowledged_over_stop_and_kill(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, b"1")
    kafka.stop()
    kafka.start()
    produce(kafka, topic, b"2")
    kafka.kill()
    kafka.start()
    produce(kafka, topic, b"3")
    assert read_all(kafka, topic, 3) == [b"1", b"2", b"3"]


def test_topics_of_another_file_leave_no_settings_over_a_restart(kafka: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "left")
    admin.create_topics([NewTopic("left", 1, 1, config={"max.message.bytes": "1000"})])["left"].result(20)
    remove_topics(kafka.bootstrap_servers)
    kafka.stop()
    kafka.start()
    admin.create_topics([NewTopic("left", 1, 1)])["left"].result(20)
    wait_until(lambda: "left" in admin.list_topics(timeout=10).topics, 20, "the topic is there")
    assert admin.describe_configs([resource])[resource].result(20)["max.message.bytes"].value == "1048588"


def test_broker_of_another_cluster_is_not_healthy(kafka: KafkaServer, tmp_path: Path) -> None:
    answering = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=20).cluster_id
    health = KafkaHealth(KafkaConnection(kafka.bootstrap_servers), tmp_path)
    assert probe(health) is None  # not formatted yet
    (tmp_path / "meta.properties").write_text(f"version=1\ncluster.id={answering}\nnode.id=1\n")
    assert probe(health) is None
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=IL4irDsLRYGw9bkmk4v-2w\nnode.id=1\n")
    assert probe(health) == f"another Kafka cluster answers, {answering} in place of IL4irDsLRYGw9bkmk4v-2w"


def test_postgres_is_the_wheels_and_serves_tcp_with_a_password(postgres: PostgresTestServer) -> None:
    connection = psycopg2.connect(postgres.new_database("stack_test"))
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding')")
        major, encoding = cursor.fetchone()
        cursor.execute("SELECT current_setting('client_connection_check_interval'), inet_server_addr()::text")
        assert cursor.fetchone() == ("1s", "127.0.0.1/32")
    connection.close()
    wheel = from_wheel()
    assert wheel is None or major == wheel.major
    assert encoding == "UTF8"
    with pytest.raises(psycopg2.OperationalError, match="password"):
        psycopg2.connect(postgres.superuser_dsn().replace("password=test", "password=wrong"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is made another user")
def test_postgres_of_root_runs_as_another_user(postgres: PostgresTestServer) -> None:
    with open(f"/proc/{postgres.pid}/status") as status:  # noqa: PTH123
        uids = next(line for line in status if line.startswith("Uid:")).split()[1:]
    assert "0" not in uids


def test_new_database_is_empty_each_time(postgres: PostgresTestServer) -> None:
    for _ in range(2):
        connection = psycopg2.connect(postgres.new_database("again"))
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE only_once (id int)")
        connection.close()


def test_data_made_with_another_password_is_refused_with_the_remedy(postgres: PostgresTestServer) -> None:
    with pytest.raises(StackError, match=r"put the old \.env back, or remove the data with `make clean`"):
        postgres.with_password("another").prepare()


def test_data_of_another_major_version_is_refused_with_the_remedy(postgres: PostgresTestServer) -> None:
    with pytest.raises(StackError, match=r"was made by PostgreSQL 18, .* has 15: set POSTGRES_BIN_DIR"):
        postgres.with_major(15).prepare()
