"""Checks of the compose files and deploy/Dockerfile without running a container."""

import re
import subprocess
import warnings
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from stack import env_file, settings_table
from stack.layout import PROJECT_ROOT
from stack.team import write_spark_conf
from tests.compose.engine import OLDEST, compose_version
from tests.support.compose import (
    COMPOSE_FILE,
    COMPOSE_FILES,
    ORDER_DETAIL_FILE,
    Compose,
    MissingVariable,
    parse,
    references,
    texts,
)
from tests.support.compose import generated_variables as make_variables
from tests.support.image import DOCKERFILE, copy_tree, ignore_rules, is_ignored, read_stages

SECRET = re.compile(r"_(PASSWORD|TOKEN|SECRET|KEY|HEADERS)$")
BUILDER = "databases"
DEPLOYMENT = PROJECT_ROOT / "docs" / "deployment" / "compose.md"


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_variables(tmp_path_factory.mktemp("env"))


@pytest.fixture(scope="module")
def compose(variables: dict[str, str]) -> Compose:
    return Compose.load(variables)


def written() -> str:
    return COMPOSE_FILE.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------ the file as a whole


def test_docker_itself_accepts_the_file(tmp_path: Path) -> None:
    """With a Docker Compose that can run the files it has the last word; without it, the tests below know its rules."""
    make_variables(tmp_path)
    if (compose_version() or (0,)) < OLDEST:
        # not a skip: the module's other tests are what is checked then, and the run says so
        warnings.warn("no Docker Compose that is new enough: docker-compose.yaml was not shown to it", stacklevel=1)
        return
    files = [argument for file in COMPOSE_FILES for argument in ("-f", str(file))]
    command = ["docker", "compose", "--env-file", str(tmp_path / ".env"), *files, "config", "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_every_key_is_one_that_compose_knows() -> None:
    known = {"build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck",
             "hostname", "image", "init", "logging", "networks", "ports", "pull_policy", "restart",
             "read_only", "security_opt", "shm_size", "stop_grace_period", "stop_signal", "tmpfs", "ulimits", "user",
             "volumes"}  # fmt: skip
    content = parse(written())
    assert {key for key in content if not key.startswith("x-")} == {
        "services",
        "networks",
        "volumes",
        "secrets",
    }
    unknown = {name: service.keys() - known for name, service in content["services"].items() if service.keys() - known}
    assert not unknown


def test_a_further_pipelines_file_has_only_keys_that_are_merged_as_here() -> None:
    content = parse(ORDER_DETAIL_FILE.read_text(encoding="utf-8"))
    assert content.keys() == {"x-settings", "services", "volumes"}
    keys = {key for service in content["services"].values() for key in service}
    assert keys == {"extends", "environment", "hostname", "volumes", "depends_on"}


def test_every_variable_is_in_the_generated_env_or_has_a_default(variables: dict[str, str]) -> None:
    optional = {name for name, value in variables.items() if not value}
    for reference in _references():
        if reference.name in optional:
            assert reference.operator == ":-", f"{reference.name} is empty in .env: write ${{{reference.name}:-}}"
        elif reference.name in variables:
            assert reference.operator == ":?", f"{reference.name} is in .env: write ${{{reference.name}:?…}}"
        else:
            assert reference.operator == ":-", f"{reference.name} is not in .env and has no default"


def test_every_variable_is_a_setting() -> None:
    assert [each.name for each in _references() if not settings_table.is_setting(each.name)] == []
    assert {each.variable for section in settings_table.SECTIONS for each in section.settings
            if each.reader == "compose"} <= {each.name for each in _references()}  # fmt: skip


def test_every_variable_of_the_env_is_used_unless_containers_have_another_value(variables: dict[str, str]) -> None:
    used = {reference.name for reference in _references()}
    local = {each.variable for each in env_file.lines_of(variables)
             if each.container or isinstance(each.env, str) or each.team or each.reader == "stack"}  # fmt: skip
    assert variables.keys() - used <= local | {"AIRFLOW_HOME"}


@pytest.mark.parametrize("name", [v.variable for v in env_file.lines_of({}) if v.kind.is_secret and callable(v.env)])
def test_nothing_starts_without_a_secret(variables: dict[str, str], name: str) -> None:
    with pytest.raises(MissingVariable, match=name):
        Compose.load({**variables, name: ""})


def test_says_where_to_read_on_when_there_is_no_env_file() -> None:
    with pytest.raises(MissingVariable, match=r"docs/deployment/compose\.md"):
        Compose.load({})
    assert (PROJECT_ROOT / "docs" / "deployment" / "compose.md").is_file()


def test_no_secret_is_written_into_the_file() -> None:
    for name, service in parse(written())["services"].items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert value.startswith("${"), f"{name}: {variable} is written out"
    for text in texts(parse(written())):
        for user_info in re.findall(r"://([^/@\s]+)@", text):
            assert re.fullmatch(r"\w+:\$\{\w+:\?[^}]*\}", user_info), f"a password in {text}"


# ------------------------------------------------------------------------------------------------------ each service


def test_every_image_is_pinned(compose: Compose) -> None:
    for name, service in compose.services.items():
        image, _, tag = service["image"].partition(":")
        assert image
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?(-[\w.-]+)?", tag), f"{name}: {service['image']}"


def test_one_service_builds_our_image_and_nothing_pulls_it(compose: Compose) -> None:
    """Several that build one tag at once are refused by the engine; a registry may have an image of that name."""
    policies = {name: compose.services[name].get("pull_policy") for name in compose.ours()}
    assert policies == dict.fromkeys(compose.ours(), "never") | {BUILDER: "build"}
    assert {name for name, service in compose.services.items() if "build" in service} == {BUILDER}


def test_our_image_has_the_projects_version(compose: Compose, variables: dict[str, str]) -> None:
    version = re.search(r'^version = "(.+)"$', (PROJECT_ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    tags = {compose.services[name]["image"] for name in compose.ours()}
    assert tags == {f"{variables['COMPOSE_PROJECT_NAME']}-pipeline:{version.group(1)}"}


def test_two_clones_share_no_project_volume_or_image(compose: Compose, tmp_path: Path) -> None:
    other = Compose.load(make_variables(tmp_path))
    assert "name" not in compose.raw, "COMPOSE_PROJECT_NAME in .env decides"
    assert all(volume == {} for volume in compose.content["volumes"].values()), "a volume has a name of its own"
    images = [{each.services[name]["image"] for name in each.ours()} for each in (compose, other)]
    assert images[0].isdisjoint(images[1])


def test_limits_of_memory_add_up_to_the_documented_ones(variables: dict[str, str]) -> None:
    compose = Compose.load(variables, [COMPOSE_FILE])
    lasting = [service for name, service in compose.services.items() if name not in compose.once()]
    for which in ("limits", "reservations"):
        total = sum(_gigabytes(service["deploy"]["resources"][which]["memory"]) for service in lasting)
        assert f"{which} of memory add up to {total:g} GB" in " ".join(DEPLOYMENT.read_text().split())


def test_spark_speaks_only_with_those_that_know_the_secret(compose: Compose, variables: dict[str, str]) -> None:
    using = {name for name in compose.services if "SPARK_LOCAL_HOSTNAME" in compose.environment(name)}
    for name in using:
        assert compose.environment(name)["SPARK_CONF_DIR"] == "/etc/spark", name
        assert "spark-conf:/etc/spark:ro" in compose.services[name]["volumes"], name
    writer = compose.services["spark-conf"]
    assert (writer["volumes"], writer["environment"]) == (
        ["spark-conf:/etc/spark"],
        {"SPARK_CONF_DIR": "/etc/spark", "SPARK_AUTH_SECRET": variables["SPARK_AUTH_SECRET"]},
    )
    assert {name for name in compose.services if "SPARK_AUTH_SECRET" in compose.environment(name)} == {"spark-conf"}


def test_sparks_secret_is_in_a_file_of_its_owner(tmp_path: Path) -> None:
    for secret in ("first", "second"):  # at every `docker compose up` again
        write_spark_conf(tmp_path, secret)
    (file,) = tmp_path.iterdir()
    written = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert written == ["spark.authenticate true", "spark.authenticate.secret second"]
    assert file.stat().st_mode & 0o777 == 0o400


def test_no_secret_is_on_a_command_line(compose: Compose, variables: dict[str, str]) -> None:
    secret = {variables[v.variable] for v in env_file.lines_of({}) if v.kind.is_secret and callable(v.env)}
    for name, service in compose.services.items():
        commands = " ".join([*compose.command(name), *service.get("healthcheck", {}).get("test", [])])
        options = " ".join(value for key, value in compose.environment(name).items() if key.endswith("_OPTS"))
        assert not [value for value in secret if value in commands + options], name


def test_every_dependency_can_be_met(compose: Compose) -> None:
    for name, service in compose.services.items():
        for target, dependency in service.get("depends_on", {}).items():
            assert target in compose.services, f"{name} depends on {target}, which is not there"
            match dependency["condition"]:
                case "service_completed_successfully":
                    assert target in compose.once(), f"{name} waits for the end of {target}, which never ends"
                case "service_healthy":
                    assert "healthcheck" in compose.services[target], f"{name} waits for the health of {target}"
                case condition:
                    raise AssertionError(f"{name}: {condition} of {target} decides nothing")


def test_dependencies_have_no_circle(compose: Compose) -> None:
    graph = {name: set(service.get("depends_on", {})) for name, service in compose.services.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert len(order) == len(compose.services)


def test_what_lasts_is_watched_and_started_again(compose: Compose) -> None:
    for name, service in compose.services.items():
        if name in compose.once():
            assert "healthcheck" not in service
            continue
        assert service["restart"] == "unless-stopped", name
        assert {"test", "interval", "timeout", "retries", "start_period"} <= service["healthcheck"].keys(), name
        assert _seconds(service["stop_grace_period"]) >= 30, name
        assert {"limits", "reservations"} <= service["deploy"]["resources"].keys(), name


def test_no_log_fills_the_disk(compose: Compose) -> None:
    for name, service in compose.services.items():
        assert service["logging"]["options"] == {"max-size": "20m", "max-file": "3"}, name


def test_volumes_are_declared_and_used(compose: Compose) -> None:
    mounted = [v.split(":")[0] for s in compose.services.values() for v in s.get("volumes", [])]
    assert set(mounted) == compose.content["volumes"].keys()
    shared = {name for name in mounted if mounted.count(name) > 1}
    on_purpose = {"airflow", "archive", "gateway-tokens", "spark-scratch", "spark-conf", "stream-state"}
    assert shared == on_purpose, "two processes on one folder must be on purpose"


def test_the_gateway_reads_its_tokens_file_and_cannot_write_it(compose: Compose) -> None:
    folder = str(Path(compose.environment("gateway")["GATEWAY_TOKENS_FILE"]).parent)
    assert f"gateway-tokens:{folder}:ro" in compose.services["gateway"]["volumes"]
    assert compose.services["gateway-tokens"]["volumes"] == [f"gateway-tokens:{folder}"]
    written_to = compose.environment("gateway-tokens")["GATEWAY_TOKENS_FILE"]
    assert written_to == compose.environment("gateway")["GATEWAY_TOKENS_FILE"]


def test_networks_are_declared_and_spark_has_one_address(compose: Compose) -> None:
    for name, service in compose.services.items():
        assert set(service["networks"]) <= compose.content["networks"].keys()
        assert "internal" in service["networks"], name
        assert ("published" in service["networks"]) == ("ports" in service), name
        if "SPARK_LOCAL_HOSTNAME" in service.get("environment", {}):
            # with two networks the name would have two addresses, and Spark listens on one of them
            assert service["networks"] == ["internal"], name
            assert service["environment"]["SPARK_LOCAL_HOSTNAME"] == service["hostname"] == name
    assert compose.content["networks"]["internal"] == {"internal": True}


def test_ports_are_published_on_this_machine_only(compose: Compose, variables: dict[str, str]) -> None:
    published = {}
    for name, service in compose.services.items():
        for port in service.get("ports", []):
            address, outside, inside = port.split(":")
            assert address == "127.0.0.1", f"{name}: {port}"
            published[name] = (outside, inside)
    assert published == {
        "postgres": (variables["DATABASE_PORT"], "5432"),
        "gateway": (variables["GATEWAY_PORT"], compose.environment("gateway")["GATEWAY_PORT"]),
        "airflow-api-server": (
            variables["AIRFLOW_PORT"],
            compose.environment("airflow-api-server")["AIRFLOW__API__PORT"],
        ),
    }


def test_containers_have_no_privileges_and_write_to_volumes_and_memory_only(compose: Compose) -> None:
    for name, service in compose.services.items():
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert all("size=" in mount for mount in service["tmpfs"]), f"{name}: memory without a limit"
        if name in compose.ours():
            assert service["init"] is True, f"{name}: nobody would bury its dead children"


# ---------------------------------------------------------------------------------------------------------- the image


def test_the_base_image_is_pinned_to_a_python_we_support(compose: Compose) -> None:
    base = read_stages()[0].base
    assert base == "${PYTHON_IMAGE}"
    (default,) = re.findall(r"^ARG PYTHON_IMAGE=(.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert re.fullmatch(r"python:3\.1[12]\.\d+-slim-bookworm", default)
    assert compose.services[BUILDER]["build"]["args"] == {"PYTHON_IMAGE": default}
    assert {stage.base for stage in read_stages()[1:]} <= {"scratch", *(stage.name for stage in read_stages())}


def test_the_image_runs_as_an_ordinary_user_who_owns_the_data(compose: Compose) -> None:
    final = read_stages()[-1]
    assert final.user == "pipeline"
    made = " ".join(final.runs)
    for name, service in compose.services.items():
        for volume in service.get("volumes", []) if name in compose.ours() else []:
            folder = volume.split(":")[1]
            assert f" {folder} " in f"{made} ", f"{name}: {folder} would belong to root"


def test_everything_copied_exists_and_code_comes_last(tmp_path: Path) -> None:
    stages = read_stages()
    for number, stage in enumerate(stages):
        copy_tree(stage, tmp_path / str(number))
    for origin, _ in stages[-1].copies_from:
        assert origin in {stage.name for stage in stages[:-1]}
    before_the_code = [source for stage in stages[:-1] for copy in stage.copies for source in copy.sources]
    assert not {"include", "spark_jobs", "dags", "plugins", "."} & set(before_the_code), "code would reinstall all"


@pytest.mark.parametrize("path", [".env", ".state/venv/x", ".git/config", "tests/conftest.py", "stack/__pycache__/x"])
def test_secrets_data_and_history_do_not_go_to_the_builder(path: str) -> None:
    assert is_ignored(path, ignore_rules())


def test_addresses_that_may_hold_passwords_are_secrets_of_the_build(compose: Compose) -> None:
    build = compose.services[BUILDER]["build"]
    assert build["args"].keys() == {"PYTHON_IMAGE"}
    assert {compose.content["secrets"][name]["environment"] for name in build["secrets"]} == {
        "PIP_INDEX_URL",
        "MAVEN_MIRROR_URL",
    }
    arguments = re.findall(r"^ARG (\w+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert arguments == ["PYTHON_IMAGE"]
    runs = " ".join(run for stage in read_stages() for run in stage.runs)
    for name in build["secrets"]:
        assert f"--mount=type=secret,id={name} " in runs
        assert f"/run/secrets/{name}" in runs


# -------------------------------------------------------------------------------------------------------------- helpers


def _gigabytes(memory: str) -> float:
    return int(memory[:-1]) / {"g": 1, "m": 1024}[memory[-1]]


def _references() -> list[Any]:
    contents = [parse(file.read_text(encoding="utf-8")) for file in COMPOSE_FILES]
    return [reference for text in texts(contents) for reference in references(text)]


def _seconds(duration: str) -> int:
    match = re.fullmatch(r"(\d+)s", duration)
    assert match, duration
    return int(match.group(1))
