"""Shows the addresses and user names of the stack; passwords only on a terminal."""

from collections.abc import Mapping

from demo.narrator import Narrator
from include.runtime.settings import Settings


def show_addresses(environment: Mapping[str, str], settings: Settings, narrator: Narrator, is_terminal: bool) -> None:
    """Print the table of URLs. Without a terminal it has the names of the passwords in `.env` instead of passwords."""

    def secret(name: str) -> str:
        return environment[name] if is_terminal else f"{name} in .env"

    airflow = f"http://127.0.0.1:{environment['AIRFLOW_PORT']}"
    database = f"{settings.database.host}:{settings.database.port}/{settings.database.name}"
    rows = [
        ("Airflow", airflow, "admin", secret("AIRFLOW_ADMIN_PASSWORD")),
        ("", "", "operator", secret("AIRFLOW_OPERATOR_PASSWORD")),
        ("", "", "viewer", secret("AIRFLOW_VIEWER_PASSWORD")),
        ("Gateway", environment["GATEWAY_URL"], "Bearer token", secret("GATEWAY_TOKEN")),
        ("  its fallback store", f"{environment['GATEWAY_URL']}/fallback", "Bearer token",
         secret("GATEWAY_ADMIN_TOKEN")),
        ("PostgreSQL, for analysts", f"postgresql://{database}", "analyst", secret("DB_ANALYST_PASSWORD")),
        ("Kafka", environment["KAFKA_BOOTSTRAP_SERVERS"], "", ""),
        ("Stream, metrics", f"http://127.0.0.1:{settings.stream.metrics_port}/metrics", "", ""),
    ]  # fmt: skip
    narrator.say("")
    narrator.table(("what", "where", "user", "password"), rows, fold=False)
    narrator.say("the stack keeps running: make status shows it, make down stops it")
