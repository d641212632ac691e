"""The batch layer from a shell: `python -m include.integrity COMMAND --help`.

A day by hand: `drain`, `settle`, `rebuild`, `diff`, `publish`, `certify`. What went wrong: `status`, `history`, `undo`.
Settings come from the environment, as for every process of the pipeline (`set -a; . ./.env; set +a`).
The answer is on standard output, for people or with --json for programs; the log is on standard error.

Exit codes: 0 done; 1 refused, trying again will not help; 2 wrong arguments; 3 done, but a person has to look: there
are unexplained differences, or the day is not certified; 75 a server is out or the day is busy, try again later; 78 a
setting is missing or wrong.
"""

import argparse
import dataclasses
import getpass
import json
import socket
import sys
from collections.abc import Callable
from typing import Any

from include.adapters.postgres.schema_revision import require_schema
from include.airflow_support.days import days_between
from include.clock import SystemClock, rfc3339
from include.command import as_command
from include.contracts.day import Day
from include.errors import OK, PipelineError
from include.integrity import publication
from include.integrity.certificate import Certificate, certify
from include.integrity.comparison import Differences, Report, diff, verify
from include.integrity.days import dirty_days, load_window
from include.integrity.gateways import replay_fallback
from include.integrity.page_model import load_rows
from include.integrity.process import rebuild
from include.integrity.pruning import collect_orphans
from include.integrity.report import Rebuilt, text_of
from include.integrity.runs import newest_run
from include.integrity.settled import wait_until_settled
from include.settings import Settings

LOOK = 3
Command = Callable[[Settings, argparse.Namespace], Any]


@as_command
def main(argv: list[str] | None = None) -> int:
    """One command, its result on standard output; one line on standard error when it cannot be done."""
    arguments = _parser().parse_args(argv)
    settings = Settings.from_environment()
    require_schema(settings.database, "batch")
    result = arguments.command(settings, arguments)
    print(json.dumps(_plain(result), default=str, ensure_ascii=False) if arguments.json else text_of(result))
    return LOOK if _needs_a_person(result) else OK


def _rebuild(settings: Settings, arguments: argparse.Namespace) -> Any:
    day = _day(settings, arguments)
    days_between(str(day), str(day), load_window(settings))
    run_id = arguments.run_id or f"by-hand-{rfc3339(SystemClock().now())}"
    rebuild(day, run_id, arguments.reason, arguments.source)
    report = verify(settings, day, run_id)
    if not arguments.publish or report.unexplained:
        return Rebuilt(report, None)
    return Rebuilt(report, publication.publish(settings, day, run_id, made_by=arguments.by, reason=arguments.reason))


def _verify(settings: Settings, arguments: argparse.Namespace) -> Any:
    return verify(settings, _day(settings, arguments), arguments.run_id)


def _diff(settings: Settings, arguments: argparse.Namespace) -> Any:
    return diff(settings, _day(settings, arguments), arguments.run_id, arguments.samples)


def _publish(settings: Settings, arguments: argparse.Namespace) -> Any:
    day = _day(settings, arguments)
    if arguments.accept_vanishing and not arguments.reason:
        raise PipelineError("--accept-vanishing: say why the rows may vanish, with --reason")
    return publication.publish(settings, day, arguments.run_id, made_by=arguments.by, reason=arguments.reason,
                               accept_vanishing=arguments.accept_vanishing)  # fmt: skip


def _undo(settings: Settings, arguments: argparse.Namespace) -> Any:
    day = _day(settings, arguments)
    return publication.undo(settings, day, arguments.reason, to=arguments.to, made_by=arguments.by)


def _redo(settings: Settings, arguments: argparse.Namespace) -> Any:
    return publication.redo(settings, _day(settings, arguments), arguments.reason, made_by=arguments.by)


def _history(settings: Settings, arguments: argparse.Namespace) -> Any:
    return publication.history(settings, _day(settings, arguments))


def _certify(settings: Settings, arguments: argparse.Namespace) -> Any:
    return certify(settings, _day(settings, arguments))


def _status(settings: Settings, arguments: argparse.Namespace) -> Any:
    if not arguments.day:
        return load_rows(settings, "batch", arguments.limit)
    day = _day(settings, arguments)
    return [*load_rows(settings, "batch", day=day.date), *newest_run(settings, day)]


def _dirty(settings: Settings, _: argparse.Namespace) -> Any:
    return dirty_days(settings)


def _collect(settings: Settings, _: argparse.Namespace) -> Any:
    return collect_orphans(settings)


def _drain(settings: Settings, arguments: argparse.Namespace) -> Any:
    return replay_fallback(settings, arguments.timeout)


def _settle(settings: Settings, arguments: argparse.Namespace) -> Any:
    return wait_until_settled(settings, arguments.timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m include.integrity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str, day: bool | None = True) -> argparse.ArgumentParser:
        """Add a command; `day` None: it takes one, and does without."""
        added = commands.add_parser(name, help=text.split(".")[0], description=text)
        if day is not False:
            added.add_argument(
                "--day", required=day is True, metavar="YYYY-MM-DD", help="a date in the pipeline's time zone"
            )
        added.add_argument("--json", action="store_true", help="answer as one line of JSON")
        added.set_defaults(command=command)
        return added

    def add_run(added: argparse.ArgumentParser) -> None:
        added.add_argument("--run-id", help="the run that built the generation; default: the newest built one")

    def add_author(added: argparse.ArgumentParser, required: bool) -> None:
        added.add_argument("--reason", required=required, help="why; kept in the day's history")
        added.add_argument(
            "--by", default=f"{getpass.getuser()}@{socket.gethostname()}", help="who; default: %(default)s"
        )

    build = add("rebuild", _rebuild, "Build a new generation of the day from raw, and compare it. "
                "Publishes it when that is asked for.")  # fmt: skip
    build.add_argument("--run-id", help="names the build; the same id again replaces that try. Default: a new one")
    build.add_argument("--source", choices=["auto", "archive"], default="auto",
                       help="auto: the archive when the topic no longer holds the day")  # fmt: skip
    build.add_argument("--publish", action="store_true", help="publish it too, unless differences are unexplained")
    add_author(build, required=False)
    add_run(add("verify", _verify, "Compare the built generation with what is shown, counted by class."))
    show = add("diff", _diff, "What publishing would change: counts by class, and rows before and after. "
               "Publishes nothing; personal values are hidden.")  # fmt: skip
    add_run(show)
    show.add_argument("--samples", type=int, default=5, metavar="N", help="rows a class; default: %(default)s")
    release = add("publish", _publish, "Show the built generation. It ends a hold that an undo left.")
    add_run(release)
    release.add_argument("--accept-vanishing", action="store_true", help="also when readers see rows that the build "
                         "lacks and raw does not say why; needs --reason")  # fmt: skip
    add_author(release, required=False)
    back = add("undo", _undo, "Show what was shown before. The night then leaves the day alone, "
               "until it is published by hand or redone.")  # fmt: skip
    back.add_argument("--to", type=int, metavar="GENERATION", help="an earlier generation, see history; 0: the "
                      "speed layer's rows alone. Default: what was shown before")  # fmt: skip
    add_author(back, required=True)
    add_author(add("redo", _redo, "Take the last undo back."), required=True)
    add("history", _history, "Every change of what the day shows: by whom, when and why.")
    add("certify", _certify, "Count the terms of the published day's balance, each with the query that counts it.")
    status = add("status", _status, "How far the days are, and for how long they can be rebuilt.", day=None)
    status.add_argument("--limit", type=int, default=20, metavar="N", help="so many days; default: %(default)s")
    add("dirty", _dirty, "Published days that something reached afterwards, with cause and count.", day=False)
    add("collect", _collect, "Drop generations that nobody will publish: killed builds, old dry runs.", day=False)
    for name, command, text in (
        ("drain", _drain, "Have the gateways send what waits in their fallback stores."),
        ("settle", _settle, "Wait until the speed layer has taken what is in the topics."),
    ):
        waits = add(name, command, text, day=False)
        waits.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds; default: %(default)s")
    return parser


def _day(settings: Settings, arguments: argparse.Namespace) -> Day:
    return Day.parse(arguments.day, settings.timezone)


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(one) for one in result]
    return dataclasses.asdict(result)


def _needs_a_person(result: Any) -> bool:
    match result:
        case Certificate():
            return result.reason is not None
        case Differences() | Rebuilt():
            return result.report.unexplained > 0
        case Report():
            return result.unexplained > 0
        case _:
            return False


if __name__ == "__main__":
    sys.exit(main())
