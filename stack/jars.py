"""Fetches the jars of Spark's Kafka connector and of the Kafka broker, and verifies their checksums.

It uses the Ivy that pyspark includes, so it needs neither Maven nor a configured repository.
`stack/jars.lock` names every jar and its SHA-256. Standard library only.

    python -m stack.jars fetch FOLDER       fetch and verify the jars, as set-up does
    python -m stack.jars lock               resolve the roots below again and write jars.lock
    python -m stack.jars audit LOCK_FILE…   look up known vulnerabilities; pip-audit does not support jars
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit
from xml.sax.saxutils import quoteattr

from stack.layout import Layout, StackError, one_line_errors
from stack.machine import find_java

_OF_SCHEME = {"http": ("HTTP_PROXY", "ALL_PROXY"), "https": ("HTTPS_PROXY", "ALL_PROXY")}
_EXCEPTED = "NO_PROXY"

LOCK_FILE = Path(__file__).with_name("jars.lock")

KAFKA_VERSION = "4.4.0"
LOG4J_VERSION = "2.26.1"
ROOTS: Mapping[str, tuple[str, ...]] = {
    "spark-kafka": ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
    "kafka-broker": (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
        f"org.apache.logging.log4j:log4j-core:{LOG4J_VERSION}",
        f"org.apache.logging.log4j:log4j-api:{LOG4J_VERSION}",
    ),
}

# Jars that Spark includes must not appear on its class path twice.
_ALREADY_IN_SPARK = "spark-kafka"

OSV = "https://api.osv.dev"
_TIMEOUT_S = 60


def java_options() -> Iterator[str]:
    """Yield Java options for the proxy. They include its password, so do not put them on a command line.

    Raises StackError if a variable is not the address of an HTTP proxy.
    """
    for scheme, names in _OF_SCHEME.items():
        name = next((name for name in names if _value(name)), None)
        if name is not None:
            proxy = _address(name)
            yield f"-D{scheme}.proxyHost={proxy.hostname}"
            yield f"-D{scheme}.proxyPort={proxy.port or 80}"
            if proxy.username:
                # Ivy reads only these two, and uses them for both schemes
                yield f"-Dhttp.proxyUser={unquote(proxy.username)}"
                yield f"-Dhttp.proxyPassword={unquote(proxy.password or '')}"
                yield "-Djdk.http.auth.tunneling.disabledSchemes="  # by default Java sends no password for HTTPS
    excepted = [host for entry in _value(_EXCEPTED).split(",") if entry.strip() for host in _hosts(entry.strip())]
    if excepted:
        yield f"-Dhttp.nonProxyHosts={'|'.join(excepted)}"  # Java uses it for HTTPS too


def _value(name: str) -> str:
    return os.environ.get(name.lower()) or os.environ.get(name, "")


def _address(name: str) -> SplitResult:
    value = _value(name)
    proxy = urlsplit(value if "://" in value else f"http://{value}")
    try:
        is_valid = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise StackError(
            f"{name} is not the address of an HTTP proxy: give http://HOST:PORT, with USER:PASSWORD@ before the host "
            "where the proxy wants them"
        )
    return proxy


def _hosts(entry: str) -> Iterator[str]:
    yield entry.removeprefix(".")
    if not entry.startswith("*"):
        yield f"*.{entry.removeprefix('.')}"


@dataclass(frozen=True, order=True)
class Jar:
    """One artifact of a set, with its checksum."""

    set_name: str
    group: str
    artifact: str
    version: str
    sha256: str = ""

    @property
    def file_name(self) -> str:
        """The name of its file in the set's folder."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock(lock_file: Path = LOCK_FILE) -> list[Jar]:
    """Return the jars of a lock file, which has one per line: set, group:artifact:version, SHA-256."""
    jars = []
    for line in lock_file.read_text().splitlines():
        if line and not line.startswith("#"):
            set_name, coordinates, sha256 = line.split()
            jars.append(_jar(set_name, coordinates, sha256))
    return jars


def ensure(
    layout: Layout,
    spark_jars: Path,
    java_home: Path,
    lock_file: Path = LOCK_FILE,
    require_unused: Callable[[Path], None] = lambda _: None,
) -> None:
    """Make every set match the lock file, fetching only sets that do not. Raises StackError naming the jar.

    `require_unused` is called with a folder before it is replaced, and raises an error if the folder is in use.
    """
    by_set: dict[str, list[Jar]] = {}
    for jar in read_lock(lock_file):
        by_set.setdefault(jar.set_name, []).append(jar)
    for set_name, jars in by_set.items():
        folder = layout.jars / set_name
        if first_difference(folder, jars) is not None:
            require_unused(folder)
            print(f"setup: fetching {len(jars)} jars of {set_name}", flush=True)
            _fetch(layout, folder, jars, spark_jars, java_home)


def first_difference(folder: Path, jars: Iterable[Jar]) -> str | None:
    """Return the name of the first jar that is missing, unexpected or different; None if the folder is as locked."""
    expected = {jar.file_name: jar.sha256 for jar in jars}
    present = {path.name for path in folder.glob("*.jar")}
    for name in sorted(expected.keys() | present):
        if name not in present or name not in expected or sha256(folder / name) != expected[name]:
            return name
    return None


def _fetch(layout: Layout, folder: Path, jars: list[Jar], spark_jars: Path, java_home: Path) -> None:
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    ivy = _Ivy(spark_jars, java_home, layout.log_file("jars"))
    ivy.retrieve(jars, fresh / "[artifact]-[revision].[ext]", transitive=False)
    wrong = first_difference(fresh, jars)
    if wrong is not None:
        shutil.rmtree(fresh)
        raise StackError(
            f"{wrong} is not the file that the lock file names (SHA-256 differs or it is missing): run again to "
            "fetch it anew; if it stays so, do not trust the repository it comes from"
        )
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


@dataclass(frozen=True)
class _Ivy:
    """Runs the Ivy that Spark includes. Its cache is removed after each call, so only verified files remain."""

    spark_jars: Path
    java_home: Path
    log: Path

    def retrieve(self, jars: Iterable[Jar], pattern: Path, transitive: bool) -> None:
        """Download jars to paths of the pattern. Blocks until they are there; raises StackError if one fails."""
        pattern.parent.mkdir(parents=True)
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=pattern.parent.parent) as scratch:
            settings, module = Path(scratch, "settings.xml"), Path(scratch, "ivy.xml")
            settings.write_text(_ivy_settings(Path(scratch), transitive, os.environ.get("MAVEN_MIRROR_URL", "")))
            module.write_text(_ivy_module(jars, transitive))
            options = Path(scratch, "java.options")  # a proxy's password must not appear on a command line
            options.write_text("".join(f"{_quoted(option)}\n" for option in java_options()))
            command = [str(self.java_home / "bin" / "java"), f"@{options}"]
            command += ["-Xmx256m", "-cp", str(_ivy_jar(self.spark_jars))]
            command += ["org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(module)]
            command += ["-retrieve", str(pattern)]
            with self.log.open("w") as log:
                environment = {**os.environ, "LANG": "C.UTF-8"}  # the encoding in which Java reads paths
                result = subprocess.run(
                    command, stdout=log, stderr=subprocess.STDOUT, check=False, cwd=scratch, env=environment
                )
        if result.returncode != 0:
            shutil.rmtree(pattern.parent, ignore_errors=True)
            raise StackError(
                f"fetching jars failed, see {self.log}: check the network and HTTPS_PROXY, "
                "or set MAVEN_MIRROR_URL to a repository you can reach"
            )


def _quoted(option: str) -> str:
    """Quote an option for Java's argument file."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _ivy_settings(cache: Path, transitive: bool, mirror: str) -> str:
    # Without the local Maven cache: Ivy would fail on a pom there whose jar was never downloaded.
    # Without poms and published checksums once jars are locked: they would only add requests.
    root = f" root={quoteattr(mirror)}" if mirror else ""
    lean = "" if transitive else ' usepoms="false" checksums=""'
    return (
        '<ivysettings><settings defaultResolver="central"/>'
        f"<caches defaultCacheDir={quoteattr(str(cache))}/>"
        f'<resolvers><ibiblio name="central" m2compatible="true"{root}{lean}/></resolvers></ivysettings>'
    )


def _ivy_module(jars: Iterable[Jar], transitive: bool) -> str:
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)}"
        f' conf="default-&gt;default" transitive="{str(transitive).lower()}"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="local" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def pyspark_jars(venv: Path) -> Path:
    """Return the folder of Spark's own jars in a virtual environment. Raises StackError if there is none."""
    for folder in venv.glob("lib/python*/site-packages/pyspark/jars"):
        return folder
    raise StackError(f"{venv} has no pyspark: remove .state/venv and run `make setup` again")


def _ivy_jar(spark_jars: Path) -> Path:
    found = sorted(spark_jars.glob("ivy-*.jar"))
    if not found:
        raise StackError(f"no ivy jar in {spark_jars}: remove .state/venv and run `make setup` again")
    return found[-1]


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _jar(set_name: str, coordinates: str, sha256: str = "") -> Jar:
    group, artifact, version = coordinates.split(":")
    return Jar(set_name, group, artifact, version, sha256)


def resolve_lock(
    layout: Layout, spark_jars: Path, java_home: Path, all_roots: Mapping[str, tuple[str, ...]] = ROOTS
) -> list[Jar]:
    """Resolve the roots with their dependencies, and hash the jars. Artifacts that Spark includes are left out."""
    in_spark = {path.name.rpartition("-")[0] for path in spark_jars.glob("*.jar")}
    locked: list[Jar] = []
    with tempfile.TemporaryDirectory() as scratch:
        for set_name, roots in all_roots.items():
            folder = Path(scratch, set_name)
            wanted = [_jar(set_name, root) for root in roots]
            ivy = _Ivy(spark_jars, java_home, layout.log_file("jars"))
            ivy.retrieve(wanted, folder / "[organisation]!![artifact]!![revision].[ext]", transitive=True)
            for path in folder.glob("*.jar"):
                group, artifact, version = path.stem.split("!!")
                if set_name != _ALREADY_IN_SPARK or artifact not in in_spark:
                    locked.append(Jar(set_name, group, artifact, version, sha256(path)))
    return sorted(locked)


def write_lock(lock_file: Path, all_roots: Mapping[str, tuple[str, ...]]) -> None:
    """Resolve the roots and rewrite the lock file."""
    jars = resolve_lock(Layout.of(), pyspark_jars(Path(sys.prefix)), find_java(os.environ), all_roots)
    lines = [f"{jar.set_name} {jar.group}:{jar.artifact}:{jar.version} {jar.sha256}" for jar in jars]
    lock_file.write_text("\n".join(["# Made by `make lock`. Set, artifact, SHA-256.", *lines, ""]))
    print(f"{len(jars)} jars locked in {lock_file}")


def known_vulnerabilities(jars: Iterable[Jar], service: str = OSV) -> Mapping[str, list[str]]:
    """Return ids of known vulnerabilities by group:artifact:version. Raises OSError if the service is unreachable."""
    names = sorted({(f"{jar.group}:{jar.artifact}", jar.version) for jar in jars})
    queries = [{"package": {"ecosystem": "Maven", "name": name}, "version": version} for name, version in names]
    request = urllib.request.Request(  # noqa: S310 - the address is ours
        f"{service}/v1/querybatch", json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        results = json.load(answer)["results"]
    return {
        f"{name}:{version}": [each["id"] for each in result["vulns"]]
        for (name, version), result in zip(names, results, strict=True)
        if result.get("vulns")
    }


def _audit(lock_files: Iterable[Path], service: str) -> int:
    jars = [jar for lock_file in lock_files for jar in read_lock(lock_file)]
    try:
        found = known_vulnerabilities(jars, service)
    except OSError as exc:
        print(f"audit: {service} cannot be reached ({exc}): nothing is known of the jars", file=sys.stderr)
        return 2
    for artifact, ids in found.items():
        print(f"{artifact}: {', '.join(ids)}; see https://osv.dev/vulnerability/{ids[0]}")
    print(f"{len(jars)} jars, {len(found)} of them with known vulnerabilities")
    return 1 if found else 0


def main() -> int:
    """Run the command; `audit` returns 0 if no vulnerability is known, 1 if some are, 2 if OSV is unreachable."""
    parser = argparse.ArgumentParser(prog="python -m stack.jars", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="make a folder match the lock file, with one subfolder per set")
    fetch.add_argument("folder", type=Path)
    commands.add_parser("lock", help="make the lock file again")
    audit = commands.add_parser("audit", help="look up known vulnerabilities of locked jars at https://osv.dev")
    audit.add_argument("lock_files", type=Path, nargs="+")
    audit.add_argument("--service", default=OSV)
    arguments = parser.parse_args()
    with one_line_errors(f"jars {arguments.command}"):
        match arguments.command:
            case "fetch":
                folder = arguments.folder.absolute()
                layout = Layout(root=folder.parent, state=folder.parent, env_file=folder.parent / ".env", jars=folder)
                ensure(layout, pyspark_jars(Path(sys.prefix)), find_java(os.environ))
            case "lock":
                write_lock(LOCK_FILE, ROOTS)
            case "audit":
                return _audit(arguments.lock_files, arguments.service)
    return 0


if __name__ == "__main__":
    sys.exit(main())
