"""The settings of a task: the environment's, with the pipeline's connections of Airflow before them.

Connections are read when a task runs, never at parse time. Each is optional, and so is each of its fields:

| connection | fields | settings |
|---|---|---|
| PIPELINE_kafka | settings of librdkafka in the extra | those of `include.runtime.kafka_connection.VARIABLES` |
| PIPELINE_postgres | host, port, schema | DATABASE_HOST, DATABASE_PORT, DATABASE_NAME |
| | settings of libpq in the extra | those of `include.runtime.settings.LIBPQ_VARIABLES` |
| | password | DB_BATCH_PASSWORD |
| | `gateway_password`, `owner_password` in the extra | DB_GATEWAY_PASSWORD, DB_OWNER_PASSWORD |
| PIPELINE_gateway | host, which is one URL or several with commas | GATEWAY_URL |
| | password | GATEWAY_ADMIN_TOKEN |
"""

import os
from typing import Any

from airflow.sdk import Connection
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from include.contracts.day import Day
from include.database.schema_check import checked_settings
from include.runtime.kafka_connection import VARIABLES
from include.runtime.settings import LIBPQ_VARIABLES, Settings, prefix_of


def task_environment(pipeline: str) -> dict[str, str]:
    """Return the process's environment with the fields of the pipeline's connections as its variables."""
    kafka, postgres, gateway = (_fields(f"{pipeline}_{kind}") for kind in ("kafka", "postgres", "gateway"))
    found = {
        **{variable: kafka.get(setting) for setting, variable in VARIABLES.items()},
        "DATABASE_HOST": postgres.get("host"),
        "DATABASE_PORT": postgres.get("port"),
        "DATABASE_NAME": postgres.get("schema"),
        **{variable: postgres.get(setting) for setting, variable in LIBPQ_VARIABLES.items()},
        "DB_BATCH_PASSWORD": postgres.get("password"),
        "DB_GATEWAY_PASSWORD": postgres.get("gateway_password"),
        "DB_OWNER_PASSWORD": postgres.get("owner_password"),
        "GATEWAY_URL": gateway.get("host"),
        "GATEWAY_ADMIN_TOKEN": gateway.get("password"),
    }
    # with the prefix, which wins over the plain variable
    own = {f"{prefix_of(pipeline)}{name}": str(value) for name, value in found.items() if value}
    return {**os.environ, **own}


def task_settings(pipeline: str) -> Settings:
    """Return the pipeline's settings for a task. Raises ConfigurationError."""
    return Settings.from_environment(task_environment(pipeline), pipeline)


def batch_settings(pipeline: str) -> Settings:
    """Return the same for the role of batch jobs, after a look at the database. See `checked_settings`."""
    return checked_settings("batch", pipeline, task_environment(pipeline))


def day_settings(pipeline: str, day: str) -> tuple[Settings, Day]:
    """Return the same, and the day. Raises DayFormatError as well."""
    settings = batch_settings(pipeline)
    return settings, Day.parse(day, settings.timezone)


def address_of(path: str) -> str:
    """Return the URL of a page; its path alone if Airflow does not know its own address (`[api] base_url`)."""
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/{path}"


def _fields(connection_id: str) -> dict[str, Any]:
    try:
        connection = Connection.get(connection_id)
    except AirflowNotFoundException:
        return {}
    names = ("host", "port", "schema", "password")
    return {**connection.extra_dejson, **{name: getattr(connection, name) for name in names}}
