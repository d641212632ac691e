"""A real DagBag of the project's DAGs, read once, with an Airflow home of its own."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def dag_bag(tmp_path_factory: pytest.TempPathFactory) -> "DagBag":
    """The DAGs of two pipelines as the DAG processor reads them. Airflow reads its environment when it is imported."""
    own = {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PIPELINES": "board_detail,order_detail",
        "PIPELINE_TIMEZONE": "Asia/Seoul",
        "ORDER_DETAIL__PIPELINE_TIMEZONE": "America/New_York",
        "ORDER_DETAIL__REBUILD_DRIVER_MEMORY": "3g",
        "SPARK_KAFKA_JARS_DIR": "/jars",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        from airflow import plugins_manager, settings
        from airflow.dag_processing.dagbag import DagBag

        # another test may have imported Airflow before; the plugin registers the timetable
        patch.setattr(settings, "PLUGINS_FOLDER", str(ROOT / "plugins"))
        plugins_manager._get_plugins.cache_clear()
        plugins_manager.get_timetables_plugins.cache_clear()
        assert plugins_manager.get_timetables_plugins()

        return DagBag(dag_folder=str(ROOT / "dags"))
