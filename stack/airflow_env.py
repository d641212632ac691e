"""The environment of Airflow's four components on the local stack.

The API server, scheduler, DAG processor and triggerer must agree on the database, the secrets that sign their tokens,
and the address that tasks report to. So one function makes the environment of all four.
"""

import hashlib
import hmac
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from include.database.sessions import AUTHENTICATION
from include.runtime import kinds
from include.runtime.environment_reader import EnvironmentReader
from include.runtime.kafka_connection import SECRETS as KAFKA_SECRETS
from include.runtime.kafka_connection import VARIABLES
from include.runtime.lineage import transport_of
from include.runtime.settings import LIBPQ_VARIABLES, S3_SECRETS, listed_pipelines, reader_of
from stack.env_file import without_secrets
from stack.machine import LOOPBACK

# user → role, as SimpleAuthManager knows them: viewer < user < op < admin
USERS = {"admin": "admin", "operator": "op", "viewer": "viewer"}

# Without log servers: the API server reads the log files from the same disk, and the log servers' ports are fixed.
COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("airflow", "api-server", "--proxy-headers"),  # trusted from proxies in FORWARDED_ALLOW_IPS
    "scheduler": ("airflow", "scheduler", "--skip-serve-logs"),
    "dag-processor": ("airflow", "dag-processor"),
    "triggerer": ("airflow", "triggerer", "--skip-serve-logs"),
}

TASK_COMPONENT = "scheduler"  # LocalExecutor's tasks are its children

# Of the Integrity page, of metrics and of alerts. The other secrets of tasks are in the connections.
_SECRETS = (
    "DB_INTEGRITY_PASSWORD",
    "GATEWAY_ADMIN_TOKEN",
    "ALERT_WEBHOOK_URL",
    "METRICS_TOKEN",
    *KAFKA_SECRETS,
)

# Lineage without the code of tasks, and without the DAGs that only watch: one of them runs every five minutes.
_EMISSION_POLICY = json.dumps(
    [
        {"scope": {}, "controls": {"include_source_code": False}},
        {
            "match_mode": "regex",
            "scope": {"dag_id": "(watch_pipeline|audit)(_.*)?"},
            "controls": {"emit": False},
        },
    ]
)


def airflow_environment(settings: Mapping[str, str], root: Path, component: str = "") -> dict[str, str]:
    """Return the variables to add to a component's environment, including PATH.

    `settings` is the content of `.env`. The pipeline's own variables are included, because tasks read them through
    `include.runtime.settings`. Only the scheduler has the connections of tasks, and the login to the archive's store.
    Call `write_password_file` before the API server starts. Raises KeyError for a missing setting.
    """
    bin_dir = str(Path(sys.executable).parent)
    keep = (*_SECRETS, *(S3_SECRETS if component == TASK_COMPONENT else ()))
    # an empty variable would override one from another source, such as JAVA_HOME
    passed_on = {name: value for name, value in without_secrets(settings, keep=keep).items() if value}
    if settings["SPARK_MASTER"].startswith("local"):
        passed_on["SPARK_LOCAL_IP"] = LOOPBACK  # else the driver listens on the network
    smtp = settings.get("ALERT_SMTP_CONNECTION", "")
    return {
        **passed_on,
        **_component_settings(settings, root),
        **({"AIRFLOW_CONN_SMTP_DEFAULT": smtp} if smtp else {}),
        **(task_connections(settings) if component == TASK_COMPONENT else {}),
        "AIRFLOW_HOME": settings["AIRFLOW_HOME"],
        "AIRFLOW_CONN_SPARK_DEFAULT": spark_connection(settings["SPARK_MASTER"]),
        "PYTHONPATH": str(root),
        "PYSPARK_PYTHON": sys.executable,  # otherwise Spark's workers run the first python3 on PATH
        "PATH": os.pathsep.join([bin_dir, os.environ.get("PATH", os.defpath)]),  # has spark-submit
    }


def spark_connection(master: str) -> str:
    """Return the connection `spark_default` as JSON. Without it the operator would silently submit to YARN."""
    extra = {"deploy-mode": "client", "spark-binary": "spark-submit"}
    return json.dumps({"conn_type": "spark", "host": master, "extra": extra})


def task_connections(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the connections of each pipeline: see `include.airflow_support.connections`."""
    found: dict[str, str] = {}
    for pipeline in listed_pipelines(settings):
        env = reader_of(pipeline, settings)

        def given(variables: Mapping[str, str], env: EnvironmentReader = env) -> dict[str, object]:
            """Return the texts of the variables that are set, by the names of a connection's fields."""
            texts = {field: settings.get(env.variable(name)) for field, name in variables.items()}
            return {field: text for field, text in texts.items() if text}

        connections: dict[str, dict[str, object]] = {
            "kafka": {
                "conn_type": "kafka",
                "extra": given(VARIABLES),
            },
            "postgres": {
                "conn_type": "postgres",
                "host": env.value("DATABASE_HOST", kinds.HOST),
                "port": env.value("DATABASE_PORT", kinds.PORT),
                "schema": env.value("DATABASE_NAME", kinds.TEXT),
                "login": "batch",
                "password": env.value("DB_BATCH_PASSWORD", kinds.SECRET),
                "extra": {
                    **given(LIBPQ_VARIABLES),
                    "gateway_password": env.value("DB_GATEWAY_PASSWORD", kinds.SECRET),
                    "owner_password": env.value("DB_OWNER_PASSWORD", kinds.SECRET),
                },
            },
            "gateway": {
                "conn_type": "http",
                "host": env.value("GATEWAY_URL", kinds.URLS),
                "password": env.value("GATEWAY_ADMIN_TOKEN", kinds.SECRET),
            },
        }
        found |= {
            f"AIRFLOW_CONN_{pipeline.upper()}_{kind.upper()}": json.dumps(fields)
            for kind, fields in connections.items()
        }
    return found


def password_file(settings: Mapping[str, str]) -> Path:
    """Return the path of SimpleAuthManager's password file."""
    return Path(settings["AIRFLOW_HOME"]) / "passwords.json"


def write_password_file(settings: Mapping[str, str]) -> Path:
    """Write SimpleAuthManager's password file, readable by the owner only. Replaces the file atomically."""
    path = password_file(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    passwords = {user: settings[f"AIRFLOW_{user.upper()}_PASSWORD"] for user in USERS}
    # components may write it at the same time, so each uses a scratch file of its own, created with mode 0600
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(passwords, file)
    Path(scratch).replace(path)
    return path


def _component_settings(settings: Mapping[str, str], root: Path) -> dict[str, str]:
    url = f"http://{LOOPBACK}:{settings['AIRFLOW_PORT']}"
    database = (
        f"airflow:{quote(settings['DB_AIRFLOW_PASSWORD'], safe='')}"
        f"@{settings['DATABASE_HOST']}:{settings['DATABASE_PORT']}/airflow"
    )
    options = {
        "core": {
            "dags_folder": str(root / "dags"),
            "plugins_folder": str(root / "plugins"),
            "executor": "LocalExecutor",
            "parallelism": "4",  # LocalExecutor forks this many workers, even if they are idle
            "load_examples": "False",
            "fernet_key": settings["AIRFLOW_FERNET_KEY"],
            "execution_api_server_url": f"{url}/execution/",  # the default has another port, and every task would hang
            "simple_auth_manager_users": ",".join(f"{user}:{role}" for user, role in USERS.items()),
            "simple_auth_manager_passwords_file": str(password_file(settings)),
            "simple_auth_manager_all_admins": "False",
            "default_timezone": "utc",
        },
        "database": {
            "sql_alchemy_conn": f"postgresql+psycopg2://{database}?require_auth={AUTHENTICATION}",
            "sql_alchemy_conn_async": f"postgresql+asyncpg://{database}",
            "sql_alchemy_pool_size": "3",
        },
        "api": {
            "host": LOOPBACK,
            "port": settings["AIRFLOW_PORT"],
            "base_url": url,
            "workers": "1",
            "worker_timeout": "10",  # a stop waits this long for open connections; default 120
            "secret_key": _derived(settings["AIRFLOW_JWT_SECRET"], "api-secret-key"),
            "instance_name": "Pipelines",
        },
        "api_auth": {"jwt_secret": settings["AIRFLOW_JWT_SECRET"]},
        "scheduler": {
            "catchup_by_default": "False",
            "scheduler_idle_sleep_time": "0.5",
            "task_instance_heartbeat_timeout": "60",  # a task killed with its scheduler is detected after this
        },
        "workers": {
            # The end of a task is sometimes noticed only at its next heartbeat; the default is 5 s.
            "min_heartbeat_interval": "1",
            # A task waits for minutes for an API server that starts; with the default of 5 tries, for seconds.
            "execution_api_retries": "10",
        },
        "dag_processor": {
            "parsing_processes": "1",
            "refresh_interval": "15",
            "min_file_process_interval": "30",
        },
        "openlineage": {
            "transport": json.dumps(transport_of(settings.get("LINEAGE_RECEIVER", ""))),
            "namespace": settings.get("LINEAGE_NAMESPACE", "pipelines"),
            "emission_policy": _EMISSION_POLICY,
            "execution_timeout": "5",  # a task waits this long for its events
        },
        "logging": {
            "base_log_folder": str(Path(settings["AIRFLOW_HOME"]) / "logs"),
            "colored_console_log": "False",
        },
    }
    return {
        f"AIRFLOW__{section.upper()}__{name.upper()}": value
        for section, values in options.items()
        for name, value in values.items()
    }


def _derived(secret: str, purpose: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()
