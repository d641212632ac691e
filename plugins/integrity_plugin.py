"""Adds the Integrity pages and the metrics of the batch layer to Airflow, and forbids others to frame Airflow's pages.

Registration only.
"""

from airflow.plugins_manager import AirflowPlugin

from include.airflow_support.frames import OwnFramesOnly
from include.integrity.metrics_app import airflow_metrics_app
from include.integrity.page import airflow_app, navigation

_APP = {"app": airflow_app(), "url_prefix": "/integrity", "name": "Integrity"}
_METRICS = {"app": airflow_metrics_app(), "url_prefix": "/pipelines", "name": "Metrics"}


class IntegrityPlugin(AirflowPlugin):
    """Serves the pages under /integrity, with each in the navigation, and the metrics at /pipelines/metrics."""

    name = "integrity"
    fastapi_apps = [_APP, _METRICS]  # noqa: RUF012 - Airflow's way of declaring a plugin
    external_views = navigation("/integrity")
    fastapi_root_middlewares = [{"middleware": OwnFramesOnly, "name": "own frames only"}]  # noqa: RUF012
