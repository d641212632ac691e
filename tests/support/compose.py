"""The compose files without Docker: merged and with variables filled in as compose does, services as data."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from stack import env_file
from stack.layout import PROJECT_ROOT

BROKERS = ("kafka-1", "kafka-2", "kafka-3")
COMPOSE_FILE = PROJECT_ROOT / "docker-compose.yaml"
ORDER_DETAIL_FILE = PROJECT_ROOT / "docker-compose.order_detail.yaml"  # a further pipeline
COMPOSE_FILES = (COMPOSE_FILE, ORDER_DETAIL_FILE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")


class MissingVariable(Exception):
    """A variable with :? is not set; compose would refuse to start and show its message."""


@dataclass(frozen=True)
class Reference:
    """One ${NAME} of the file: how it is written, and its default or message."""

    name: str
    operator: str
    argument: str


def generated_variables(folder: Path) -> dict[str, str]:
    """The variables of a new `.env` of two pipelines, made by the same code as a user's."""
    file = folder / ".env"
    env_file.ensure(file, {"PIPELINES": "board_detail,order_detail"})
    return env_file.read(file)


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """The text with its references filled in. Raises MissingVariable."""
    parts = []
    for piece in _pieces(text):
        parts.append(piece if isinstance(piece, str) else _value(piece, variables))
    return "".join(parts)


def references(text: str) -> Iterator[Reference]:
    """Every reference, those inside another's default too."""
    for piece in _pieces(text):
        if isinstance(piece, Reference):
            yield piece
            yield from references(piece.argument)


def _value(reference: Reference, variables: Mapping[str, str]) -> str:
    value = variables.get(reference.name)
    is_set = bool(value) if reference.operator.startswith(":") else value is not None
    match reference.operator.lstrip(":"):
        case "-" if not is_set:
            return interpolate(reference.argument, variables)
        case "?" if not is_set:
            raise MissingVariable(f"{reference.name}: {reference.argument}")
        case "+":
            return interpolate(reference.argument, variables) if is_set else ""
        case _:
            return value or ""


def _pieces(text: str) -> Iterator[str | Reference]:
    position = 0
    while (dollar := text.find("$", position)) >= 0:
        yield text[position:dollar]
        if text.startswith("$$", dollar):
            yield "$"
            position = dollar + 2
        elif text.startswith("${", dollar):
            end = _closing_brace(text, dollar + 2)
            yield _reference(text[dollar + 2 : end])
            position = end + 1
        else:
            name = _NAME.match(text, dollar + 1)
            assert name, f"a lone $ in {text!r}"
            yield Reference(name.group(), "", "")
            position = name.end()
    yield text[position:]


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for position in range(start, len(text)):
        if text.startswith("${", position):
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
    raise AssertionError(f"${{ without }} in {text!r}")


def _reference(inside: str) -> Reference:
    name = _NAME.match(inside)
    assert name, f"${{{inside}}} names no variable"
    rest = inside[name.end() :]
    for operator in _OPERATORS:
        if rest.startswith(operator):
            return Reference(name.group(), operator, rest.removeprefix(operator))
    assert not rest, f"${{{inside}}} is not a form compose knows"
    return Reference(name.group(), "", "")


def texts(node: Any) -> Iterator[str]:
    """Every text value of a parsed file; keys are not interpolated by compose."""
    match node:
        case str():
            yield node
        case dict():
            for value in node.values():
                yield from texts(value)
        case list():
            for value in node:
                yield from texts(value)


@cache
def parse(text: str) -> dict[str, Any]:
    """The file as written, anchors and merges resolved, references left.

    Do not change the answer: it is kept for the next call. A key written twice in one mapping is an error, as it is
    for compose; YAML's own loader would drop the first.
    """
    root = yaml.compose(text, yaml.SafeLoader)
    assert root is not None
    _refuse_doubled_keys(root)
    parsed = yaml.safe_load(text)
    assert isinstance(parsed, dict)
    return parsed


def _refuse_doubled_keys(node: yaml.Node) -> None:
    if isinstance(node, yaml.MappingNode):
        keys = [key.value for key, _ in node.value]
        doubled = {key for key in keys if keys.count(key) > 1}
        assert not doubled, f"twice in one mapping: {doubled}, {node.start_mark}"
        for _, value in node.value:
            _refuse_doubled_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_doubled_keys(value)


@dataclass(frozen=True)
class Compose:
    """The files as compose would run them with these variables."""

    raw: dict[str, Any]
    content: dict[str, Any]

    @classmethod
    def load(cls, variables: Mapping[str, str], files: Sequence[Path] = COMPOSE_FILES) -> "Compose":
        """Raises MissingVariable for a variable that must be set and is not."""
        raw: dict[str, Any] = {}
        for file in files:
            raw = _merged(raw, _extended(parse(file.read_text(encoding="utf-8")), file.parent))
        return cls(raw, _filled(raw, variables))

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        """Every service by name."""
        services = self.content["services"]
        assert isinstance(services, dict)
        return services

    def environment(self, service: str) -> dict[str, str]:
        """The variables the service is given, beyond its image's."""
        environment = self.services[service].get("environment", {})
        assert all(isinstance(value, str) for value in environment.values()), f"{service}: a value is not text"
        return dict(environment)

    def command(self, service: str) -> list[str]:
        """The service's command; empty when its image decides."""
        command = self.services[service].get("command", [])
        assert isinstance(command, list)
        return [str(part) for part in command]

    def ours(self) -> set[str]:
        """Services of the project's own image."""
        return {name for name, service in self.services.items() if service.get("init")}

    def once(self) -> set[str]:
        """Services that end by themselves."""
        return {name for name, service in self.services.items() if service["restart"] == "no"}


def _extended(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The file with each service's `extends` replaced by the service of the other file, which it is merged into."""
    services = dict(content["services"])
    for name, service in services.items():
        if "extends" in service:
            own = {key: value for key, value in service.items() if key != "extends"}
            base = parse((folder / service["extends"]["file"]).read_text(encoding="utf-8"))["services"]
            services[name] = _merged(base[service["extends"]["service"]], own)
    return {**content, "services": services}


def _merged(base: Any, override: Any) -> Any:
    """Merge as compose does, for the keys of a further pipeline's file: mappings by key, volumes by their folder."""
    match base, override:
        case dict(), dict():
            return {**base, **{key: _merged(base.get(key), value) for key, value in override.items()}}
        case list(), list():
            by_folder = {volume.split(":")[1]: volume for volume in (*base, *override)}
            return list(by_folder.values())
        case _:
            return override


def _filled(node: Any, variables: Mapping[str, str]) -> Any:
    match node:
        case str():
            return interpolate(node, variables)
        case dict():
            return {key: _filled(value, variables) for key, value in node.items()}
        case list():
            return [_filled(value, variables) for value in node]
        case _:
            return node


def broker_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """The properties that the image makes of the variables; `make compose-test` compares them with what Kafka wrote."""
    not_properties = {"KAFKA_HEAP_OPTS", "CLUSTER_ID"}
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name not in not_properties
    }
