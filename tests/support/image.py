"""deploy/Dockerfile without Docker: its instructions as data, and the tree of files the image would hold."""

import fnmatch
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from stack.layout import PROJECT_ROOT

DOCKERFILE = PROJECT_ROOT / "deploy" / "Dockerfile"
IGNORE_FILE = PROJECT_ROOT / ".dockerignore"


@dataclass(frozen=True)
class Copy:
    """A COPY from the build context."""

    sources: tuple[str, ...]
    target: str


@dataclass
class Stage:
    """One FROM with its instructions."""

    base: str
    name: str
    environment: dict[str, str] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    copies_from: list[tuple[str, str]] = field(default_factory=list)  # stage, path there
    runs: list[str] = field(default_factory=list)
    workdir: str = "/"
    user: str = "root"


def read_stages(file: Path = DOCKERFILE) -> list[Stage]:
    """The stages, in order. A stage built on another begins with its environment, folder and user."""
    stages: list[Stage] = []
    for line in _logical_lines(file.read_text(encoding="utf-8")):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            parent = next((each for each in stages if each.name == base), None)
            inherited = (dict(parent.environment), parent.workdir, parent.user) if parent else ({}, "/", "root")
            stages.append(Stage(base, name, inherited[0], workdir=inherited[1], user=inherited[2]))
            continue
        if instruction == "ARG":  # the base image
            continue
        stage = stages[-1]
        match instruction:
            case "ENV":
                stage.environment |= dict(part.split("=", 1) for part in shlex.split(rest))
            case "COPY":
                flags = [part for part in rest.split() if part.startswith("--")]
                *sources, target = [part for part in rest.split() if not part.startswith("--")]
                origin = next((flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")), None)
                if origin:
                    stage.copies_from += [(origin, source) for source in sources]
                else:
                    stage.copies.append(Copy(tuple(sources), target))
            case "RUN":
                stage.runs.append(rest)
            case "WORKDIR":
                stage.workdir = rest
            case "USER":
                stage.user = rest
            case "CMD":
                pass
            case _:
                raise AssertionError(f"{instruction}: teach tests/support/image.py this instruction")
    return stages


def _logical_lines(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [re.sub(r"\s+", " ", line).strip() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]


def is_ignored(path: str, rules: list[str]) -> bool:
    """True if .dockerignore excludes this path. The last rule that matches it or a folder above it decides."""
    ignored = False
    parts = path.split("/")
    prefixes = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    for rule in rules:
        pattern = rule.removeprefix("!")
        if any(_fits(prefix, pattern) for prefix in prefixes):
            ignored = not rule.startswith("!")
    return ignored


def _fits(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return _fits(path, pattern[3:]) or any(
            _fits(path[i + 1 :], pattern[3:]) for i, c in enumerate(path) if c == "/"
        )
    return path.count("/") == pattern.count("/") and fnmatch.fnmatch(path, pattern)


def ignore_rules(file: Path = IGNORE_FILE) -> list[str]:
    """The rules, comments left out."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def copy_tree(stage: Stage, root: Path, context: Path = PROJECT_ROOT) -> Path:
    """Put what the stage copies from the build context below `root`, as if that were /; returns the stage's folder.

    Raises AssertionError for a source that is not there or that .dockerignore keeps out.
    """
    rules = ignore_rules()
    for copy in stage.copies:
        for source in copy.sources:
            assert (context / source).exists(), f"COPY {source}: there is no such file or folder"
            assert not is_ignored(source, rules), f"COPY {source}: .dockerignore keeps it out of the build"
            _copy(source, root / stage.workdir.lstrip("/"), root, copy.target, context, rules)
    return root / stage.workdir.lstrip("/")


def _copy(source: str, workdir: Path, root: Path, target: str, context: Path, rules: list[str]) -> None:
    destination = root / target.lstrip("/") if target.startswith("/") else workdir / target
    files = [context / source] if (context / source).is_file() else sorted((context / source).rglob("*"))
    for file in files:
        relative = file.relative_to(context).as_posix()
        if not file.is_file() or is_ignored(relative, rules):
            continue
        if (context / source).is_file():
            into = destination / file.name if target.endswith("/") else destination
        else:
            into = destination / file.relative_to(context / source)
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, into)
