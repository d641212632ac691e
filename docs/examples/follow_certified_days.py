"""
# follow_certified_days

A DAG of another team that keeps a copy of certified days. To use it, put it into that team's DAGs of the same Airflow
and unpause it: Airflow drops the events of a paused DAG. Days that it missed are found in `day_status`.

**What a run does**: its partition key is a day of `board_detail` that was certified, undone or redone. The run looks at
the newest event of the day: events that arrive before a run begins share it.
"""

import datetime as dt
from typing import Any

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, get_current_context, task

CERTIFIED_DAY = Asset("board_detail_certified_day")

with DAG(
    "follow_certified_days",
    description="Example: follows the certified days of board_detail.",
    doc_md=__doc__,
    start_date=dt.datetime(2026, 11, 1, tzinfo=dt.UTC),
    schedule=PartitionedAssetTimetable(assets=CERTIFIED_DAY),
    max_active_runs=1,
    tags=["example"],
):

    @task
    def load() -> dict[str, Any]:
        """Copy the day if it is certified, else drop the copy."""
        events = get_current_context()["triggering_asset_events"][CERTIFIED_DAY]
        day: dict[str, Any] = max(events, key=lambda event: event.timestamp).extra
        if day["status"] != "certified":
            return {"dropped": day["day"], "because": day["action"]}
        # Here: DELETE the copy of the day, and INSERT … SELECT * FROM board_detail_masked WHERE day = …, in one
        # transaction. A day whose content_hash is that of the copy needs no copy.
        return {"copied": day["day"], "generation": day["generation"], "rows": day["rows"]}

    load()
