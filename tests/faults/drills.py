"""Drills on a local stack of their own: `python -m tests.faults.drills [--drill restore|upgrade] [--ref COMMIT]`.

restore: under load the stack is backed up; later a day is published, then PostgreSQL's data are lost. The backup
is restored, the stack goes on, and the day is rebuilt and certified.

upgrade: an earlier version runs under load, is backed up and upgraded to this one, with a migration that the drill
makes up. The earlier version refuses the upgraded database; the backup is restored, and it goes on with that.

After each, every event that was answered 2xx must be in its topic, the day must be exactly what the rules say of the
topics, and the site's tables must have what the topics have. Exit codes are those of `tests/faults/frame.py`.
"""

import argparse
import datetime as dt
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import SITE_NAME
from include.integrity.days.due_days import days_to_rebuild
from include.runtime.kinds import PORT
from include.runtime.settings import Settings
from stack import env_file
from stack.backup import ENV_FILE, copy_private
from stack.layout import Layout
from stack.run_service import write_gateway_tokens
from tests.fakes.events import AT
from tests.faults import frame
from tests.faults.batch_parts import DayReader
from tests.faults.batch_verdict import DayVerdict, judge_rows
from tests.faults.journal import read_journal
from tests.faults.load import Summary
from tests.faults.parts import add_second_sender
from tests.faults.rounds import start_load
from tests.faults.rows import RowLoad, missing_versions, saved, version_of
from tests.faults.rows import judge_rows as judge_versions
from tests.faults.stream_topics import Log
from tests.faults.stream_topics import TopicReader as LogReader
from tests.faults.topic import TopicReader, copy_of
from tests.faults.verdict import judge
from tests.servers import wait_until
from tests.support.broker import PARTITIONS
from tests.support.clone import copy_sources, link_jars, version_in
from tests.support.gateway_process import ROOT, GatewayProcess
from tests.support.migrations import VERSIONS, last_tag, make_up

SERVICES = "gateway,stream"  # and what they need: Kafka and PostgreSQL
_CLIENTS = 8
_LOAD_S = 6.0
_SHORT_S = 3.0
_LOAD_BEGINS_S = 60.0
_LOAD_ENDS_S = 120.0
_CAUGHT_UP_S = 180.0
_SETTLED_S = 2.0
_COMMAND_S = 400.0
_MAKE_ENV_FILE = """
import json, sys
from pathlib import Path
from stack import env_file
env_file.ensure(Path(sys.argv[1]), json.loads(sys.argv[2]), state=Path(sys.argv[3]))
"""
_RECONCILE = ("-m", "pipeline", "gateway", "reconcile", "--min-age-s", "2")
_A_MIGRATION = "CREATE TABLE of_the_drill (day date)"

Findings = dict[str, list[str]]


@dataclass
class Drill:
    """A stack in a folder, run by the code in `root`."""

    layout: Layout
    folder: Path
    seed: int
    root: Path = ROOT
    loads: int = 0
    answered: list[Path] = field(default_factory=list)
    rows: list[RowLoad] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a command by hand."""
        return {**env_file.load_environment(self.layout), "PYTHONPATH": str(self.root)}

    @property
    def settings(self) -> Settings:
        """The pipeline's settings."""
        return Settings.from_environment(self.variables)

    @property
    def gateway(self) -> GatewayProcess:
        """The stack's gateway, which the load calls."""
        return GatewayProcess(self.variables, self.layout.log_file("gateway"))

    def stack(self, *arguments: str, root: Path | None = None) -> str:
        """Run a command of the stack; returns its output. Raises AssertionError if it fails."""
        code, output = self.try_stack(*arguments, root=root)
        assert code == 0, f"stack {' '.join(arguments)} ended with {code}:\n{output}"
        return output

    def try_stack(self, *arguments: str, root: Path | None = None, env_file: Path | None = None) -> tuple[int, str]:
        """Run a command of the stack; returns its exit code and output."""
        where = ["--state", str(self.layout.state), "--env-file", str(env_file or self.layout.env_file)]
        return self._run(root or self.root, dict(os.environ), "-m", "stack", *where, *arguments)

    def step(self, *arguments: str) -> str:
        """Run a command of the pipeline by hand; returns its output. Raises AssertionError if it fails."""
        code, output = self.try_step(*arguments)
        assert code == 0, f"{' '.join(arguments)} ended with {code}:\n{output[-3000:]}"
        return output

    def try_step(self, *arguments: str) -> tuple[int, str]:
        """Run a command of the pipeline by hand; returns its exit code and output."""
        return self._run(self.root, self.variables, *arguments)

    @contextmanager
    def load(self, seconds: float) -> Iterator[None]:
        """Post events, and make, change and delete members, during the block and for that long before and after it."""
        number, gateway = self.loads, self.gateway
        self.loads += 1
        journal = self.folder / f"load-{number}.jsonl"
        self.answered.append(journal)
        load = start_load(gateway, self.settings.pipeline, journal, number, self.seed, _CLIENTS)
        self.rows.append(RowLoad(gateway.url, gateway.settings.gateway.token, f"{self.seed}-{number}"))
        try:
            wait_until(lambda: journal.exists() and journal.stat().st_size > 0, _LOAD_BEGINS_S, "the load has begun")
            time.sleep(seconds)
            yield
            time.sleep(seconds)
            output, _ = load.communicate(timeout=_LOAD_ENDS_S)
        finally:
            load.kill()
            load.wait()
            self.rows[-1].stop()
        summary = msgspec.json.decode(output, type=Summary)
        assert summary.is_complete, f"calls stayed without an answer: {summary}"
        print(f"    load {number}: answers {dict(sorted(summary.answers.items()))}", flush=True)

    def night(self, run: str, day: Day) -> None:
        """Do for the day what a night does, with its certificate. Raises AssertionError if it is not certified."""
        self.wait_until_caught_up()
        self.step("spark_jobs/archive_day.py", "--run-id", run)
        self.step("spark_jobs/rebuild_day.py", "--day", str(day), "--run-id", run)
        for step in ("verify", "publish"):
            self.step("-m", "pipeline", "days", step, "--day", str(day), "--run-id", run)
        self.step("-m", "pipeline", "days", "certify", "--day", str(day))

    def wait_until_caught_up(self) -> None:
        """Wait until the stream has taken all records, also those that waited."""
        reader, settings = self._log_reader(), self.settings
        for _ in range(2):
            is_done = partial(DayReader(settings).is_caught_up, reader)
            wait_until(is_done, _CAUGHT_UP_S, f"the stream has caught up, see {self.layout.logs}")
            time.sleep(_SETTLED_S)

    def findings(self, day: Day) -> Findings:
        """Return the broken promises of all loads, and of the published day."""
        settings, bootstrap = self.settings, self.settings.kafka.bootstrap_servers
        pipeline = settings.pipeline
        copies = TopicReader(bootstrap, pipeline.stream.name, partial(copy_of, pipeline.stream.key_field)).read_on()
        versions = TopicReader(bootstrap, pipeline.table.name, version_of).read_on()
        answered = [version for rows in self.rows for version in rows.answered]
        entries = [entry for journal in self.answered for entry in read_journal(journal)]
        assert answered, "no member was saved"
        present = saved(settings.database)
        verdict = judge(entries, copies, 0, judge_versions(answered, present, versions),
                        missing_versions(answered, versions))  # fmt: skip
        found: Findings = {promise: list(where) for promise, where in verdict.faults.items()}
        found["odd answers for rows"] = [problem for rows in self.rows for problem in rows.odd]
        log = Log(pipeline)
        for record in self._log_reader().read_on(pipeline.table.name, pipeline.stream.name):
            log.take(record)
        newest = {key: max(of, key=lambda one: one.version) for key, of in log.table.items()}
        kept = {row_id: dt.datetime.fromisoformat(at) for row_id, at, _ in present}
        found["members that the topic has and the site has not, or has of another time"] = [
            f"{key}: {kept.get(key)}, not {one.at}"
            for key, one in newest.items() if not one.deleted and kept.get(key) != one.at
        ]  # fmt: skip
        reader = DayReader(settings)
        published = reader.published(day)
        assert published is not None, f"{day} is not published"
        of_day = DayVerdict()
        judge_rows(day, log, reader.day(day), reader.generation(published), of_day)
        assert of_day.rows, f"{day} has no rows, so the comparison says nothing"
        print(f"    {verdict.kept} events kept, {len(answered)} versions of members, {of_day.rows} rows of {day}")
        return {promise: where for promise, where in {**found, **of_day.faults}.items() if where}

    def _log_reader(self) -> LogReader:
        return LogReader(self.settings.kafka.bootstrap_servers, self.settings.kafka.partitions)

    def _run(self, root: Path, variables: Mapping[str, str], *arguments: str) -> tuple[int, str]:
        clean = {name: value for name, value in variables.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=root, env={**clean, "PYTHONPATH": str(root)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        with (self.folder / "commands.log").open("a") as log:
            log.write(f"--- {root}: {' '.join(arguments)}: {done.returncode}\n{done.stdout}")
        return done.returncode, done.stdout


@contextmanager
def drill_in(folder: Path, seed: int, root: Path = ROOT) -> Iterator[Drill]:
    """Yield a drill whose stack is down at first and at the end; `root` is the code that it begins with."""
    layout = Layout.of(state=folder / "state", env_file=folder / ".env")
    folder.mkdir(parents=True, exist_ok=True)
    first = random.randrange(20_000, 30_000)
    ports = [each.variable for each in env_file.lines_of({}) if each.kind is PORT]
    values = {name: str(first + n) for n, name in enumerate(ports)}
    values["KAFKA_PARTITIONS"] = str(PARTITIONS)
    layout.make_folders()
    # by the version that runs first: it refuses settings of a later one
    arguments = [str(layout.env_file), json.dumps(values), str(layout.state)]
    subprocess.run([sys.executable, "-c", _MAKE_ENV_FILE, *arguments], cwd=root, check=True)
    drill = Drill(layout, folder, seed, root)
    write_gateway_tokens(env_file.load_settings(layout))
    add_second_sender(drill.gateway, drill.settings.pipeline)
    try:
        yield drill
    finally:
        drill.try_stack("down", root=ROOT)


def restore_drill(folder: Path, seed: int) -> Findings:
    """Lose PostgreSQL's data after a publication, and restore a backup that was made before it."""
    backup = folder / "backup"
    with drill_in(folder, seed) as drill:
        day = Day.of(dt.datetime.fromisoformat(AT), drill.settings.timezone)
        _tell("start, load, back up")
        drill.stack("up", "--only", SERVICES)
        with drill.load(_LOAD_S):
            pass
        drill.wait_until_caught_up()  # so the backup has rows of the day
        with drill.load(_LOAD_S):
            drill.stack("backup", str(backup))
        _tell(f"publish and certify {day}")
        drill.night("before", day)
        _tell("PostgreSQL's data are lost under load")
        with drill.load(_SHORT_S):
            drill.stack("stop", "postgres")
            shutil.rmtree(drill.layout.postgres / "data")
        drill.stack("down")
        _tell("restore the backup, start")
        print(drill.stack("restore", str(backup)), end="", flush=True)
        drill.stack("up", "--only", SERVICES)
        settings = drill.settings
        assert DayReader(settings).published(day) is None, f"{day} is still published: the backup was not restored"
        yesterday = Day.of(SystemClock().now(), day.zone).before()
        assert str(day) in days_to_rebuild(settings, yesterday), f"the night does not rebuild {day}"
        _tell("nothing is certified before reconcile; reconcile, load, rebuild, certify")
        code, output = drill.try_step("-m", "pipeline", "days", "certify", "--day", str(day))
        assert code != 0, f"{day} is certified before reconcile:\n{output}"
        with drill.load(_SHORT_S):
            print(*drill.step(*_RECONCILE).splitlines()[-2:], sep="\n", flush=True)
        drill.night("after", day)
        print(drill.step("-m", "pipeline", "days", "status"), end="")
        return drill.findings(day)


def upgrade_drill(folder: Path, seed: int, ref: str) -> Findings:
    """Upgrade a version under load, go back by its backup, and go on."""
    earlier, later, backup = version_in(folder / "earlier", ref), folder / "later", folder / "backup"
    link_jars(Layout.of(earlier))
    copy_sources(later)
    [revision] = make_up(later / VERSIONS, _A_MIGRATION)
    with drill_in(folder, seed, earlier) as drill:
        day = Day.of(dt.datetime.fromisoformat(AT), drill.settings.timezone)
        _tell(f"start {ref}, load, back up")
        drill.stack("up", "--only", SERVICES)
        with drill.load(_LOAD_S):
            drill.stack("backup", str(backup), root=ROOT)
        _tell(f"upgrade to schema {revision} under load")
        drill.root = later
        with drill.load(_SHORT_S):
            print(drill.stack("up", "--only", SERVICES).splitlines()[0], flush=True)
        drill.night("upgraded", day)
        found = {f"upgraded: {promise}": where for promise, where in drill.findings(day).items()}
        drill.stack("down")
        _tell("the earlier version refuses the database; restore the backup, go back")
        former = folder / ".env.former"
        copy_private(backup / ENV_FILE, former)
        code, output = drill.try_stack("up", "--only", SERVICES, root=earlier, env_file=former)
        if code == 0 or revision not in output:
            found["the earlier version does not refuse the later schema by its revision"] = [output]
        drill.stack("down")
        print(drill.stack("restore", str(backup), "--force"), end="", flush=True)
        drill.root = earlier
        drill.stack("up", "--only", SERVICES)
        with drill.load(_SHORT_S):
            drill.step(*_RECONCILE)
        drill.night("back", day)
        return {**found, **{f"back: {promise}": at for promise, at in drill.findings(day).items()}}


def _tell(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> int:
    """Run the drills and print their findings."""
    parser = argparse.ArgumentParser(description="Restores and upgrades a local stack under load.")
    parser.add_argument("--drill", choices=["restore", "upgrade"], help="this one alone (default: both)")
    parser.add_argument("--ref", help="the commit to upgrade from (default: the last release, or HEAD)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pipeline", choices=[SITE_NAME], default=SITE_NAME)
    parser.add_argument("--folder", type=Path, help="a new one, where logs and data stay (default: kept on failure)")
    arguments = parser.parse_args()
    return frame.prove("drills", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    found: Findings = {}
    if arguments.drill != "upgrade":
        print("drill restore", flush=True)
        found |= restore_drill(folder / "restore", arguments.seed)
    if arguments.drill != "restore":
        print("drill upgrade", flush=True)
        found |= upgrade_drill(folder / "upgrade", arguments.seed, arguments.ref or last_tag() or "HEAD")
    frame.print_broken(found)
    return not found


if __name__ == "__main__":
    sys.exit(main())
