"""The speed layer: `pipeline stream run`, run by a supervisor.

It is an application of Spark, so it has a file of its own as the jobs do.
"""

import logging
import signal
import threading

import click

from include.contracts.errors import CRASHED, OK, PipelineError
from include.runtime.command import Job

log = logging.getLogger("stream")


@click.command(cls=Job)
@click.option("--query", type=click.Choice(["join", "serve"]), help="Run only this query; the other one's records "
              "stay in its topic.")  # fmt: skip
@click.option("--take-over", is_flag=True, help="Supersede every driver that holds a lease that is needed.")
def main(query: str | None, take_over: bool) -> int:
    """Run the speed layer: stream → output topic → PostgreSQL.

    It has two queries, join and serve. With --query it runs one of them, and a second process runs the other one. Each
    query has a lease. A process without --query runs both and takes both leases.

    A driver that starts while another one holds a lease is a standby until that one ends or its heartbeat is 15 s old.
    With --take-over it supersedes that one at once. It takes the lease only after it has checked its prerequisites, so
    a driver that cannot run does not supersede another one.

    Exit codes: 0 on SIGTERM; 1 if the JVM died; 4 if too many records in a row failed; 70 if a thread or the JVM did
    not respond; 75 if another run may succeed, as after a server was down or another driver took over; 76 if a later
    driver ended this one's transactions; 78 if a setting is wrong or the offset ledger does not match the topics: a
    person must decide first. The supervisor starts the driver again in each case; a superseded driver is then a
    standby.
    """
    from include.runtime.settings import Settings
    from spark_jobs.connectors.session import begin_jvm
    from spark_jobs.without_pandas import hide_pandas_from_pyarrow

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        settings = Settings.from_environment()
        begin_jvm(settings.spark, settings.stream.driver_memory)
        hide_pandas_from_pyarrow()
        from spark_jobs.speed.driver import QUERIES, Driver  # a second, in which the JVM starts

        driver = Driver(settings, settings.pipeline, [each for each in QUERIES if query in (None, each)], stop)
        driver.run(take_over)
    except PipelineError:
        raise
    except Exception:  # raised by Spark, whose JVM may have died
        log.exception("the driver failed")
        return CRASHED
    return OK


if __name__ == "__main__":
    main()
