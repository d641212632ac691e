"""One-shot jobs and health checks of the team deployment's containers: `python -m stack.team COMMAND`. Idempotent.

The functions are those of the local stack. Modules are imported where they are used: a health check runs every few
seconds, and `bill` runs in the image's build, without the product.

`bill` adds jars to the image's bill of materials, which is CycloneDX, as `cyclonedx-py environment` has written it of
the image's packages. NOTICE is written beside it: the software that the image redistributes, with its licences. Neither
lists Debian's packages, nor the jars inside the package pyspark: a scanner of images finds those.
"""

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stack.jars import Jar, read_lock
from stack.layout import PROJECT_ROOT, StackError, one_line_errors, write_private

JAR_SET = "spark-kafka"  # the only one that the Dockerfile copies
# packages whose metadata has no licence; it stands in their repositories
_UNDECLARED = {"openlineage_sql": "Apache-2.0", "protobuf": "BSD-3-Clause"}
_HEAD = """\
NOTICE

This image redistributes the software below, and Python, OpenJDK, procps and tzdata on Debian. The texts of the licences
are in the image: in each package and jar, in /usr/local/lib/python*/LICENSE.txt and in /usr/share/doc/*/copyright.

Python packages, below /opt/venv; Spark's own jars are in the package pyspark, with licenses/
"""


def main() -> int:
    """Run the command; returns 0, or 1 after a line that says what is wrong, which `docker inspect` shows too."""
    arguments = _parser().parse_args()
    with one_line_errors(arguments.command):
        match arguments.command:
            case "bill":
                write_bill(arguments.bill, arguments.jars)
            case "health":
                if reason := _unhealthy_reason(arguments.url, arguments.component):
                    print(reason)
                    return 1
            case job:
                print(_run(job))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack.team", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("databases", help="create the databases and first roles")
    commands.add_parser("gateway-tokens", help="write the gateway's tokens file, which has hashes, never the tokens")
    commands.add_parser("spark-conf", help="write spark-defaults.conf with the secret of Spark's processes")
    commands.add_parser("airflow-init", help="migrate Airflow's database, make its pool, renew its password file")
    health = commands.add_parser("health", help="exit with 0 if the response is 200 or, with a component of Airflow, "
        "if the API server reports a heartbeat of it")  # fmt: skip
    health.add_argument("url")
    health.add_argument("component", nargs="?")
    bill = commands.add_parser("bill", help="add jars to the image's bill of materials and write NOTICE beside it")
    bill.add_argument("bill", type=Path)
    bill.add_argument("jars", type=Path, help="the folder that `python -m stack.jars fetch` filled")
    return parser


def _run(job: str) -> str:
    """Run a one-shot job; returns what is there now. Raises StackError if a variable is missing, or as the job does."""
    match job:
        case "databases":
            from stack.jobs import create_databases

            create_databases(_variables("PIPELINES", "DATABASE_HOST", "DATABASE_PORT", "DATABASE_NAME",
                "POSTGRES_SUPERUSER_PASSWORD", "DB_OWNER_PASSWORD", "DB_AIRFLOW_PASSWORD"))  # fmt: skip
            return "databases and their owners are there"
        case "gateway-tokens":
            from stack.run_service import write_gateway_tokens

            write_gateway_tokens(_variables("GATEWAY_TOKENS_FILE", "GATEWAY_TOKEN", "GATEWAY_ADMIN_TOKEN"))
            return "the gateway's tokens file is there"
        case "spark-conf":
            variables = _variables("SPARK_CONF_DIR", "SPARK_AUTH_SECRET")
            write_spark_conf(Path(variables["SPARK_CONF_DIR"]), variables["SPARK_AUTH_SECRET"])
            return "Spark's configuration is there"
        case _:
            from stack.airflow_env import USERS, write_password_file

            passwords = [f"AIRFLOW_{user.upper()}_PASSWORD" for user in USERS]
            write_password_file(_variables("AIRFLOW_HOME", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", *passwords))
            from include.airflow_support.init import prepare  # importing Airflow reads its settings, creates its home

            prepare()
            return "Airflow's database is migrated, its pool and password file are there"


def _variables(*required: str) -> Mapping[str, str]:
    """Return the process's environment. Raises StackError naming the required variables that are not set."""
    missing = [name for name in required if not os.environ.get(name)]
    if missing:
        raise StackError(f"{', '.join(missing)} is not set; docker-compose.yaml takes it from .env")
    return os.environ


def _unhealthy_reason(url: str, component: str | None) -> str | None:
    from include.runtime.environment_reader import EnvironmentReader
    from include.runtime.tls import ClientTls
    from stack.health import probe
    from stack.services import AirflowHealth, HttpHealth

    if component:
        return probe(AirflowHealth(url, component))
    return probe(HttpHealth(url, ClientTls.from_environment(EnvironmentReader(os.environ))))


def write_spark_conf(folder: Path, secret: str) -> None:
    """Write `deploy/spark-defaults.conf` with the secret, for its owner alone, into the folder.

    Master, workers, drivers and executors read it from a volume. On a command line, where Spark's other settings are,
    every user of the host could read the secret.
    """
    defaults = (PROJECT_ROOT / "deploy" / "spark-defaults.conf").read_text(encoding="utf-8")
    write_private(folder / "spark-defaults.conf", f"{defaults}spark.authenticate.secret {secret}\n", mode=0o400)


def write_bill(path: Path, jars_folder: Path) -> None:
    """Add jars to the bill in place and write NOTICE. Raises StackError naming what has no known licence."""
    bill, folder = json.loads(path.read_text()), jars_folder / JAR_SET
    jars = [jar for jar in read_lock() if jar.set_name == JAR_SET]
    lines = [f"{each['name']} {each['version']}: {_licence(each)}" for each in bill["components"]]
    lines += [f"\nJars, in /opt/jars/{JAR_SET}\n", *(line for jar in jars for line in _notice(jar, folder))]
    bill["components"] += map(_component, jars)
    path.write_text(json.dumps(bill, indent=1) + "\n")
    path.with_name("NOTICE").write_text(_HEAD + "\n" + "\n".join(lines) + "\n")


def _licence(package: dict[str, Any]) -> str:
    found = [each.get("expression") or each["license"] for each in package.get("licenses", [])]
    # identifiers of SPDX where there are any, for the classifiers beside them say the same less precisely
    known = [each if isinstance(each, str) else each["id"] for each in found if isinstance(each, str) or "id" in each]
    named = [each["name"].rpartition(" :: ")[2] for each in found if isinstance(each, dict) and "name" in each]
    if texts := known or named or [*filter(None, [_UNDECLARED.get(package["name"])])]:
        return ", ".join(texts)
    raise StackError(f"{package['name']} does not say its licence: add it to stack/team.py")


def _component(jar: Jar) -> dict[str, Any]:
    url = f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}"
    return {
        "type": "library", "group": jar.group, "name": jar.artifact, "version": jar.version, "purl": url,
        "bom-ref": url, "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }  # fmt: skip


def _notice(jar: Jar, folder: Path) -> Iterator[str]:
    with zipfile.ZipFile(folder / jar.file_name) as archive:
        if "Apache License" not in _member(archive, "LICENSE")[:200]:
            raise StackError(f"{jar.file_name} has another licence than Apache's: add it to stack/team.py")
        yield f"{jar.group}:{jar.artifact}:{jar.version}: Apache-2.0. Its notice:\n"
        yield from (f"    {line}".rstrip() for line in _member(archive, "NOTICE").strip().splitlines())
        yield ""


def _member(archive: zipfile.ZipFile, name: str) -> str:
    for path in (name, f"META-INF/{name}", f"META-INF/{name}.txt"):
        if path in archive.namelist():
            return archive.read(path).decode()
    raise StackError(f"{archive.filename} has no {name}")


if __name__ == "__main__":
    sys.exit(main())
