"""Adds the Integrity page to Airflow, and forbids other sites to frame Airflow's pages. Registration only."""

from airflow.plugins_manager import AirflowPlugin

from include.airflow_support.frames import OwnFramesOnly
from include.integrity.page import airflow_app

_APP = {"app": airflow_app(), "url_prefix": "/integrity", "name": "Integrity"}
_VIEW = {
    "name": "Integrity",
    "href": "/integrity/",
    "destination": "nav",
    "url_route": "integrity",
    "nav_top_level": True,
}


class IntegrityPlugin(AirflowPlugin):
    """Serves the page under /integrity and puts it into the navigation."""

    name = "integrity"
    fastapi_apps = [_APP]  # noqa: RUF012 - Airflow's way of declaring a plugin
    external_views = [_VIEW]  # noqa: RUF012
    fastapi_root_middlewares = [{"middleware": OwnFramesOnly, "name": "own frames only"}]  # noqa: RUF012
