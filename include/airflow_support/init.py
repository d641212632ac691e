"""Prepare Airflow's metadata database: its tables, and the pool that lets one rebuild run at a time.

Run it before Airflow's components start, with their environment; running it again changes nothing:

    python -m include.airflow_support.init
"""

import logging
import sys

from include.airflow_support.defaults import REBUILD_POOL

log = logging.getLogger(__name__)


def prepare() -> None:
    """Migrate the metadata database to the installed version and make the pool. Blocks for seconds.

    Done in one process: each call of Airflow's command line costs seconds of imports.
    """
    from airflow.models.pool import Pool
    from airflow.utils.db import upgradedb

    upgradedb()
    Pool.create_or_update_pool(
        REBUILD_POOL, slots=1, description="One rebuild of a day at a time, on this machine.", include_deferred=False
    )
    log.info("pool %s has 1 slot", REBUILD_POOL)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    prepare()
    sys.exit(0)
