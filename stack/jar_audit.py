"""Looks up known vulnerabilities of the locked jars at https://osv.dev: `python -m stack.jar_audit LOCK_FILE…`.

Part of `make audit`. pip-audit does the same for Python packages, but does not support jars.
"""

import argparse
import json
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from stack.jars import Jar, read_lock

OSV = "https://api.osv.dev"
_TIMEOUT_S = 60


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


def main() -> int:
    """Run the command; returns 0 if no vulnerability is known, 1 if some are, 2 if the service is unreachable."""
    parser = argparse.ArgumentParser(prog="python -m stack.jar_audit", description=__doc__)
    parser.add_argument("lock_files", type=Path, nargs="+")
    parser.add_argument("--service", default=OSV)
    arguments = parser.parse_args()
    jars = [jar for lock_file in arguments.lock_files for jar in read_lock(lock_file)]
    try:
        found = known_vulnerabilities(jars, arguments.service)
    except OSError as exc:
        print(f"audit: {arguments.service} cannot be reached ({exc}): nothing is known of the jars", file=sys.stderr)
        return 2
    for artifact, ids in found.items():
        print(f"{artifact}: {', '.join(ids)}; see https://osv.dev/vulnerability/{ids[0]}")
    print(f"{len(jars)} jars, {len(found)} of them with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
