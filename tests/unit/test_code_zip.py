"""The code that drivers send to executors: it runs by itself, from another folder."""

import subprocess
import sys
import zipfile

from spark_jobs.connectors.session import FOLDER, code_configuration

TASKS = """
import spark_jobs.worker_daemon
from include.contracts.pipelines import PIPELINES
from include.database.named import QUERIES
print(spark_jobs.worker_daemon.__file__, *PIPELINES, len(list(QUERIES.iterdir())) > 5)
"""


def test_tasks_run_with_the_code_that_is_sent_alone(tmp_path):
    (tmp_path / "scratch").mkdir()
    configuration = code_configuration(tmp_path / "scratch")
    file, _, folder = configuration["spark.archives"].partition("#")
    assert (folder, configuration["spark.executorEnv.PYTHONPATH"]) == (FOLDER, FOLDER)
    with zipfile.ZipFile(file) as packed:
        packed.extractall(tmp_path / "executor" / folder)
        assert not [name for name in packed.namelist() if "__pycache__" in name]
    ran = subprocess.run([sys.executable, "-c", TASKS], cwd=tmp_path / "executor", env={"PYTHONPATH": FOLDER},
                         capture_output=True, text=True, check=True)  # fmt: skip
    path, *pipelines, has_queries = ran.stdout.split()
    assert path.startswith(str(tmp_path / "executor" / FOLDER))
    assert (pipelines, has_queries) == (["board_detail", "order_detail"], "True")
