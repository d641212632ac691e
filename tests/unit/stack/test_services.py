import configparser
from pathlib import Path

import pytest

from include.runtime.kinds import PORT
from stack import env_file
from stack.kafka import KafkaBroker
from stack.layout import Layout, StackError
from stack.run_service import prepare
from stack.services import Job, Service, declare, needed_by, stop_order
from stack.supervisor import Supervisor


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    env_file.ensure(tmp_path / ".env")
    return env_file.read(tmp_path / ".env")


@pytest.fixture
def two(tmp_path: Path) -> dict[str, str]:
    env_file.ensure(tmp_path / "two", {"PIPELINES": "board_detail,order_detail"})
    return env_file.read(tmp_path / "two")


def rendered(folder: Path, settings: dict[str, str]) -> configparser.RawConfigParser:
    services = [node for node in declare(settings) if isinstance(node, Service)]
    parser = configparser.RawConfigParser()
    parser.read_string(Supervisor(Layout.of(state=folder, env_file=folder / ".env")).render(services))
    return parser


def test_dependencies_come_first_and_exist(settings: dict[str, str]) -> None:
    seen: set[str] = set()
    for node in declare(settings):
        assert seen.issuperset(node.depends_on), node.name
        seen.add(node.name)


def test_needed_by_adds_what_a_service_depends_on(settings: dict[str, str]) -> None:
    names = [node.name for node in needed_by(declare(settings), ("gateway",))]
    assert names == ["postgres", "kafka", "databases", "migrate", "topics", "gateway"]
    assert [node.name for node in needed_by(declare(settings), ("kafka",))] == ["kafka"]


@pytest.mark.parametrize("name", ["nothing", "migrate"])
def test_needed_by_refuses_what_is_no_service(settings: dict[str, str], name: str) -> None:
    with pytest.raises(StackError, match=f"no service is called {name}"):
        needed_by(declare(settings), (name,))


def test_nothing_stops_before_what_depends_on_it(settings: dict[str, str]) -> None:
    groups = stop_order(declare(settings))
    assert set(groups[-1]) == {"postgres", "kafka"}
    assert {"gateway", "stream", "airflow-scheduler"} <= set(groups[0])


def test_external_services_are_watched_and_not_run(settings: dict[str, str]) -> None:
    nodes = declare({**settings, "STACK_EXTERNAL": "kafka, postgres"})
    assert [node.name for node in nodes if isinstance(node, Service) and node.external] == ["postgres", "kafka"]
    assert not {"kafka", "postgres"}.intersection(name for group in stop_order(nodes) for name in group)


def test_unknown_external_service_is_named(settings: dict[str, str]) -> None:
    with pytest.raises(StackError, match="redis"):
        declare({**settings, "STACK_EXTERNAL": "redis"})


def test_queries_of_the_stream_run_as_one_service_or_as_two_with_a_port_each(
    settings: dict[str, str], tmp_path: Path
) -> None:
    def launched(processes: str) -> dict[str, tuple[list[str], list[str]]]:
        changed = {**settings, "STREAM_PROCESSES": processes}
        services = [each for each in declare(changed) if isinstance(each, Service) and each.name.startswith("stream")]
        layout = Layout.of(state=tmp_path)
        return {each.name: (prepare(each.name, layout, changed).command[3:], [*each.ports]) for each in services}

    assert launched("1") == {"stream": (["stream", "run"], ["STREAM_METRICS_PORT"])}
    assert launched("2") == {
        "stream-join": (["stream", "run", "--query", "join"], ["STREAM_METRICS_PORT"]),
        "stream-serve": (["stream", "run", "--query", "serve"], ["STREAM_SERVE_METRICS_PORT"]),
    }
    with pytest.raises(StackError, match=r"STREAM_PROCESSES='3' in \.env: use one of 1, 2"):
        declare({**settings, "STREAM_PROCESSES": "3"})


def test_each_pipeline_has_a_migration_and_a_stream_of_its_own(two: dict[str, str], tmp_path: Path) -> None:
    nodes = {node.name: node for node in declare(two)}
    assert nodes["migrate"].depends_on == ("databases",)
    assert nodes["migrate-order-detail"].depends_on == ("migrate",)
    assert nodes["gateway"].depends_on == ("migrate", "topics")
    assert nodes["stream"].depends_on == ("migrate", "topics")
    orders = nodes["stream-order-detail"]
    assert orders.depends_on == ("migrate-order-detail", "topics")
    assert isinstance(orders, Service)
    assert orders.ports == {"ORDER_DETAIL__STREAM_METRICS_PORT": int(two["ORDER_DETAIL__STREAM_METRICS_PORT"])}
    assert orders.address == f"http://127.0.0.1:{two['ORDER_DETAIL__STREAM_METRICS_PORT']}"
    assert "stream-order-detail" in stop_order([*nodes.values()])[0]


def test_each_process_is_told_its_pipeline(two: dict[str, str], tmp_path: Path) -> None:
    settings = {**two, "STREAM_PROCESSES": "2", "GATEWAY_TOKENS_FILE": str(tmp_path / "tokens.json")}

    def launched(name: str, changed: dict[str, str]) -> tuple[str, list[str]]:
        launch = prepare(name, Layout.of(state=tmp_path), {**settings, **changed})
        return launch.variables["PIPELINE"], launch.command[6:]

    assert launched("stream-serve", {}) == ("board_detail", ["serve"])
    assert launched("stream-order-detail-join", {}) == ("order_detail", ["join"])
    assert launched("gateway", {})[0] == "board_detail"
    assert launched("gateway", {"PIPELINES": "order_detail,board_detail"})[0] == "board_detail"
    assert launched("gateway", {"PIPELINES": "order_detail"})[0] == "order_detail"


@pytest.mark.parametrize("value", ["", "port", "0", "65536"])
def test_bad_port_is_named(settings: dict[str, str], value: str) -> None:
    with pytest.raises(StackError, match="GATEWAY_PORT"):
        declare({**settings, "GATEWAY_PORT": value})


def test_every_service_has_a_deadline_and_a_port_is_asked_of_one_only(two: dict[str, str]) -> None:
    settings = {**two, "STREAM_PROCESSES": "2"}
    nodes = declare(settings)
    assert all(isinstance(node, Job | Service) and node.deadline_s > 0 for node in nodes)
    asked = [name for node in nodes if isinstance(node, Service) for name in node.ports]
    assert sorted(asked) == sorted(each.variable for each in env_file.lines_of(settings) if each.kind is PORT)


def test_configuration_runs_each_service_and_holds_no_secret(tmp_path: Path, settings: dict[str, str]) -> None:
    parser = rendered(tmp_path, settings)
    programs = {section.removeprefix("program:") for section in parser.sections() if section.startswith("program:")}
    assert programs == {node.name for node in declare(settings) if isinstance(node, Service)}
    assert parser["program:postgres"]["stopsignal"] == "INT"
    assert all(parser[f"program:{name}"]["autostart"] == "false" for name in programs)
    secrets = {settings[each.variable] for each in env_file.lines_of({}) if each.kind.is_secret and callable(each.env)}
    values = " ".join(value for section in parser.sections() for value in parser[section].values())
    assert not [secret for secret in secrets if secret in values]


def test_percent_sign_and_space_in_a_path_survive(tmp_path: Path, settings: dict[str, str]) -> None:
    folder = tmp_path / "a folder 100%"
    parser = rendered(folder, settings)
    assert "100%%" in parser["supervisord"]["logfile"]
    assert f"'{tmp_path}/a folder 100%%'" in parser["program:kafka"]["command"]


def test_socket_moves_when_the_path_is_too_long(tmp_path: Path) -> None:
    short, long = Layout.of(state=Path("/srv/p/.state")), Layout.of(state=Path("/srv") / ("x" * 120))
    assert Supervisor(short).socket.parent == short.run
    assert len(str(Supervisor(long).socket)) < 100
    assert Supervisor(long).socket != Supervisor(Layout.of(state=Path("/srv") / ("y" * 120))).socket


def test_broker_listens_on_loopback_only_and_makes_no_topic_by_itself(tmp_path: Path) -> None:
    properties = KafkaBroker(tmp_path, tmp_path, tmp_path, port=1, controller_port=2).properties()
    assert properties["auto.create.topics.enable"] == "false"
    addresses = properties["listeners"].split(",") + properties["advertised.listeners"].split(",")
    assert all("//127.0.0.1:" in address for address in addresses)


def test_kafka_of_the_stack_is_known_by_its_cluster_and_yours_is_not(settings, tmp_path):
    layout = Layout.of(state=tmp_path)
    healths = [
        next(node.health for node in declare(found, layout) if isinstance(node, Service) and node.name == "kafka")
        for found in (settings, {**settings, "STACK_EXTERNAL": "kafka"})
    ]
    assert [health.data for health in healths] == [layout.kafka / "data", None]
