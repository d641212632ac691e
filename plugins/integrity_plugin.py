"""Adds to Airflow the Integrity pages, runbooks, metrics and the nights' timetable; no other site may frame its pages.

Registration only.
"""

from airflow.plugins_manager import AirflowPlugin

from include.airflow_support.timetable import DayTimetable
from include.integrity.pages.app import OwnFramesOnly, airflow_app, navigation, runbooks_app
from include.integrity.pages.metrics import airflow_metrics_app

_APP = {"app": airflow_app(), "url_prefix": "/integrity", "name": "Integrity"}
_RUNBOOKS = {"app": runbooks_app(), "url_prefix": "/runbooks", "name": "Runbooks"}
_METRICS = {"app": airflow_metrics_app(), "url_prefix": "/pipelines", "name": "Metrics"}


class IntegrityPlugin(AirflowPlugin):
    """Serves pages, each of them in the navigation, runbooks and metrics; registers the timetable of the nights."""

    name = "integrity"
    fastapi_apps = [_APP, _RUNBOOKS, _METRICS]  # noqa: RUF012 - Airflow's way of declaring a plugin
    external_views = navigation("/integrity")
    fastapi_root_middlewares = [{"middleware": OwnFramesOnly, "name": "own frames only"}]  # noqa: RUF012
    timetables = [DayTimetable]  # noqa: RUF012
