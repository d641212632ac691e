"""Prepare Airflow's metadata database: its tables, and the pools that let one rebuild and one archive run at a time.

Run it before Airflow's components start, with their environment; running it again changes nothing:

    python -m include.airflow_support.init
"""

import argparse
import logging
import sys

from include.airflow_support.defaults import ARCHIVE_POOL, REBUILD_POOL
from include.runtime import logs

log = logging.getLogger(__name__)


def prepare() -> None:
    """Migrate the metadata database to the installed version and make the pools. Blocks for seconds.

    Done in one process: each call of Airflow's command line costs seconds of imports.
    """
    from airflow.models.pool import Pool
    from airflow.utils.db import upgradedb

    upgradedb()
    for pool in (REBUILD_POOL, ARCHIVE_POOL):
        text = f"One driver of a job of its kind ({pool}) at a time, on the scheduler's machine."
        Pool.create_or_update_pool(pool, slots=1, description=text, include_deferred=False)
        log.info("pool %s has 1 slot", pool)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    logs.set_up("airflow-init")
    prepare()
    sys.exit(0)
