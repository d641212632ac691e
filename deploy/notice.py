"""Writes NOTICE, the software that the image redistributes with its licences: `python -m deploy.notice [--check]`.

It is made from the lock files, the environment that they were installed into, and the jars. The image contains it. The
texts of the licences are in the packages and jars. `--check` only compares the file.
"""

import importlib.metadata
import re
import zipfile
from collections.abc import Iterator

from packaging.markers import Marker

from deploy.generated import write_or_check
from stack.errors import StackError
from stack.jars import read_lock
from stack.layout import PROJECT_ROOT, Layout

TARGET = PROJECT_ROOT / "NOTICE"
JAR_SET = "spark-kafka"  # the only one that the Dockerfile copies

# packages whose metadata has no licence; it stands in their repositories
_UNDECLARED = {"openlineage-sql": "Apache-2.0"}
_LOCKED = re.compile(r"^([\w.-]+)==(\S+)(?: ; (.+?))? \\$", re.MULTILINE)
_BASE = re.compile(r"^ARG PYTHON_IMAGE=python:([\d.]+)-(\S+)", re.MULTILINE)
_PLATFORM = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
_HEAD = """\
NOTICE

The image of board-detail-pipeline redistributes the software below. Made by `python -m deploy.notice` from the lock
files; the texts of the licences are in the image, with each package and jar.
"""


def render() -> str:
    """Return the file's text. Raises StackError naming a package or jar whose licence is unknown."""
    parts = [_HEAD, _base(), "Python packages, below /opt/venv\n"]
    parts += [f"{name} {version}: {licence}" for name, version, licence in packages()]
    parts += [f"\nJars, in /opt/jars/{JAR_SET}; Spark's own are in the package pyspark, with licenses/\n", *_jars()]
    return "\n".join(parts) + "\n"


def _base() -> str:
    version, system = _python()
    return (
        f"Python {version} on Debian ({system}), with openjdk-17-jre-headless, procps and tzdata of Debian's.\n"
        "Their licences are in /usr/local/lib/python*/LICENSE.txt and /usr/share/doc/*/copyright.\n"
    )


def _python() -> tuple[str, str]:
    base = _BASE.search((PROJECT_ROOT / "deploy" / "Dockerfile").read_text())
    assert base is not None
    return base.group(1), base.group(2)


def packages() -> Iterator[tuple[str, str, str]]:
    """Yield name, version and licence of each package of the image. Raises StackError if a licence is unknown."""
    version = _python()[0]
    environment = {**_PLATFORM, "python_full_version": version, "python_version": version.rpartition(".")[0]}
    for name, locked, marker in _LOCKED.findall((PROJECT_ROOT / "requirements.lock").read_text()):
        if not marker or Marker(marker).evaluate(environment):
            yield name, locked, licence_of(name)


def licence_of(name: str) -> str:
    """Return the licence that an installed package declares. Raises StackError if it declares none."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError as exc:
        raise StackError(f"{name} is locked and not installed: run `make setup`") from exc
    for expression in metadata.get_all("License-Expression") or []:
        return str(expression)
    classifiers = metadata.get_all("Classifier") or []
    if approved := [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: OSI")]:
        return ", ".join(approved)
    for text in metadata.get_all("License") or []:
        if "\n" not in text:
            return str(text)
    if name in _UNDECLARED:
        return _UNDECLARED[name]
    raise StackError(f"{name} does not say its licence: add it to deploy/notice.py")


def _jars() -> Iterator[str]:
    folder = Layout.of().jars / JAR_SET
    for jar in read_lock():
        if jar.set_name == JAR_SET:
            with zipfile.ZipFile(folder / jar.file_name) as archive:
                licence = _member(archive, "LICENSE")
                if "Apache License" not in licence[:200]:
                    raise StackError(f"{jar.file_name} has another licence than Apache's: add it to deploy/notice.py")
                yield f"{jar.group}:{jar.artifact}:{jar.version}: Apache-2.0. Its notice:\n"
                yield "\n".join(f"    {line}".rstrip() for line in _member(archive, "NOTICE").strip().splitlines())
                yield ""


def _member(archive: zipfile.ZipFile, name: str) -> str:
    for path in (name, f"META-INF/{name}", f"META-INF/{name}.txt"):
        if path in archive.namelist():
            return archive.read(path).decode()
    raise StackError(f"{archive.filename} has no {name}")


if __name__ == "__main__":
    write_or_check("notice", __doc__, TARGET, render)
