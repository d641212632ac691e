"""Health checks of the deployment's containers, the same as those of the local stack.

`python -m stack.team.health http URL`: healthy if the response is 200.
`python -m stack.team.health airflow COMPONENT URL`: healthy if the API server reports a heartbeat of this component.
"""

import argparse
import os
import sys

from include.runtime.environment_reader import EnvironmentReader
from include.runtime.tls import ClientTls
from stack.health import probe
from stack.services import AirflowHealth, Health, HttpHealth

COMPONENTS = ("scheduler", "dag_processor", "triggerer")


def main() -> int:
    """Run the check; returns 0 if healthy, 1 after printing the reason, which `docker inspect` shows."""
    parser = argparse.ArgumentParser(prog="python -m stack.team.health", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("http").add_argument("url")
    airflow = kinds.add_parser("airflow")
    airflow.add_argument("component", choices=COMPONENTS)
    airflow.add_argument("url")
    arguments = parser.parse_args()

    health: Health = HttpHealth(arguments.url, ClientTls.from_environment(EnvironmentReader(os.environ)))
    if arguments.kind == "airflow":
        health = AirflowHealth(arguments.url, arguments.component)
    reason = probe(health)
    if reason is not None:
        print(reason)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
