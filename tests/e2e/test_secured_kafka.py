"""Every client of Kafka over TLS and SASL, on a real broker whose certificates the test makes."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import closing
from typing import get_args

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from include.contracts.errors import MISCONFIGURED, BrokerUnavailable
from include.contracts.pipelines import PIPELINES, TOPICS
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import Record
from include.kafka.access import KafkaAccessDenied, Part
from include.kafka.admin import create_topics, topic_drifts, topics_below
from include.kafka.offsets import OffsetReader
from include.kafka.reader import RangeReader
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import EXACTLY_ONCE, KafkaSettings
from spark_jobs.connectors.kafka import stream_reader
from spark_jobs.speed.record_sender import RecordSender
from stack.layout import Layout
from stack.machine import find_java, unused
from tests.fakes.events import board, member
from tests.servers import QUICK_START, Listener, kafka_server, wait_until
from tests.support.broker import remove_topics
from tests.support.certificates import Authority
from tests.support.identity_provider import AUDIENCE, ISSUER, identity_provider
from tests.support.pipeline import ROOT, environment, produce, rows, with_topics

USER, PASSWORD = "pipeline", 'a "quoted\\" pass word; $1'
KEY_PASSWORD = "with-a-password"
NOW_MS = int(time.time() * 1000)
LISTENERS = ("SECURE", "MUTUAL")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def ports():
    return dict(zip(LISTENERS, unused(2), strict=True))


@pytest.fixture(scope="module")
def provider():
    with identity_provider(USER, PASSWORD) as address:
        yield address


@pytest.fixture(scope="module")
def secured(authority, ports, provider, tmp_path_factory):
    """A broker that listens with SASL_SSL and, for clients with a certificate, with SSL."""
    server = authority.issue("broker")
    plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}={_jaas(PASSWORD)};"
    oauth = "org.apache.kafka.common.security.oauthbearer"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    more = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both_file),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca_file),
        "listener.name.mutual.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:CN=client;User:CN=client{KEY_PASSWORD}",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.secure.plain.sasl.jaas.config": plain,
        "listener.name.secure.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.secure.oauthbearer.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
        "listener.name.secure.oauthbearer.sasl.server.callback.handler.class": (
            f"{oauth}.OAuthBearerValidatorCallbackHandler"
        ),
        "listener.name.secure.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{provider}/keys",
        "listener.name.secure.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.secure.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
    }
    listeners = (Listener("SECURE", ports["SECURE"], "SASL_SSL"), Listener("MUTUAL", ports["MUTUAL"], "SSL"))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider}/keys"
    with kafka_server(tmp_path_factory.mktemp("secured"), more, listeners, (*QUICK_START, allowed)) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        sha_256, sha_512 = (ScramCredentialInfo(each, 4096) for each in (ScramMechanism.SCRAM_SHA_256,
                                                                        ScramMechanism.SCRAM_SHA_512))  # fmt: skip
        for name, kind in [
            (USER, sha_256),
            (USER, sha_512),
            *((part, sha_512) for part in (*get_args(Part), "nobody")),
        ]:
            user = UserScramCredentialUpsertion(name, kind, PASSWORD.encode())
            admin.alter_user_scram_credentials([user])[name].result(30)
        yield kafka


def _jaas(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sasl(authority, ports, **changes):
    """Return the variables of a client that connects with SASL."""
    return {
        "KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports['SECURE']}",
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SSL_CA_FILE": str(authority.ca_file),
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USERNAME": USER,
        "KAFKA_SASL_PASSWORD": PASSWORD,
        **changes,
    }


def connection(authority, ports, **changes):
    return KafkaConnection.from_environment(EnvironmentReader(sasl(authority, ports, **changes)))


def mutual(authority, ports, password=""):
    client = authority.issue(f"client{password}", password)
    return connection(
        authority, ports,
        KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{ports['MUTUAL']}", KAFKA_SECURITY_PROTOCOL="SSL",
        KAFKA_SASL_MECHANISM="", KAFKA_SASL_USERNAME="", KAFKA_SASL_PASSWORD="",
        KAFKA_SSL_CERTIFICATE_FILE=str(client.certificate_file), KAFKA_SSL_KEY_FILE=str(client.key_file),
        KAFKA_SSL_KEY_PASSWORD=password,
    )  # fmt: skip


WAYS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "mutual", "mutual with a password"]


@pytest.fixture(params=WAYS)
def kafka(request, secured, authority, ports, provider):
    """The connection by each way to prove who one is."""
    if request.param.startswith("mutual"):
        return mutual(authority, ports, KEY_PASSWORD if "password" in request.param else "")
    more = {"KAFKA_SASL_TOKEN_URL": f"{provider}/token"} if request.param == "OAUTHBEARER" else {}
    return connection(authority, ports, KAFKA_SASL_MECHANISM=request.param, **more)


def send(kafka, topic, count):
    """Send records as the gateway does."""

    async def produce():
        producer = KafkaProducer(kafka, 20.0)
        producer.start(lambda failure: None)
        records = [Record(topic, str(n).encode(), f"value {n}".encode(), [], NOW_MS) for n in range(count)]
        results = await asyncio.gather(*(producer.send(record) for record in records))
        await producer.close(10.0)
        return results

    return asyncio.run(produce())


def values(kafka, topic):
    """The topic's values, as a rebuild reads them."""
    offsets = OffsetReader(kafka)
    start, ends = offsets.earliest(topic), offsets.ends(topic)
    with closing(RangeReader(kafka)) as reader:
        reader.begin(topic, start)
        return sorted(message.value() for batch in reader.iter_to(ends, dict(start)) for message in batch)


def test_every_client_connects(kafka, spark, tmp_path, request):
    settings = KafkaSettings(kafka, 2, 1, 1, 14)
    create_topics(settings)
    assert list(topic_drifts(settings, list(TOPICS.values()))) == []
    # a topic of its own: Spark keeps the consumers of a process by topic, and a process has one connection
    topic = sorted(TOPICS)[WAYS.index(request.node.callspec.params["kafka"])]

    assert send(kafka, topic, 3) == [None, None, None]
    write(spark, kafka, topic)
    assert len(values(kafka, topic)) == 4
    assert streamed(spark, kafka, topic, tmp_path) == 4


def write(spark, kafka, topic):
    """Send a record from a task."""

    def task(value):
        sender = RecordSender(kafka, topic)
        sender.send(pa.table({"key": [b"k"], "value": [value]}))
        sender.flush()

    spark.sparkContext.parallelize([b"by a task"], 1).foreach(task)


def streamed(spark, kafka, topic, folder):
    """The number of the topic's records, as a query of the stream reads them."""
    query = (
        stream_reader(spark, kafka, topic, None, 1000).load().writeStream.format("memory").queryName("secured")
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(60)
    assert query.exception() is None
    return spark.table("secured").count()


def test_spark_shows_no_secret(kafka, spark):
    options = kafka.spark()
    secrets = [value for name, value in options.items() if name.endswith(("jaas.config", "keystore.key", "password"))]
    shown = spark._jsparkSession.sessionState().conf().redactOptions(spark._jvm.PythonUtils.toScalaMap(options))
    assert options["kafka.bootstrap.servers"] in shown.toString()
    assert secrets
    assert not [secret for secret in secrets if secret in shown.toString() or secret in repr(kafka)]


@pytest.mark.parametrize(
    "changes",
    [
        {"KAFKA_SASL_PASSWORD": "wrong"},
        {"KAFKA_SSL_CA_FILE": "foreign"},
        {"KAFKA_SECURITY_PROTOCOL": "PLAINTEXT", "KAFKA_SSL_CA_FILE": "", "KAFKA_SASL_MECHANISM": "",
         "KAFKA_SASL_USERNAME": "", "KAFKA_SASL_PASSWORD": ""},
    ],
    ids=["password", "authority", "protocol"],
)  # fmt: skip
def test_a_client_that_may_not_connect_is_told_why(changes, secured, authority, ports, tmp_path):
    if changes.get("KAFKA_SSL_CA_FILE") == "foreign":
        changes = {"KAFKA_SSL_CA_FILE": str(Authority(tmp_path, "foreign").ca_file)}
    kafka = connection(authority, ports, **changes)
    with pytest.raises(BrokerUnavailable) as raised:
        OffsetReader(kafka, 3.0).ends("board")
    assert PASSWORD not in str(raised.value)
    (failure,) = send_in_time(kafka, 2.0)
    assert failure is not None  # so the gateway keeps the event in its fallback store


def send_in_time(kafka, deadline_s):
    async def produce():
        producer = KafkaProducer(kafka, deadline_s)
        producer.start(lambda failure: None)
        result = await producer.send(Record("board", b"1", b"value", [], NOW_MS))
        await producer.close(1.0)
        return [result]

    return asyncio.run(produce())


def granted(secured, commands):
    """Run kafka-acls commands with Kafka's own program, which connects as the superuser."""
    layout = Layout.of()
    program = [find_java(os.environ) / "bin" / "java", "-XX:TieredStopAtLevel=1", "-cp", f"{layout.kafka_jars}/*"]
    for command in commands:
        script, server, _, *options = shlex.split(command)
        assert (script, server) == ("kafka-acls.sh", "--bootstrap-server")
        subprocess.run([*program, "org.apache.kafka.tools.AclCommand", server, secured.bootstrap_servers, *options],
                       check=True, capture_output=True)  # fmt: skip


def printed(name, **variables):
    """Return the commands that `pipeline kafka rights` prints for a pipeline."""
    environment = {"PATH": os.environ["PATH"], "PIPELINE": name, "DATABASE_HOST": "none",
                   "KAFKA_BOOTSTRAP_SERVERS": "broker:9092", **variables}  # fmt: skip
    ran = subprocess.run([sys.executable, "-m", "pipeline", "kafka", "rights"], env=environment, cwd=ROOT,
                         check=True, capture_output=True, text=True)  # fmt: skip
    return ran.stdout.splitlines()


def test_each_part_runs_with_the_rights_that_the_command_prints(secured, authority, ports, spark, tmp_path):
    def of(part):
        return connection(authority, ports, KAFKA_SASL_USERNAME=part)

    def settings(part):
        return KafkaSettings(of(part), 2, 1, 1, 14)

    remove_topics(secured.bootstrap_servers)
    for name in PIPELINES:
        granted(secured, printed(name))

    assert set(create_topics(settings("topics"))) == set(TOPICS)
    assert send(of("gateway"), "board", 2) == [None, None]
    assert topics_below(of("gateway"), ["board"], 1) == []
    assert None not in send(of("gateway"), "board-detail", 1)
    assert send(of("batch"), "board", 1) == [None]
    assert len(values(of("batch"), "board")) == len(values(of("integrity"), "board")) == 2 + 1
    assert topic_drifts(settings("batch"), list(TOPICS.values())) == []
    assert None not in send(of("integrity"), "board", 1)

    write(spark, of("stream"), "board-detail")
    assert len(values(of("batch"), "board-detail")) == 1
    assert streamed(spark, of("stream"), "board", tmp_path) == 3


@pytest.mark.timeout(300)
def test_the_driver_delivers_exactly_once_with_the_printed_rights_and_says_which_one_lacks(
    secured, authority, ports, postgres, tmp_path
):
    remove_topics(secured.bootstrap_servers)
    settings = with_topics(secured, postgres, "secured", tmp_path)
    (port,) = unused(1)
    variables = {
        **os.environ,
        **environment(secured, postgres, "secured", tmp_path),
        **sasl(authority, ports, KAFKA_SASL_USERNAME="stream"),
        "PYTHONPATH": str(ROOT),
        "STREAM_DELIVERY": EXACTLY_ONCE,
        "STREAM_METRICS_PORT": str(port),
    }
    commands = printed(settings.pipeline.name, STREAM_DELIVERY=EXACTLY_ONCE)
    of_delivery = [each for each in commands if "--transactional-id" in each or "--group" in each]
    granted(secured, [each for each in commands if "User:stream" in each and each not in of_delivery])
    driver = [sys.executable, "spark_jobs/stream.py"]
    missing = []
    for number in range(len(of_delivery)):
        log = tmp_path / f"denied-{number}.log"
        with log.open("wb") as output:
            ended = subprocess.run(driver, cwd=ROOT, env=variables, timeout=120, stdout=output, stderr=output)
        assert ended.returncode == MISCONFIGURED, f"see {log}"
        denied = re.search("Kafka denies (.*) to User:stream; grant it: (.*)$", log.read_text(), re.MULTILINE)
        missing.append(denied[1])
        granted(secured, [denied[2]])
    name = f"{settings.pipeline.name}.join"
    assert missing == [f"Read on group {name}", f"Write on transactional-id {name}"]

    produce(settings, [("member", 1, member(1)), *(("board", each, board(each, 1)) for each in range(20))])
    with (tmp_path / "stream.log").open("wb") as log:
        running = subprocess.Popen(driver, cwd=ROOT, env=variables, stdout=log, stderr=log)
    try:
        wait_until(lambda: rows(settings, "SELECT count(*) FROM board_detail") == [(20,)], 120,
                   f"the boards are shown, see {tmp_path}")  # fmt: skip
        assert len(values(settings.kafka.connection, "board-detail")) == 20
        running.terminate()
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()


def test_a_right_to_write_that_is_missing_is_named_by_each_sender(secured, authority, ports):
    remove_topics(secured.bootstrap_servers)
    create_topics(KafkaSettings(connection(authority, ports), 2, 1, 1, 14))
    granted(secured, [each for each in printed("board_detail") if "User:integrity" in each])
    sender = RecordSender(connection(authority, ports, KAFKA_SASL_USERNAME="integrity"), "board-detail")

    def send_one():
        sender.send(pa.table({"key": [b"k"], "value": [b"v"]}))
        sender.flush()

    for _ in range(2):  # the client that was refused takes no record any more
        with pytest.raises(KafkaAccessDenied, match="denies Write on topic board-detail to User:integrity"):
            send_one()


def test_a_missing_right_is_named_with_the_command_that_grants_it(secured, authority, ports):
    kafka = connection(authority, ports, KAFKA_SASL_USERNAME="nobody")
    remove_topics(secured.bootstrap_servers)
    create_topics(KafkaSettings(connection(authority, ports), 2, 1, 1, 14))
    assert send(connection(authority, ports), "board", 1) == [None]
    settings = KafkaSettings(kafka, 2, 1, 1, 14)
    wanted = [
        ("Describe", lambda: OffsetReader(kafka).ends("board")),
        ("Read", lambda: values(kafka, "board")),
        ("DescribeConfigs", lambda: topic_drifts(settings, [TOPICS["board"]])),
    ]
    for operation, call in wanted:
        with pytest.raises(KafkaAccessDenied, match=rf"denies {operation} on topic board to User:nobody") as raised:
            call()
        granted(secured, [str(raised.value).partition("grant it: ")[2]])
        call()
