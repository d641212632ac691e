"""Adds Integrity pages and runbooks to Airflow, and forbids other sites to frame its pages. Registration only."""

from airflow.plugins_manager import AirflowPlugin

from include.airflow_support.frames import OwnFramesOnly
from include.airflow_support.runbooks import runbooks_app
from include.integrity.page import airflow_app, navigation

_APP = {"app": airflow_app(), "url_prefix": "/integrity", "name": "Integrity"}
_RUNBOOKS = {"app": runbooks_app(), "url_prefix": "/runbooks", "name": "Runbooks"}


class IntegrityPlugin(AirflowPlugin):
    """Serves the pages under /integrity, each of them in the navigation, and the runbooks under /runbooks."""

    name = "integrity"
    fastapi_apps = [_APP, _RUNBOOKS]  # noqa: RUF012 - Airflow's way of declaring a plugin
    external_views = navigation("/integrity")
    fastapi_root_middlewares = [{"middleware": OwnFramesOnly, "name": "own frames only"}]  # noqa: RUF012
