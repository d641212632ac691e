"""Commands of the deployment's containers: each failure is one line, which `docker inspect` and logs show."""

import sys

import pytest

from stack import team
from stack.machine import unused


@pytest.fixture
def run(monkeypatch):
    def main(*arguments):
        monkeypatch.setattr(sys, "argv", ["team", *arguments])
        return team.main()

    return main


@pytest.mark.parametrize(
    ("job", "given", "missing"),
    [
        ("databases", "PIPELINES", "DB_OWNER_PASSWORD"),
        ("gateway-tokens", "GATEWAY_TOKEN", "GATEWAY_TOKENS_FILE"),
        ("spark-conf", "SPARK_CONF_DIR", "SPARK_AUTH_SECRET"),
        ("airflow-init", "AIRFLOW_HOME", "AIRFLOW_VIEWER_PASSWORD"),
    ],
)
def test_a_job_names_the_variables_that_it_lacks(run, monkeypatch, job, given, missing):
    monkeypatch.setenv(given, "x")
    monkeypatch.delenv(missing, raising=False)
    with pytest.raises(SystemExit) as ended:
        run(job)
    assert str(ended.value).startswith(f"{job}: ")
    assert missing in str(ended.value)
    assert given not in str(ended.value).partition(" is not set")[0].removeprefix(f"{job}: ").split(", ")


@pytest.mark.parametrize(("component", "reason"), [([], "Connection refused"),
                                                   (["scheduler"], "API server: Connection refused")])  # fmt: skip
def test_a_server_that_is_down_is_not_healthy(run, capsys, component, reason):
    (port,) = unused(1)
    assert run("health", f"http://127.0.0.1:{port}/", *component) == 1
    assert capsys.readouterr().out == f"{reason}\n"


def test_spark_gets_its_secret_in_one_file(run, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_AUTH_SECRET", "of the cluster")
    assert run("spark-conf") == 0
    assert "spark.authenticate.secret of the cluster\n" in (tmp_path / "spark-defaults.conf").read_text()
    assert capsys.readouterr().out == "Spark's configuration is there\n"
