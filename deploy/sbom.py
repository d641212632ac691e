"""Writes the image's bill of materials in CycloneDX: `python -m deploy.sbom [--check]`.

It lists the packages of requirements.lock and the jars of stack/jars.lock that the Dockerfile copies, with the licences
of NOTICE and the jars' checksums. It lists neither Debian's packages nor the jars inside the package pyspark: a scanner
of images finds those. `--check` only compares the file.
"""

import tomllib
import uuid

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from deploy.generated import write_or_check
from deploy.notice import JAR_SET, packages
from stack.jars import read_lock
from stack.layout import PROJECT_ROOT

TARGET = PROJECT_ROOT / "sbom.cdx.json"


def render() -> str:
    """Return the document. It has no time, and a serial number made of the lock files, with which alone it changes.

    Raises StackError naming a package whose licence is unknown.
    """
    return JsonV1Dot6(_bom()).output_as_string(indent=1) + "\n"


def _bom() -> Bom:
    listed = "".join((PROJECT_ROOT / name).read_text() for name in ("requirements.lock", "stack/jars.lock"))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, listed))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # it is optional in the format
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]
    image = Component(type=ComponentType.CONTAINER, name=project["name"], version=project["version"], bom_ref="image")
    bom.metadata.component = image
    for name, version, licence in packages():
        bom.components.add(_library(PackageURL("pypi", None, name, version), licence))
    for jar in read_lock():
        if jar.set_name == JAR_SET:
            url = PackageURL("maven", jar.group, jar.artifact, jar.version)
            component = _library(url, "Apache-2.0")
            component.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=jar.sha256))
            bom.components.add(component)
    bom.register_dependency(image, bom.components)
    return bom


def _library(url: PackageURL, licence: str) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=url.name,
        group=url.namespace,
        version=url.version,
        purl=url,
        bom_ref=url.to_string(),
        licenses=[DisjunctiveLicense(name=licence)],
    )


if __name__ == "__main__":
    write_or_check("sbom", __doc__, TARGET, render)
