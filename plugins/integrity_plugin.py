"""Adds the Integrity pages and the nights' timetable to Airflow, and forbids other sites to frame Airflow's pages.

Registration only.
"""

from airflow.plugins_manager import AirflowPlugin

from include.airflow_support.frames import OwnFramesOnly
from include.airflow_support.timetable import DayTimetable
from include.integrity.page import airflow_app, navigation

_APP = {"app": airflow_app(), "url_prefix": "/integrity", "name": "Integrity"}


class IntegrityPlugin(AirflowPlugin):
    """Serves the pages under /integrity, puts each into the navigation, and registers the timetable."""

    name = "integrity"
    fastapi_apps = [_APP]  # noqa: RUF012 - Airflow's way of declaring a plugin
    external_views = navigation("/integrity")
    fastapi_root_middlewares = [{"middleware": OwnFramesOnly, "name": "own frames only"}]  # noqa: RUF012
    timetables = [DayTimetable]  # noqa: RUF012
