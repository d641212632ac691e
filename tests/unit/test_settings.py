"""Settings: read once, checked when read, secrets neither shown nor silently missing."""

import pytest

from include.archive.storage import open_storage
from include.contracts.errors import ConfigurationError
from include.integrity.jobs import dag_ids
from include.runtime.settings import S3Connection, Settings, pipeline_names
from tests.support.messages import WRONG_PIPELINES

LEAST = {"KAFKA_BOOTSTRAP_SERVERS": "k:9092", "DATABASE_HOST": "db"}


def test_the_least_that_is_needed():
    settings = Settings.from_environment(LEAST)
    assert settings.timezone == "Asia/Seoul"
    assert settings.kafka.replication_factor == 3
    assert settings.kafka.min_insync_replicas == 2


def test_the_gateways_files_are_no_matter_of_other_processes():
    names = ("GATEWAY_TLS_CERTIFICATE_FILE", "GATEWAY_TLS_KEY_FILE", "GATEWAY_TLS_CLIENT_CA_FILE", "GATEWAY_CA_FILE",
             "GATEWAY_CLIENT_CERTIFICATE_FILE", "GATEWAY_CLIENT_KEY_FILE", "GATEWAY_OIDC_CA_FILE")  # fmt: skip
    issuer = {"GATEWAY_OIDC_ISSUER": "https://login.example.com", "GATEWAY_OIDC_AUDIENCE": "gateway"}
    files = {name: f"/nowhere/{name}" for name in names}
    gateway = Settings.from_environment({**LEAST, **issuer, **files}).gateway
    for tls, name in (
        (gateway.tls, "GATEWAY_TLS_CERTIFICATE_FILE"),
        (gateway.client_tls, "GATEWAY_CA_FILE"),
        (gateway.oidc.tls, "GATEWAY_OIDC_CA_FILE"),
    ):
        with pytest.raises(ConfigurationError, match=f"{name}='/nowhere/{name}': cannot be read"):
            tls.context()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("KAFKA_BOOTSTRAP_SERVERS", "", "not set"),
        ("DATABASE_PORT", "five", "not a whole number"),
        ("GATEWAY_DELIVERY_TIMEOUT_S", "soon", "not a number"),
        ("PIPELINE_TIMEZONE", "Asia/Soul", "no such time zone"),
        ("PIPELINE_TIMEZONE", "Asia", "no such time zone"),
        ("KAFKA_RETENTION_DAYS", "-1", "not a whole number from 1"),
        ("KAFKA_RETENTION_DAYS", "1000000000", "not a whole number from 1"),
        ("DATABASE_PORT", "99999", "not a whole number from 1 to 65535"),
        ("STREAM_TRIGGER_INTERVAL_S", "nan", "not a number of seconds from 0"),
        ("STREAM_TRIGGER_INTERVAL_S", "inf", "not a number of seconds from 0"),
        ("STREAM_DRIVER_MEMORY", "2 g", "not a memory size; .* such as 768m or 2g"),
        ("REBUILD_DRIVER_MEMORY", "2048", "not a memory size"),
        ("KAFKA_BOOTSTRAP_SERVERS", "broker", "not host:port"),
        ("KAFKA_BOOTSTRAP_SERVERS", "a:9092,b:99999", "not host:port"),
        ("DATABASE_HOST", "d b", "not the name or address of a host"),
        ("GATEWAY_URL", "gateway:18080", "not http://host:port"),
        ("GATEWAY_URL", "http://[", "not http://host:port"),
        ("GATEWAY_ALLOWED_ORIGINS", "app.example", "not the origin of web pages"),
        ("GATEWAY_ALLOWED_ORIGINS", "https://app.example/", "without a path"),
        ("GATEWAY_ALLOWED_ORIGINS", "https://app.example, *", "not the origin of web pages"),
        ("GATEWAY_ALLOWED_ORIGINS", "https://App.example", "in lower case"),
        ("ALERT_CLOCK_SKEW_S", "0", "not a number of seconds above 0"),
        ("SPARK_MASTER", "locally", "not a Spark master"),
        ("ARCHIVE_DIR", "a\tb", "non-printable"),
        (
            "ARCHIVE_DIR",
            "gs://bucket/archive",
            "no store is known by this scheme; give a folder, file:///path or s3://",
        ),
        ("ARCHIVE_DIR", "s3://bucket", "not s3://bucket/prefix"),
        ("ARCHIVE_DIR", "s3://Bucket/archive", "not s3://bucket/prefix"),
        ("ARCHIVE_DIR", "s3://bucket/a/../b", "not s3://bucket/prefix"),
        ("ARCHIVE_DIR", "file://archive", "not file:///path"),
        ("ARCHIVE_S3_ENDPOINT", "store:9000", "not http://host:port or https://host:port"),
        ("ARCHIVE_S3_ENDPOINT", "https://store/bucket", "not http://host:port.*the bucket belongs into ARCHIVE_DIR"),
        ("ARCHIVE_S3_REGION", "Frankfurt am Main", "not the name of a region"),
        ("ARCHIVE_S3_TLS_VERIFY", "no", "not one of on, off"),
        ("GATEWAY_TOKEN", "tökén", "not allowed in HTTP headers"),
        ("ALERT_MAIL_TO", "a@b,nobody", "not name@host"),
        ("ALERT_CERTIFIED_BY", "9:00", "not a time of day; write it as HH:MM"),
        ("ALERT_CERTIFIED_BY", "24:00", "not a time of day"),
        ("ALERT_WEBHOOK_URL", "hooks.example.com", "not a URL"),
        ("KAFKA_MIN_INSYNC_REPLICAS", "4", "no record could be written with KAFKA_REPLICATION_FACTOR=3"),
    ],
)
def test_a_wrong_value_is_named(name, value, says):
    with pytest.raises(ConfigurationError, match=f"{name}.*{says}"):
        Settings.from_environment({**LEAST, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ARCHIVE_S3_ENDPOINT", "https://AKIA:hunter/2@store:9000"),
        ("ARCHIVE_S3_ENDPOINT", "AKIA:hunter/2@store:9000"),
        ("ARCHIVE_DIR", "s3://AKIA:hunter/2@Bucket/archive"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://u:hunter/2@collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:hunter/2@a:4318,http://u:hunter/2@b:0"),
        ("GATEWAY_OIDC_ISSUER", "http://u:hunter2@issuer.example.com"),
        ("GATEWAY_URL", "https://u:hunter/2@gateway /"),
        ("LINEAGE_RECEIVER", "ftp://u:hunter/2@receiver"),
        ("SPARK_MASTER", "spark:// u:hunter/2@spark"),
        ("KAFKA_BOOTSTRAP_SERVERS", "u:hunter/2@broker:9092"),
    ],
)
def test_a_login_in_a_url_is_not_shown(name, value):
    with pytest.raises(ConfigurationError, match=rf"{name}=.*\*\*\*@") as raised:
        Settings.from_environment({**LEAST, name: value})
    assert "hunter" not in str(raised.value)


def test_origins_are_none_one_or_several():
    def of(text):
        return Settings.from_environment({**LEAST, "GATEWAY_ALLOWED_ORIGINS": text}).gateway.allowed_origins

    assert of("") == of(" , ") == ()
    origins = ("https://app.example", "http://127.0.0.1:3000", "http://[::1]:3000")
    assert of(" ,".join(origins)) == origins


def test_a_missing_password_is_named_when_it_is_used():
    settings = Settings.from_environment(LEAST)
    with pytest.raises(ConfigurationError, match="DB_BATCH_PASSWORD"):
        settings.database.password("batch")


@pytest.mark.parametrize("content", ["p w", "p w\n", "p w\r\n"])
def test_a_secret_may_be_in_a_file(tmp_path, content):
    file = tmp_path / "password"
    file.write_bytes(content.encode())
    settings = Settings.from_environment({**LEAST, "DB_BATCH_PASSWORD_FILE": str(file)})
    assert settings.database.password("batch") == "p w"


def test_the_prefix_wins_for_secrets_in_files_too(tmp_path):
    (tmp_path / "plain").write_text("plain")
    (tmp_path / "own").write_text("own")
    plain = {"PIPELINE": "order_detail", "DB_BATCH_PASSWORD_FILE": str(tmp_path / "plain")}
    own = {"ORDER_DETAIL__DB_BATCH_PASSWORD": "own"}
    own_file = {"ORDER_DETAIL__DB_BATCH_PASSWORD_FILE": str(tmp_path / "own")}
    for found in (own, own_file):
        assert Settings.from_environment({**LEAST, **plain, **found}).database.password("batch") == "own"
    assert Settings.from_environment({**LEAST, **plain}).database.password("batch") == "plain"


def test_a_secret_that_is_in_a_file_in_vain_is_refused(tmp_path):
    file, binary, empty = tmp_path / "password", tmp_path / "binary", tmp_path / "empty"
    empty.write_text("\n")
    file.write_text("hush")
    binary.write_bytes(b"\xff")
    for found, message in (
        (
            {"DB_BATCH_PASSWORD_FILE": str(file), "DB_BATCH_PASSWORD": "x"},
            "DB_BATCH_PASSWORD and DB_BATCH_PASSWORD_FILE",
        ),
        ({"DB_BATCH_PASSWORD_FILE": str(tmp_path / "none")}, "none': cannot be read (No such file or directory)"),
        ({"DB_BATCH_PASSWORD_FILE": str(binary)}, "not text in UTF-8"),
        ({"DB_BATCH_PASSWORD_FILE": str(empty)}, "empty': the file is empty; write the secret into it"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            Settings.from_environment({**LEAST, **found})
        assert message in str(raised.value)
        assert "hush" not in str(raised.value)


def test_what_is_not_set_is_left_to_libpq_and_its_own_variables():
    assert Settings.from_environment(LEAST).database.libpq == {}


def test_secrets_are_not_shown():
    secrets = {
        "DB_BATCH_PASSWORD": "hush", "GATEWAY_TOKEN": "hush", "ALERT_WEBHOOK_URL": "https://hooks/hush",
        "ARCHIVE_S3_SECRET_ACCESS_KEY": "hush",
    }  # fmt: skip
    assert "hush" not in repr(Settings.from_environment({**LEAST, **secrets}))
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_environment({**LEAST, "ALERT_WEBHOOK_URL": "hooks/hush"})
    assert "hush" not in str(refused.value)


def test_the_login_to_the_archives_store_is_read_and_half_of_it_is_refused_when_it_is_used(tmp_path):
    (tmp_path / "secret").write_text("hush\n")
    given = {**LEAST, "ARCHIVE_DIR": "s3://bucket/raw/board_detail", "ARCHIVE_S3_ENDPOINT": "https://store:9000",
             "ARCHIVE_S3_REGION": "eu-west-1", "ARCHIVE_S3_ACCESS_KEY_ID": "key"}  # fmt: skip
    in_file = Settings.from_environment({**given, "ARCHIVE_S3_SECRET_ACCESS_KEY_FILE": str(tmp_path / "secret")})
    assert in_file.batch.archive_s3 == S3Connection("https://store:9000", "eu-west-1", "key", "hush")
    open_storage(in_file.batch.archive_dir, in_file.batch.archive_s3)
    half = Settings.from_environment(given).batch  # as the gateway and the stream have it
    with pytest.raises(ConfigurationError, match=r"^ARCHIVE_S3_SECRET_ACCESS_KEY is not set; the id of"):
        open_storage(half.archive_dir, half.archive_s3)
    no_file = Settings.from_environment({**LEAST, "ARCHIVE_S3_CA_FILE": "/none"}).batch.archive_s3
    with pytest.raises(ConfigurationError, match=r"^ARCHIVE_S3_CA_FILE=/none: cannot be read"):
        open_storage("s3://bucket/archive", no_file)


def test_a_certificate_that_is_not_used_is_refused(tmp_path):
    (tmp_path / "ca").write_text("")
    given = {**LEAST, "ARCHIVE_S3_CA_FILE": str(tmp_path / "ca")}
    for more in ({"ARCHIVE_S3_ENDPOINT": "http://store:9000"}, {"ARCHIVE_S3_TLS_VERIFY": "off"}):
        with pytest.raises(ConfigurationError, match=r"ARCHIVE_S3_CA_FILE=.*no effect"):
            Settings.from_environment(given | more)


ORDERS = {**LEAST, "ORDER_DETAIL__DATABASE_NAME": "orders", "ORDER_DETAIL__PIPELINE_TIMEZONE": "America/New_York"}


def test_the_first_pipeline_is_that_of_a_process_of_none():
    assert Settings.from_environment({**ORDERS, "PIPELINES": "order_detail,board_detail"}).database.name == "orders"


def test_a_variable_of_the_pipeline_wins():
    assert Settings.from_environment(ORDERS).database.name == "pipeline"
    for settings in (
        Settings.from_environment(ORDERS, "order_detail"),
        Settings.from_environment({**ORDERS, "PIPELINE": "order_detail"}),
    ):
        assert settings.pipeline.name == "order_detail"
        assert (settings.database.name, settings.timezone) == ("orders", "America/New_York")
        assert settings.database.host == "db"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ORDER_DETAIL__DATABASE_PORT", "five", "^ORDER_DETAIL__DATABASE_PORT='five': not a whole number"),
        ("DATABASE_PORT", "five", "^DATABASE_PORT='five': not a whole number"),
        ("ORDER_DETAIL__GATEWAY_TOKEN", "tökén", "^ORDER_DETAIL__GATEWAY_TOKEN: has a character"),
        ("ORDER_DETAIL__DATABSE_NAME", "orders", "^ORDER_DETAIL__DATABSE_NAME: DATABSE_NAME is no setting of a pipel"),
    ],
)
def test_a_wrong_variable_of_the_pipeline_is_named(name, value, says):
    with pytest.raises(ConfigurationError, match=says):
        Settings.from_environment({**ORDERS, name: value}, "order_detail")


def test_the_pipelines_that_run_side_by_side():
    assert pipeline_names({}) == ["board_detail"]
    assert pipeline_names({"PIPELINE": "order_detail"}) == ["order_detail"]
    assert pipeline_names({"PIPELINES": "board_detail, order_detail"}) == ["board_detail", "order_detail"]
    for wrong in ("board_detail,board_detail", "orders", "board_detail,", "../pipelines/board_detail", "9" * 300):
        with pytest.raises(ConfigurationError, match=f"PIPELINES=.*: {WRONG_PIPELINES}"):
            pipeline_names({"PIPELINES": wrong})


def test_further_pipelines_have_their_name_behind_the_ids_of_their_dags(monkeypatch):
    monkeypatch.setenv("PIPELINE", "order_detail")
    monkeypatch.setenv("PIPELINES", "")
    assert dag_ids("order_detail")["undo_day"] == "undo_day"
    monkeypatch.setenv("PIPELINES", "board_detail,order_detail")
    assert dag_ids("board_detail")["undo_day"] == "undo_day"
    assert dag_ids("order_detail") == {
        "nightly_rebuild": "nightly_rebuild_order_detail",
        "rebuild_day": "rebuild_day_order_detail",
        "reprocess_days": "reprocess_days_order_detail",
        "undo_day": "undo_day_order_detail",
        "replay_fallback": "replay_fallback_order_detail",
        "forget_member": "forget_member_order_detail",
        "watch_pipeline": "watch_pipeline_order_detail",
        "audit": "audit_order_detail",
    }
