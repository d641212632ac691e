import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.runtime.kinds import PORT
from include.runtime.settings import Settings
from stack import env_file
from stack.env_file import load_environment, load_settings, without_secrets
from stack.layout import Layout, StackError
from stack.machine import LOOPBACK, unused
from stack.settings_table import SECTIONS
from tests.support.messages import WRONG_PIPELINES

TWO = {"PIPELINES": "board_detail,order_detail"}


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server((LOOPBACK, 0)) as server:
        yield int(server.getsockname()[1])


def layout_in(folder: Path) -> Layout:
    return Layout.of(root=folder)


def test_file_is_private_and_has_every_variable(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    env_file.ensure(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(env_file.read(path)) == {each.variable for each in env_file.lines_of({})}


def test_secrets_differ_from_each_other_and_between_files(tmp_path: Path) -> None:
    names = [each.variable for each in env_file.lines_of({}) if each.kind.is_secret and callable(each.env)]
    values = []
    for path in (tmp_path / "one", tmp_path / "two"):
        env_file.ensure(path)
        values += [env_file.read(path)[name] for name in names]
    assert len(set(values)) == 2 * len(names)
    assert min(len(value) for value in values) >= 32


def test_busy_default_port_gives_way_and_says_so(tmp_path: Path, busy_port: int) -> None:
    notes = env_file.ensure(tmp_path / ".env", {"GATEWAY_PORT": str(busy_port)})
    values = env_file.read(tmp_path / ".env")
    assert int(values["GATEWAY_PORT"]) > busy_port
    assert values["GATEWAY_URL"] == f"http://127.0.0.1:{values['GATEWAY_PORT']}"
    assert f"port {busy_port} is in use, GATEWAY_PORT is {values['GATEWAY_PORT']} instead" in notes


def test_no_two_variables_get_one_port(tmp_path: Path) -> None:
    (port,) = unused(1)
    names = [each.variable for each in env_file.lines_of(TWO) if each.kind is PORT]
    env_file.ensure(tmp_path / ".env", {**TWO, **dict.fromkeys(names, str(port))})
    values = env_file.read(tmp_path / ".env")
    assert len({values[name] for name in names}) == len(names) == 9


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    env_file.ensure(path)
    first = path.read_bytes()
    assert env_file.ensure(path) == []
    assert path.read_bytes() == first


def test_missing_variables_are_added_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# mine\nKAFKA_PORT=40001\n")
    notes = env_file.ensure(path)
    assert path.read_text().startswith("# mine\nKAFKA_PORT=40001\n")
    assert env_file.read(path)["KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:40001"
    assert any("added" in note for note in notes)


NO_SETTING = "no setting has the name"


def test_a_variable_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    env_file.ensure(path)
    at = len(path.read_text().splitlines()) + 1
    with path.open("a") as file:
        file.write(
            "UNDO_DAYS=30\nMINE=1\nCOMPOSE_PROFILES=a\nAIRFLOW__CORE__X=1\nTEAM_ORDER_DETAIL_ARCHIVE_DIR=s3://b/a\n"
        )
    before = path.read_text()
    remedy = "so the line has no effect: correct the name or remove the line"
    with pytest.raises(StackError, match=f"line {at}: {NO_SETTING} UNDO_DAYS, {remedy}$"):
        env_file.ensure(path)
    assert path.read_text() == before
    path.write_text(before.replace("UNDO_DAYS=30\n", ""))
    assert env_file.ensure(path) == []


@pytest.mark.parametrize("name", ["STACK_STATE", "KAFKA_HEAP_OPTS", "TEAM_DATABASE_HOSTS", "GATEWAY_PORT_FILE"])
def test_a_name_that_other_text_of_the_product_has_is_no_setting(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(f"{name}=1\n")
    with pytest.raises(StackError, match=f"line 1: {NO_SETTING} {name}"):
        env_file.ensure(tmp_path / ".env")


def test_every_setting_may_have_a_line(tmp_path: Path) -> None:
    names = [name for section in SECTIONS for each in section.settings for name in each.variables]
    assert {"STREAM_JOIN_MAX_BATCH_RECORDS", "KAFKA_IMAGE", "DB_BATCH_PASSWORD_FILE"} <= {*names}
    assert {each.variable for section in SECTIONS for each in section.settings if each.kind.is_secret} == {
        name for name in names if name not in without_secrets(dict.fromkeys(names, ""))
    }
    (tmp_path / ".env").write_text("".join(f"{name}=\nORDER_DETAIL__{name}=\n" for name in names))
    env_file.ensure(tmp_path / ".env")


def test_a_variable_that_two_lines_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("KAFKA_PORT=1\n\nKAFKA_PORT=2\n")
    for call in (env_file.ensure, env_file.read):
        with pytest.raises(StackError, match="lines 1 and 3 both set KAFKA_PORT: keep one of them"):
            call(path)


def test_a_setting_that_this_version_added_has_its_default(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    text = layout.env_file.read_text()
    layout.env_file.write_text(text.replace("UNDO_RETENTION_DAYS=7\n", ""))
    assert load_settings(layout)["UNDO_RETENTION_DAYS"] == "7"
    layout.env_file.write_text(re.sub(r"GATEWAY_(URL|PORT)=.*\n", "", text) + "GATEWAY_PORT=18079\n")
    assert load_settings(layout)["GATEWAY_URL"] == "http://127.0.0.1:18079"  # a default that uses another variable


def test_reads_quotes_comments_references_and_export(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# c\n\nexport A=1 # one\nB='x y'\nC=\"${A}${B}\"\nD=\n")
    assert env_file.read(path) == {"A": "1", "B": "x y", "C": "1x y", "D": ""}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"A=1\nnonsense\n", "line 2 is not NAME=value"),
        (b"\xef\xbb\xbfA=1\n", "line 1 is not NAME=value .*byte order mark"),
        ("A=1\n".encode("utf-16"), "line 1 is not UTF-8"),
        ("A=1\nB=서울\n".encode("cp949"), "line 2 is not UTF-8 text: save the file in that encoding"),
        (b"A=1\nB=a\0b\n", "line 2 is not NAME=value"),
        (b"A=1\nB=${C}\n", r"line 2: B uses \$\{C\}, which no line sets: set it in a line above"),
        (b"A=1\nB=${A}\nC=3\nA=2\n", "lines 1 and 4 both set A: keep one of them"),
        (b"B=${A}\nA=2\n", "line 2 sets A, which line 1 above uses for B: move line 2 above it"),
    ],
)  # fmt: skip
def test_line_that_a_shell_would_read_otherwise_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / ".env"
    path.write_bytes(content)
    with pytest.raises(StackError, match=says) as caught:
        env_file.read(path)
    assert "\n" not in str(caught.value)


def test_missing_variable_is_added_above_the_line_that_uses_it(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("# mine\nKAFKA_BOOTSTRAP_SERVERS=127.0.0.1:${KAFKA_PORT}\nGATEWAY_PORT=40002\n")
    env_file.ensure(path)
    values = env_file.read(path)
    assert values["KAFKA_BOOTSTRAP_SERVERS"] == f"127.0.0.1:{values['KAFKA_PORT']}"
    assert values["GATEWAY_URL"] == "http://127.0.0.1:40002"
    shell = subprocess.run(
        ["/bin/sh", "-c", '. "$0"; echo "$KAFKA_BOOTSTRAP_SERVERS $GATEWAY_URL"', str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shell.stdout.split() == [values["KAFKA_BOOTSTRAP_SERVERS"], values["GATEWAY_URL"]]


def test_environment_of_a_tool_satisfies_the_settings(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    variables = load_environment(layout)
    settings = Settings.from_environment(variables)
    assert settings.gateway.fallback_dir == tmp_path / ".state" / "fallback"
    assert settings.gateway.tokens_file == layout.run / "gateway-tokens.json"
    assert settings.spark.jars_dir == layout.spark_jars
    assert "STACK_STATE" not in variables


def test_environment_before_the_first_run_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="make up"):
        load_settings(layout_in(tmp_path))


def test_a_process_gets_only_the_secrets_it_asks_for(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    kept = without_secrets(load_settings(layout), keep=["DB_STREAM_PASSWORD"])
    secret = {each.variable for each in env_file.lines_of({}) if each.kind.is_secret and callable(each.env)}
    assert secret.intersection(kept) == {"DB_STREAM_PASSWORD"}
    assert kept["KAFKA_PORT"]


def test_the_archive_is_below_the_state(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    settings = Settings.from_environment(load_environment(layout))
    assert str(settings.batch.archive_dir) == str(layout.state / "archive")
    assert (settings.batch.rows_per_task, settings.batch.undo_retention_days) == (100_000, 7)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("KAFKA_HEAP", "768 m", "not a memory size; give a number and m or g"),
        ("GATEWAY_PORT", "99999", "not a whole number from 1 to 65535"),
        ("AIRFLOW_PORT", "²", "not a whole number"),
        ("GATEWAY_URL", "http://127.0.0.1:99999", "not http://host:port"),
        ("DB_STREAM_PASSWORD", "", "is empty in .env: remove its line"),
        ("AIRFLOW_FERNET_KEY", "short", "is not 32 bytes in URL-safe base64: put the old one back"),
        ("STREAM_METRICS_PORT", "${GATEWAY_PORT}", "GATEWAY_PORT and STREAM_METRICS_PORT in .env are both"),
    ],
)  # fmt: skip
def test_value_that_the_stack_cannot_use_is_one_line_with_the_remedy(
    tmp_path: Path, name: str, value: str, says: str
) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    with_value(layout.env_file, name, value)
    with pytest.raises(StackError, match=says) as caught:
        load_settings(layout)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variable_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    layout.env_file.write_text("KAFKA_PORT=1\n")
    with pytest.raises(StackError, match=r"\.env has no DB_AIRFLOW_PASSWORD, .*: `make up` adds"):
        load_settings(layout)


def test_each_further_pipeline_has_a_database_folders_and_ports_of_its_own(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    first = load_settings(layout)
    with_value(layout.env_file, "PIPELINES", "board_detail, order_detail")
    *_, added = env_file.ensure(layout.env_file)  # after notes of ports that are in use
    assert added == (
        ".env had no ORDER_DETAIL__DATABASE_NAME, ORDER_DETAIL__STREAM_CHECKPOINT_DIR, "
        "ORDER_DETAIL__STREAM_METRICS_PORT, ORDER_DETAIL__STREAM_SERVE_METRICS_PORT, ORDER_DETAIL__ARCHIVE_DIR: added"
    )
    assert env_file.ensure(layout.env_file) == []
    settings = load_settings(layout)
    boards, orders = (Settings.from_environment(settings, name) for name in ("board_detail", "order_detail"))
    assert boards == Settings.from_environment(first)
    assert (orders.database.name, orders.pipeline.name) == ("order_detail", "order_detail")
    assert orders.stream.checkpoint_dir == layout.state / "pipelines" / "order_detail" / "checkpoints"
    assert orders.batch.archive_dir == str(layout.state / "pipelines" / "order_detail" / "archive")
    assert orders.stream.metrics_port != boards.stream.metrics_port


def test_pipeline_is_added_to_the_list_once_and_other_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    env_file.ensure(path)
    before = path.read_text()
    assert env_file.add_pipeline(path, "order_detail")
    assert not env_file.add_pipeline(path, "order_detail")
    assert path.read_text() == before.replace("PIPELINES=board_detail\n", "PIPELINES=board_detail,order_detail\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(StackError, match=WRONG_PIPELINES):
        env_file.add_pipeline(path, "orders")


def test_paths_are_below_another_state_folder_and_jars_are_not(tmp_path: Path) -> None:
    env_file.ensure(tmp_path / ".env", TWO, tmp_path / "state")
    values = env_file.read(tmp_path / ".env")
    assert values["ORDER_DETAIL__ARCHIVE_DIR"] == str(tmp_path / "state" / "pipelines" / "order_detail" / "archive")
    assert values["GATEWAY_TOKENS_FILE"] == str(tmp_path / "state" / "run" / "gateway-tokens.json")
    assert values["SPARK_KAFKA_JARS_DIR"] == ".state/jars/spark-kafka"


@pytest.mark.parametrize("names", ["board_detail,orders", "board_detail,board_detail", "board_detail,", "${X}", "Ä"])
def test_pipelines_without_a_definition_are_refused_before_anything_is_added(tmp_path: Path, names: str) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file)
    with_value(layout.env_file, "PIPELINES", names)
    before = layout.env_file.read_text()
    with pytest.raises(StackError, match=rf"in \.env, PIPELINES=.*: {WRONG_PIPELINES}"):
        env_file.ensure(layout.env_file)
    assert layout.env_file.read_text() == before


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ORDER_DETAIL__DATABASE_NAME", "pipeline", "pipeline board_detail has 'pipeline', and order_detail needs"),
        ("ORDER_DETAIL__ARCHIVE_DIR", "./.state/archive", "remove the line, and `make up` adds it"),
        ("ORDER_DETAIL__STREAM_CHECKPOINT_DIR", ".state/checkpoints/orders", "needs its own"),
        ("ORDER_DETAIL__STREAM_METRICS_PORT", "${STREAM_METRICS_PORT}", "STREAM_METRICS_PORT and ORDER_.* both"),
        ("ORDER_DETAIL__STREAM_SERVE_METRICS_PORT", "", "is empty in .env: remove its line"),
        ("ORDER_DETAIL__STREAM_DRIVER_MEMORY", "2 g", "ORDER_DETAIL__STREAM_DRIVER_MEMORY='2 g': not a memory size"),
        ("ORDER_DETAIL__DATABSE_NAME", "x", "DATABSE_NAME is no setting of a pipeline"),
        ("PIPELINE", "order_detail", "each process gets its own from the stack; .* name the pipelines in PIPELINES"),
    ],
)  # fmt: skip
def test_settings_that_pipelines_cannot_share_are_one_line_with_the_remedy(
    tmp_path: Path, name: str, value: str, says: str
) -> None:
    layout = layout_in(tmp_path)
    env_file.ensure(layout.env_file, TWO)
    load_settings(layout)
    with layout.env_file.open("a") as file:
        file.write(f"{name}=\n" * (f"\n{name}=" not in layout.env_file.read_text()))
    with_value(layout.env_file, name, value)
    with pytest.raises(StackError, match=says) as caught:
        load_settings(layout)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def with_value(path: Path, name: str, value: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{name}={value}\n" if line.startswith(f"{name}=") else f"{line}\n" for line in lines))


def test_a_file_that_others_could_read_is_closed_and_said_so(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    env_file.ensure(path)
    path.chmod(0o644)
    (note,) = env_file.ensure(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ".env had mode 0644: now 0600" in note
    assert env_file.ensure(path) == []


def test_each_clone_is_a_compose_project_of_its_own(tmp_path: Path) -> None:
    names = []
    for clone in ("one", "two"):
        (tmp_path / clone).mkdir()
        env_file.ensure(tmp_path / clone / ".env")
        names.append(env_file.read(tmp_path / clone / ".env")["COMPOSE_PROJECT_NAME"])
    assert names[0] != names[1]
