"""Adds jars to the image's bill of materials and writes NOTICE: `python -m stack.team.bill sbom.cdx.json /opt/jars`.

The bill is CycloneDX, as `cyclonedx-py environment` has written it of the image's packages. NOTICE is written beside
it: the software that the image redistributes, with its licences. Neither lists Debian's packages, nor the jars inside
the package pyspark: a scanner of images finds those.
"""

import argparse
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stack.errors import StackError, one_line_errors
from stack.jars import Jar, read_lock

JAR_SET = "spark-kafka"  # the only one that the Dockerfile copies
# packages whose metadata has no licence; it stands in their repositories
_UNDECLARED = {"openlineage_sql": "Apache-2.0", "protobuf": "BSD-3-Clause"}
_HEAD = """\
NOTICE

This image redistributes the software below, and Python, OpenJDK, procps and tzdata on Debian. The texts of the licences
are in the image: in each package and jar, in /usr/local/lib/python*/LICENSE.txt and in /usr/share/doc/*/copyright.

Python packages, below /opt/venv; Spark's own jars are in the package pyspark, with licenses/
"""


@one_line_errors("bill")
def main() -> None:
    """Change the bill in place and write NOTICE; exits with 1 after one line that names what has no known licence."""
    parser = argparse.ArgumentParser(prog="python -m stack.team.bill", description=__doc__)
    parser.add_argument("bill", type=Path)
    parser.add_argument("jars", type=Path, help="the folder that stack.team.fetch_jars filled")
    arguments = parser.parse_args()
    bill, folder = json.loads(arguments.bill.read_text()), arguments.jars / JAR_SET
    jars = [jar for jar in read_lock() if jar.set_name == JAR_SET]
    lines = [f"{each['name']} {each['version']}: {_licence(each)}" for each in bill["components"]]
    lines += [f"\nJars, in /opt/jars/{JAR_SET}\n", *(line for jar in jars for line in _notice(jar, folder))]
    bill["components"] += map(_component, jars)
    arguments.bill.write_text(json.dumps(bill, indent=1) + "\n")
    arguments.bill.with_name("NOTICE").write_text(_HEAD + "\n" + "\n".join(lines) + "\n")


def _licence(package: dict[str, Any]) -> str:
    found = [each.get("expression") or each["license"] for each in package.get("licenses", [])]
    # identifiers of SPDX where there are any, for the classifiers beside them say the same less precisely
    known = [each if isinstance(each, str) else each["id"] for each in found if isinstance(each, str) or "id" in each]
    named = [each["name"].rpartition(" :: ")[2] for each in found if isinstance(each, dict) and "name" in each]
    if texts := known or named or [*filter(None, [_UNDECLARED.get(package["name"])])]:
        return ", ".join(texts)
    raise StackError(f"{package['name']} does not say its licence: add it to stack/team/bill.py")


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
            raise StackError(f"{jar.file_name} has another licence than Apache's: add it to stack/team/bill.py")
        yield f"{jar.group}:{jar.artifact}:{jar.version}: Apache-2.0. Its notice:\n"
        yield from (f"    {line}".rstrip() for line in _member(archive, "NOTICE").strip().splitlines())
        yield ""


def _member(archive: zipfile.ZipFile, name: str) -> str:
    for path in (name, f"META-INF/{name}", f"META-INF/{name}.txt"):
        if path in archive.namelist():
            return archive.read(path).decode()
    raise StackError(f"{archive.filename} has no {name}")


if __name__ == "__main__":
    main()
