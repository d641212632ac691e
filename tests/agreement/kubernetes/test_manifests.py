"""deploy/kubernetes without a cluster: the schemas of Kubernetes, and what docker-compose.yaml gives its services."""

import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from stack import env_file
from stack.layout import PROJECT_ROOT
from tests.support.compose import COMPOSE_FILE, Compose
from tests.support.image import ignore_rules, is_ignored, read_stages

BASE = PROJECT_ROOT / "deploy" / "kubernetes"
OLDEST, NEWEST = "1.29", "1.37"  # ReadWriteOncePod is stable from 1.29 on
OF_THE_POD = {"POD_NAME", "PYSPARK_SUBMIT_ARGS"}
LASTING = {"gateway": "gateway", "stream": "stream"}  # containers and the services of compose


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / name).read_text(encoding="utf-8")))


def kustomization() -> dict[str, Any]:
    (found,) = read("kustomization.yaml")
    return found


def resources() -> list[dict[str, Any]]:
    return [resource for name in kustomization()["resources"] for resource in read(name)]


def pods() -> Iterator[dict[str, Any]]:
    for resource in resources():
        if "template" in resource.get("spec", {}):
            yield resource["spec"]["template"]
    yield from read("executor.yaml")


def containers() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for pod in pods() for each in containers_of(pod["spec"])}


def settings() -> dict[str, str]:
    return env_file.read(BASE / "settings.env")


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("env") / ".env"
    env_file.ensure(file)
    return env_file.read(file)


@pytest.fixture(scope="module")
def compose(variables: dict[str, str]) -> Compose:
    return Compose.load(variables, [COMPOSE_FILE])


@pytest.fixture
def schemas() -> ModuleType:
    import kubernetes_validate  # takes 1.4 s, which each process of the tests would spend

    return kubernetes_validate


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_each_resource_keeps_the_schema_of_kubernetes(schemas: ModuleType, version: str) -> None:
    found = [*resources(), *read("executor.yaml")]
    assert len(found) > 10
    for resource in found:
        schemas.validate(resource, version, strict=True)


def test_a_misspelled_field_is_found(schemas: ModuleType) -> None:
    deployment = next(each for each in resources() if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(deployment, NEWEST, strict=True)


def test_kustomize_itself_accepts_the_base(tmp_path: Path) -> None:
    """With kustomize or kubectl on the machine it has the last word."""
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if not shutil.which(command[0]):
        warnings.warn("neither kustomize nor kubectl is on this machine: the base was not built", stacklevel=1)
        return
    shutil.copytree(BASE, tmp_path / "base")
    for name in ("secrets.env", "prepare.env"):
        (tmp_path / "base" / name).write_text("KEY=x\n")
    (tmp_path / "base" / "tokens.json").write_text("[]")
    subprocess.run([*command, str(tmp_path / "base")], check=True, capture_output=True, text=True)


def test_every_file_of_the_kustomization_is_there_and_secrets_are_not_in_git() -> None:
    found = kustomization()
    files = [*found["resources"], *(name for each in found["configMapGenerator"]
                                    for name in (*each.get("files", ()), *each.get("envs", ())))]  # fmt: skip
    assert [name for name in files if not (BASE / name).is_file()] == []
    secret = [name for each in found["secretGenerator"] for name in (*each.get("files", ()), *each.get("envs", ()))]
    assert sorted(secret) == ["prepare.env", "secrets.env", "tokens.json"]
    for name in secret:
        assert f"/deploy/kubernetes/{name}" in (PROJECT_ROOT / ".gitignore").read_text().splitlines()
        assert is_ignored(f"deploy/kubernetes/{name}", ignore_rules())


@pytest.mark.parametrize("name", ["databases", "migrate", "topics", "gateway", "stream"])
def test_a_container_has_the_command_and_the_variables_of_its_service(compose: Compose, name: str) -> None:
    container = containers()[name]
    assert container["command"] == compose.command(name)
    assert container["envFrom"] == [{"configMapRef": {"name": "settings"}}]
    own = {each["name"]: each for each in container.get("env", [])}
    assert settings().keys() | own.keys() - OF_THE_POD == compose.environment(name).keys()
    for secret in secrets_of(container):
        assert own[secret]["valueFrom"]["secretKeyRef"]["key"] == secret
    literal = {name: each["value"] for name, each in own.items() if "value" in each and name not in OF_THE_POD}
    assert literal.items() <= compose.environment(name).items()


def test_the_headers_for_the_collector_are_an_optional_secret_of_gateway_and_stream() -> None:
    name = "OTEL_EXPORTER_OTLP_HEADERS"
    found = {container: each["valueFrom"] for container, its in containers().items()
             for each in its.get("env", ()) if each["name"] == name}  # fmt: skip
    secret = {"secretKeyRef": {"name": "secrets", "key": name, "optional": True}}
    assert found == {"gateway": secret, "stream": secret}


@pytest.mark.parametrize("secret", ["secrets", "prepare"])
def test_the_documented_command_makes_the_secret(variables: dict[str, str], secret: str) -> None:
    written = (PROJECT_ROOT / "docs" / "deployment" / "kubernetes.md").read_text(encoding="utf-8")
    command = re.search(rf"grep -E '(.+)' \.env > deploy/kubernetes/{secret}\.env", written)
    assert command, "docs/deployment/kubernetes.md lacks the command"
    made = {name for name in variables if re.search(command.group(1), f"{name}=")}
    assert made == keys_of(secret) - {"OTEL_EXPORTER_OTLP_HEADERS"}
    assert ("OTEL_EXPORTER_OTLP_HEADERS" in keys_of(secret)) == bool(
        re.search(command.group(1), "OTEL_EXPORTER_OTLP_HEADERS=")
    )


def test_only_the_preparation_has_the_superusers_password() -> None:
    """Its secret is deleted by its name afterwards."""
    assert "POSTGRES_SUPERUSER_PASSWORD" not in keys_of("secrets")
    lasting = [each for each in containers().values() if each["name"] in LASTING]
    assert {name for each in lasting for name in secret_names(each)} == {"secrets"}
    (options,) = [each["options"] for each in kustomization()["secretGenerator"] if each["name"] == "prepare"]
    assert options["disableNameSuffixHash"]


def test_what_the_preparation_needs_is_applied_first() -> None:
    first = {"step": "prepare"}
    generated = [each for kind in ("configMapGenerator", "secretGenerator") for each in kustomization()[kind]]
    labelled = {each["name"] for each in generated if each.get("options", {}).get("labels") == first}
    labelled |= {each["metadata"]["name"] for each in resources() if first.items() <= labels_of(each).items()}
    (job,) = read("prepare.yaml")
    pod = job["spec"]["template"]["spec"]
    needed = {source["configMapRef"]["name"] for each in containers_of(pod) for source in each["envFrom"]}
    needed |= {name for each in containers_of(pod) for name in secret_names(each)}
    assert labelled == {job["metadata"]["name"], kustomization()["namespace"], *needed}


def test_every_gateway_has_the_same_tokens_closed_to_others() -> None:
    (pod,) = (each["spec"]["template"]["spec"] for each in resources() if each["kind"] == "StatefulSet")
    volumes = {each["name"]: each for each in pod["volumes"]}
    (copy,) = pod["initContainers"]
    install, *mode, source, target = copy["command"]
    assert (install, mode, target) == ("install", ["-m", "600"], settings()["GATEWAY_TOKENS_FILE"])
    mounts = {each["mountPath"]: each["name"] for each in copy["volumeMounts"]}
    folder, file = source.rsplit("/", 1)
    secret = volumes[mounts[folder]]["secret"]["secretName"]
    assert {"name": secret, "files": [file]} in kustomization()["secretGenerator"]
    assert "emptyDir" in volumes[mounts[str(Path(target).parent)]]


@pytest.mark.parametrize(("name", "service"), LASTING.items())
def test_probes_ask_what_compose_asks(compose: Compose, name: str, service: str) -> None:
    container, check = containers()[name], compose.services[service]["healthcheck"]["test"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    probes = {kind: container[kind]["httpGet"] for kind in container if kind.endswith("Probe")}
    asked = {f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}" for probe in probes.values()}
    assert check[-1] in asked
    # the stream's health says whether it processes: a restart would not help a server that is down
    assert ("livenessProbe" in probes) == (name == "gateway")
    assert probes["readinessProbe"]["path"] == ("/readyz" if name == "gateway" else "/healthz")


def test_one_stream_runs_at_a_time_and_each_gateway_keeps_its_store(compose: Compose) -> None:
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in resources()}
    stream, gateway = by_kind["Deployment", "stream"]["spec"], by_kind["StatefulSet", "gateway"]["spec"]
    assert (stream["replicas"], stream["strategy"]) == (1, {"type": "Recreate"})
    claims = {each["metadata"]["name"] for each in gateway["volumeClaimTemplates"]}
    mounted = {each["mountPath"]: each["name"] for each in containers()["gateway"]["volumeMounts"]}
    assert mounted[settings()["GATEWAY_FALLBACK_DIR"]] in claims
    assert gateway["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    urls = settings()["GATEWAY_URL"].split(",")
    assert urls == [f"http://gateway-{n}.{gateway['serviceName']}:18080" for n in range(gateway["replicas"])]


def test_names_that_refer_to_each_other_agree() -> None:
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in resources()}
    labels = [pod["metadata"]["labels"] for pod in pods()]
    for (kind, name), resource in by_kind.items():
        match kind:
            case "Service":
                selector = resource["spec"]["selector"]
            case "PodDisruptionBudget":
                selector = resource["spec"]["selector"]["matchLabels"]
            case "Deployment" | "StatefulSet":
                selector = resource["spec"]["selector"]["matchLabels"]
            case _:
                continue
        assert selector in labels, f"{kind} {name} selects no pod"
    assert ("Service", by_kind["StatefulSet", "gateway"]["spec"]["serviceName"]) in by_kind
    binding = by_kind["RoleBinding", "stream"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in by_kind
    account = by_kind["Deployment", "stream"]["spec"]["template"]["spec"]["serviceAccountName"]
    assert [each["name"] for each in binding["subjects"]] == [account]
    generated = {each["name"] for kind in ("configMapGenerator", "secretGenerator") for each in kustomization()[kind]}
    named = {name for container in containers().values() for name in secret_names(container)}
    named |= {source["configMapRef"]["name"] for container in containers().values()
              for source in container.get("envFrom", ())}  # fmt: skip
    for pod in pods():
        for volume in pod["spec"].get("volumes", ()):
            named |= {volume[kind][key] for kind, key in (("configMap", "name"), ("secret", "secretName"))
                      if kind in volume}  # fmt: skip
    assert generated == named


def test_the_executors_of_spark_are_those_that_the_files_describe() -> None:
    defaults = spark_defaults()
    (image,) = kustomization()["images"]
    assert defaults["spark.kubernetes.container.image"] == f"{image['newName']}:{image['newTag']}"
    assert defaults["spark.kubernetes.namespace"] == kustomization()["namespace"]
    assert defaults["spark.kubernetes.authenticate.driver.serviceAccountName"] == "stream"
    folder, file = defaults["spark.kubernetes.executor.podTemplateFile"].rsplit("/", 1)
    mounts = {each["mountPath"]: each["name"] for each in containers()["stream"]["volumeMounts"]}
    assert mounts[folder] == "spark"
    assert file in kustomization()["configMapGenerator"][1]["files"]


def test_pods_run_as_the_images_user_without_privileges() -> None:
    user = re.search(r"useradd --uid (\d+)", " ".join(read_stages()[-1].runs))
    assert user
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert pod["spec"]["securityContext"]["runAsUser"] == int(user.group(1))
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers().values():
        assert container["image"] == kustomization()["images"][0]["name"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}  # fmt: skip


def test_folders_that_processes_write_to_are_volumes() -> None:
    """Every other file system is read-only."""
    for pod in pods():
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        for container in containers_of(pod["spec"]):
            mounted = {each["mountPath"]: volumes.get(each["name"], {}) for each in container["volumeMounts"]}
            if container["name"] != "gateway-tokens":
                assert "emptyDir" in mounted["/tmp"], container["name"]
            if "workingDir" in container:
                assert "emptyDir" in mounted[container["workingDir"]]
    for name in ("STREAM_CHECKPOINT_DIR", "STREAM_STATE_DIR", "SPARK_SCRATCH_DIR"):
        assert settings()[name] in {each["mountPath"] for each in containers()["stream"]["volumeMounts"]}


def test_a_drain_is_not_refused_for_executors() -> None:
    """Kubernetes allows no disruption by maxUnavailable of pods whose owner has no scale, as Spark's driver."""
    (budget,) = (each["spec"] for each in resources()
                 if each["kind"] == "PodDisruptionBudget" and each["metadata"]["name"] == "executor")  # fmt: skip
    assert set(budget) == {"minAvailable", "selector"}
    assert budget["minAvailable"] < int(spark_defaults()["spark.executor.instances"])


def test_the_driver_of_many_months_and_its_traffic_are_protected() -> None:
    defaults = spark_defaults()
    assert "spark.executor.failuresValidityInterval" in defaults  # else lost executors count for ever
    assert defaults["spark.network.crypto.enabled"] == defaults["spark.authenticate"] == "true"
    assert "spark.executor.memoryOverhead" in defaults  # Python workers are outside the heap


def spark_defaults() -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (BASE / "spark-defaults.conf").read_text().splitlines()
                if not line.startswith("#"))  # fmt: skip


def labels_of(resource: Mapping[str, Any]) -> dict[str, str]:
    return dict(resource["metadata"].get("labels", {}))


def containers_of(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def secret_names(container: Mapping[str, Any]) -> set[str]:
    return {each["valueFrom"]["secretKeyRef"]["name"] for each in container.get("env", ())
            if "secretKeyRef" in each.get("valueFrom", {})}  # fmt: skip


def keys_of(secret: str) -> set[str]:
    sources = (each["valueFrom"].get("secretKeyRef", {}) for container in containers().values()
               for each in container.get("env", ()) if "valueFrom" in each)  # fmt: skip
    return {source["key"] for source in sources if source.get("name") == secret}


def secrets_of(container: Mapping[str, Any]) -> set[str]:
    return {each["name"] for each in container.get("env", ()) if re.search(r"_(PASSWORD|TOKEN|SECRET)$", each["name"])}
