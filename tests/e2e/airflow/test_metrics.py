"""The metrics of the batch layer as a live Airflow serves them."""

from prometheus_client.parser import text_string_to_metric_families

from tests.support.http import HTTP


def get(pipeline, headers=None):
    return HTTP.get(f"{pipeline.airflow_url}/pipelines/metrics", headers=headers)


def test_prometheus_reads_every_pipeline_with_the_token_alone(pipeline):
    answer = get(pipeline, {"Authorization": f"Bearer {pipeline.variables['METRICS_TOKEN']}"})
    assert answer.status_code == 200
    samples = [each for family in text_string_to_metric_families(answer.text) for each in family.samples]
    up = {each.labels["pipeline"]: each.value for each in samples if each.name == "batch_database_up"}
    assert up == {"board_detail": 1, "order_detail": 1}
    heartbeats = {each.labels["component"] for each in samples if each.name.startswith("batch_airflow_heartbeat")}
    assert heartbeats == {"scheduler", "triggerer", "dag_processor"}


def test_a_login_of_airflow_does_not_read_them(pipeline):
    assert get(pipeline).status_code == 401
    with pipeline.airflow("admin") as client:
        assert get(pipeline, client.authorization()).status_code == 401
