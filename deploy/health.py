"""Health checks of the deployment's containers, the same questions that the local stack asks.

`python -m deploy.health http URL`: 200 is healthy. `python -m deploy.health airflow COMPONENT URL`: the API server
has seen this component's heartbeat.
"""

import argparse
import sys

from stack.health import probe
from stack.service import AirflowHealth, Health, HttpHealth

COMPONENTS = ("scheduler", "dag_processor", "triggerer")


def main() -> int:
    """0 when healthy; 1 when not, after a few words why, which `docker inspect` shows."""
    parser = argparse.ArgumentParser(prog="python -m deploy.health", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("http").add_argument("url")
    airflow = kinds.add_parser("airflow")
    airflow.add_argument("component", choices=COMPONENTS)
    airflow.add_argument("url")
    arguments = parser.parse_args()

    health: Health = HttpHealth(arguments.url)
    if arguments.kind == "airflow":
        health = AirflowHealth(arguments.url, arguments.component)
    reason = probe(health)
    if reason is not None:
        print(reason)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
