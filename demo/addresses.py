"""Where everything is, with user names and passwords."""

from collections.abc import Mapping

from demo.narrator import Narrator


def show_addresses(environment: Mapping[str, str], narrator: Narrator) -> None:
    """Print the table of URLs. The passwords are this stack's own, out of `.env`."""
    airflow = f"http://127.0.0.1:{environment['AIRFLOW_PORT']}"
    database = f"{environment['DATABASE_HOST']}:{environment['DATABASE_PORT']}/{environment['DATABASE_NAME']}"
    rows = [
        ("Airflow", airflow, "admin", environment["AIRFLOW_ADMIN_PASSWORD"]),
        ("", "", "operator", environment["AIRFLOW_OPERATOR_PASSWORD"]),
        ("", "", "viewer", environment["AIRFLOW_VIEWER_PASSWORD"]),
        ("Gateway", environment["GATEWAY_URL"], "Bearer token", environment["GATEWAY_TOKEN"]),
        ("  its fallback store", f"{environment['GATEWAY_URL']}/fallback", "Bearer token",
         environment["GATEWAY_ADMIN_TOKEN"]),
        ("PostgreSQL, for analysts", f"postgresql://{database}", "analyst", environment["DB_ANALYST_PASSWORD"]),
        ("Kafka", environment["KAFKA_BOOTSTRAP_SERVERS"], "", ""),
        ("Stream, metrics", f"http://127.0.0.1:{environment['STREAM_METRICS_PORT']}/metrics", "", ""),
    ]  # fmt: skip
    narrator.say("")
    narrator.table(("what", "where", "user", "password"), rows, fold=False)
    narrator.say("everything goes on running: make status shows it, make down ends it")
