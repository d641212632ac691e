"""Servers for every test that asks for one: started when first asked for, once a session."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import (
    KafkaServer,
    PostgresTestServer,
    ServerProcess,
    fast_folder,
    kafka_server,
    postgres_server,
)
from tests.support.broker import Broker, remove_topics
from tests.support.browser import NO_CHROMIUM
from tests.support.examples import LONG_PROFILE
from tests.support.object_store import ObjectStore, object_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.scheduler import LoadFileScheduling

# No test asserts a time: a machine may be slow.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(LONG_PROFILE, settings.get_profile("any machine"))
settings.load_profile("any machine")

# A JVM that a test starts lives for seconds or minutes: too short for the optimizing compiler to pay off.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")

# Vacuum is left to each test: with it, a test that counts row versions would depend on when it runs.
_QUIET = {"autovacuum": "off", "max_wal_size": "128MB"}

_AIRFLOW = "tests/e2e/airflow/"
_ON_SERVERS = [Path(__file__).with_name(folder) for folder in ("integration", "e2e")]
_DAGS = Path(__file__).with_name("dags")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Without `--long`, tests marked long are left out; with it, only files with tests marked long or shortened run."""
    parser.addoption("--long", action="store_true", help="files with tests marked long or shortened, in full")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of examples before a test file is imported."""
    if config.getoption("long"):
        settings.load_profile(LONG_PROFILE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select tests by `--long`, and mark each with the parts that it needs."""
    left_out = {item for item in items if item.get_closest_marker("long")}
    if config.getoption("long"):
        shortened = {item for item in items if item.get_closest_marker("shortened")}
        files = {item.path for item in left_out | shortened}
        left_out = {item for item in items if item.path not in files}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        fixtures = {*getattr(item, "fixturenames", ())}
        if any(map(item.path.is_relative_to, _ON_SERVERS)) or fixtures & {"kafka", "postgres"}:
            item.add_marker(pytest.mark.servers)
        if "spark" in fixtures:
            item.add_marker(pytest.mark.spark)
        if item.path.is_relative_to(_DAGS):
            item.add_marker(pytest.mark.airflow)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadFileScheduling":
    """Give a file to one process, and all files that share an Airflow to one."""
    from xdist.scheduler import LoadFileScheduling

    class ByServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _AIRFLOW if nodeid.startswith(_AIRFLOW) else str(super()._split_scope(nodeid))

    return ByServers(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Say in the last line, below the results, that the tests of pages did not run."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # in the processes of xdist
        return
    skipped = [report for report in reporter.stats.get("skipped", ()) if NO_CHROMIUM in str(report.longrepr)]
    if skipped:
        reporter.write_line(f"{len(skipped)} tests of pages did not run: {NO_CHROMIUM}", yellow=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let only tests with the marker start a server."""
    ServerProcess.allowed = item.get_closest_marker("servers") is not None


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One real Spark for all tests, with the Kafka connector. It takes seconds to start."""
    from tests.support.spark import opened_session

    with opened_session() as session:
        yield session


@pytest.fixture(scope="session")
def kafka_of_all_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with kafka_server(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(kafka_of_all_files: KafkaServer) -> KafkaServer:
    """A real broker without the topics of other files. A test that stops it starts it again."""
    remove_topics(kafka_of_all_files.bootstrap_servers)
    return kafka_of_all_files


@pytest.fixture(scope="module")
def gateway_broker(kafka: KafkaServer) -> Iterator[Broker]:
    """The broker with the pipeline's topics, which a test may kill."""
    broker = Broker(kafka)
    broker.make_topics()
    yield broker
    broker.mend()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresTestServer]:
    """A real PostgreSQL. A test asks it for a database of its own."""
    with fast_folder(tmp_path_factory.mktemp("postgres")) as folder, postgres_server(folder, _QUIET) as server:
        yield server


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A real object store. A test that stops it starts it again."""
    with object_store(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture(scope="module")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresTestServer]:
    """A PostgreSQL for one file: its tests stop it, or change what belongs to a whole server, such as passwords."""
    with postgres_server(tmp_path_factory.mktemp("own-postgres")) as server:
        yield server
