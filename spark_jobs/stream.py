"""The speed layer: two queries, *join* and *serve*. `python -m spark_jobs.stream`, run by a supervisor.

With `--query join` or `--query serve` it runs one of them, and a second process runs the other one. Each query has a
lease. A process without `--query` runs both and takes both leases.

A driver that starts while another one holds a lease is a standby until that one ends or its heartbeat is 15 s old.
With `--take-over` it supersedes that one at once. It takes the lease only after it has checked its prerequisites, so a
driver that cannot run does not supersede another one.

Exit codes: 0 on SIGTERM; 1 if the JVM died; 4 if too many records in a row failed; 70 if a thread or the JVM did not
respond; 75 if a server is down, Spark ended a query or another driver took over; 78 if a setting is wrong or the offset
ledger does not match the topics: a person must decide first. The supervisor starts the driver again in each case; a
superseded driver is then a standby.
"""

import argparse
import logging
import os
import signal
import threading

from include.contracts.errors import CRASHED, OK, PipelineError
from include.runtime.command import as_command
from include.runtime.process_tree import die_with_parent
from include.runtime.settings import Settings
from spark_jobs.speed.driver import QUERIES, Driver

log = logging.getLogger("stream")


@as_command
def main() -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        settings = Settings.from_environment()
        driver = Driver(settings, settings.pipeline, arguments.queries, stop)
        driver.run(arguments.take_over)
    except PipelineError:
        raise
    except Exception:  # raised by Spark, whose JVM may have died
        log.exception("the driver failed")
        return CRASHED
    return OK


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The speed layer: stream → output topic → PostgreSQL.")
    parser.add_argument(
        "--query", choices=QUERIES, help="run only this query; the other one's records stay in its topic"
    )
    parser.add_argument(
        "--take-over", action="store_true", help="supersede every driver that holds a lease that is needed"
    )
    arguments = parser.parse_args()
    arguments.queries = list(QUERIES) if arguments.query is None else [arguments.query]
    return arguments


if __name__ == "__main__":
    die_with_parent()
    code = main()
    logging.shutdown()
    os._exit(code)  # threads of the client libraries may still block on servers that are down
