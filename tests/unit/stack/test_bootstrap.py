import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stack import bootstrap, jars, machine, postgres
from stack.jars import Jar, first_difference, read_lock
from stack.layout import Layout, StackError
from tests.servers import wait_until
from tests.support.messages import IN_USE


def java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_JAVA_FOLDERS", tmp_path / "nowhere")


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.2", "25.0.3", "25.0.3.0.1", "25.0.4", "25.1"])
def test_takes_java_of_java_home(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "jdk", version)
    assert machine.find_java({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_takes_java_on_path_when_java_home_is_too_old(tmp_path: Path) -> None:
    old, good = java(tmp_path / "old", "1.8.0_402"), java(tmp_path / "good", "17.0.1")
    assert machine.find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}) == good


def test_missing_java_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    old = java(tmp_path / "old", "11.0.2")
    with pytest.raises(StackError) as caught:
        machine.find_java({"JAVA_HOME": str(old), "PATH": ""})
    message = str(caught.value)
    assert "\n" not in message
    assert f"{old} is Java 11" in message
    assert "install" in message


@pytest.mark.parametrize("version", ["25", "25-ea", "25.0.1", "25.0.2"])
def test_a_java_that_corrupts_data_is_refused_with_the_reason(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "jdk", version)
    with pytest.raises(StackError, match=r"is Java 25[.012]*, which corrupts data .* G1: 25\.0\.3 does not"):
        machine.find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_full_disk_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"GB are free on the disk of .* set-up needs .*: free some") as caught:
        machine.check_disk(tmp_path, needed_bytes=2**62)
    assert "\n" not in str(caught.value)


def test_enough_disk_passes(tmp_path: Path) -> None:
    machine.check_disk(tmp_path, needed_bytes=1)


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_other_python_is_refused_with_the_remedy(version: tuple[int, int]) -> None:
    with pytest.raises(StackError, match=r"install Python 3\.11 or 3\.12"):
        machine.check_python(version)


@pytest.mark.parametrize("version", [(3, 11), (3, 12)])
def test_supported_python_passes(version: tuple[int, int]) -> None:
    machine.check_python(version)


def test_lock_names_each_jar_once_with_its_checksum() -> None:
    locked = read_lock()
    assert {jar.set_name for jar in locked} == set(jars.ROOTS)
    assert len({(jar.set_name, jar.artifact) for jar in locked}) == len(locked)
    assert all(len(jar.sha256) == 64 for jar in locked)


def test_jars_for_spark_repeat_none_of_its_own(tmp_path: Path) -> None:
    import pyspark

    in_spark = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    assert in_spark, "pyspark has no jars"
    assert not [jar for jar in read_lock() if jar.set_name == "spark-kafka" and jar.artifact in in_spark]


def test_folder_as_locked_has_no_difference(tmp_path: Path) -> None:
    assert first_difference(tmp_path, [jar_file(tmp_path, "a", b"1"), jar_file(tmp_path, "b", b"2")]) is None


def test_changed_missing_and_foreign_jars_are_named(tmp_path: Path) -> None:
    locked = [jar_file(tmp_path, "a", b"1"), jar_file(tmp_path, "b", b"2")]
    (tmp_path / "b-1.jar").write_bytes(b"changed")
    assert first_difference(tmp_path, locked) == "b-1.jar"
    (tmp_path / "b-1.jar").unlink()
    assert first_difference(tmp_path, locked) == "b-1.jar"
    (tmp_path / "b-1.jar").write_bytes(b"2")
    (tmp_path / "c-1.jar").write_bytes(b"foreign")
    assert first_difference(tmp_path, locked) == "c-1.jar"


def test_jars_that_are_in_use_are_not_replaced(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path)
    layout.kafka_jars.mkdir(parents=True)
    lock = tmp_path / "jars.lock"
    lock.write_text(f"kafka-broker org.apache.kafka:kafka_2.13:9.9 {'0' * 64}\n")
    broker = ["/bin/sh", "-c", "sleep 60; true", f"{layout.kafka_jars}/*"]  # as a class path names it
    with subprocess.Popen(broker, start_new_session=True) as process:
        try:
            command_line = Path(f"/proc/{process.pid}/cmdline")  # empty for a moment while the program is loaded
            wait_until(lambda: str(layout.kafka_jars) in command_line.read_text(), 10, "the broker runs")
            with pytest.raises(StackError, match=f"kafka-broker {IN_USE}.*pid {process.pid}"):
                jars.ensure(layout, tmp_path, tmp_path, lock, bootstrap.require_unused)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def jar_file(folder: Path, artifact: str, content: bytes) -> Jar:
    import hashlib

    (folder / f"{artifact}-1.jar").write_bytes(content)
    return Jar("set", "group", artifact, "1", hashlib.sha256(content).hexdigest())


def test_named_folder_without_postgresql_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="POSTGRES_BIN_DIR"):
        postgres.find({"POSTGRES_BIN_DIR": str(tmp_path)})


def test_choice_of_postgresql_is_recorded_and_its_loss_named(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("initdb", "postgres"):
        (folder / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 16.3'\n")
        (folder / name).chmod(0o755)
    record = tmp_path / "binaries.json"
    chosen = postgres.choose(record, {"POSTGRES_BIN_DIR": str(folder)})
    assert chosen.major == 16
    assert postgres.choose(record, {}) == chosen
    shutil.rmtree(folder)
    with pytest.raises(StackError, match=r"PostgreSQL 16 .* gone"):
        postgres.choose(record, {})


def test_postgresql_of_an_environment_that_is_gone_is_found_in_the_present_one(tmp_path, monkeypatch):
    def programs(folder: Path, version: str) -> Path:
        folder.mkdir()
        for name in ("initdb", "postgres"):
            (folder / name).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
            (folder / name).chmod(0o755)
        return folder

    old, new = programs(tmp_path / "old", "18.1"), programs(tmp_path / "new", "18.6")
    record = tmp_path / "binaries.json"
    postgres.choose(record, {"POSTGRES_BIN_DIR": str(old)})
    shutil.rmtree(old)
    monkeypatch.setattr(postgres, "from_wheel", lambda: postgres.inspect(new))
    assert postgres.choose(record, {}).folder == new
    shutil.rmtree(new)
    programs(new, "19.0")
    monkeypatch.setattr(postgres, "_machine_folders", lambda _: iter(()))
    with pytest.raises(StackError, match=r"PostgreSQL 18 .* gone"):
        postgres.choose(record, {})


@pytest.mark.parametrize("name", ["a b", "100%", "é", "한글", "a+b-c_d.e"])
def test_path_that_works_passes(name: str) -> None:
    machine.check_path(Path("/home") / name)


@pytest.mark.parametrize(
    "name", ["a:b", "a;b", "a,b", 'a"b', "a'b", "a$b", "a\\b", "a*b", "a\nb", "a{b", "(1)", "[x]", "#"]
)
def test_path_that_some_part_reads_as_its_syntax_is_refused(name: str) -> None:
    with pytest.raises(StackError, match="clone the project to another folder") as caught:
        machine.check_path(Path("/home") / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("called", ["by its path", "by a link"])
def test_the_command_runs_the_project_that_has_the_environment(tmp_path: Path, called: str) -> None:
    layout = Layout.of(tmp_path / "50% of project")
    (layout.venv / "bin").mkdir(parents=True)
    (layout.venv / "bin" / "python").symlink_to(sys.executable)
    package = layout.root / "pipeline"
    package.mkdir()
    (package / "__main__.py").write_text("import sys\nprint(__file__, sys.argv[1:])\nsys.exit(75)\n")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "pipeline").mkdir(parents=True)  # another package of that name, in the folder of the shell
    (elsewhere / "pipeline" / "__main__.py").write_text("print('the wrong one')\n")
    for _ in range(2):
        bootstrap.make_command(layout)
    command = layout.venv / "bin" / "pipeline"
    if called == "by a link":
        command = tmp_path / "link"
        command.symlink_to(layout.venv / "bin" / "pipeline")
    ran = subprocess.run([command, "days", "a b", ""], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == (f"{package / '__main__.py'} {['days', 'a b', '']}\n", 75), ran.stderr
