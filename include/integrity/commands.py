"""The commands of `python -m include.integrity`. DAGs call the same functions, not this table."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.errors import WrongArguments
from include.gateway.client import ReplayReport
from include.integrity.days import certificate, comparison, gateways, pruning, publication
from include.integrity.days import due_days as days
from include.integrity.days import stream_lag as caught_up
from include.integrity.days.certificate import Certificate
from include.integrity.days.comparison import Differences, Report
from include.integrity.days.day_status import newest_run
from include.integrity.days.due_days import require_rebuildable
from include.integrity.days.gateways import give_up_store
from include.integrity.days.publication import Moved, Published
from include.integrity.pages import whereabouts
from include.integrity.pages.day_page import UndoPreview, preview
from include.integrity.pages.page_model import load_rows
from include.integrity.process import rebuild
from include.integrity.report import Rebuilt
from include.integrity.watch.audit import audit_kafka
from include.integrity.watch.conditions import watch
from include.integrity.watch.findings import Finding
from include.runtime.settings import Settings

Arguments = Mapping[str, Mapping[str, Any]]  # flag → options of argparse; the flag's name is the function's argument


@dataclass(frozen=True)
class Command:
    """A command: a function of the settings, of the day if it takes one, and of its arguments.

    `takes_day` None: the day is optional.
    """

    call: Callable[..., Any]
    text: str
    arguments: Arguments = field(default_factory=dict)
    takes_day: bool | None = True


def needs_a_person(result: Any) -> bool:
    """True if a person has to look at the result: differences, refused events, an uncertified day, findings."""
    match result:
        case Certificate():
            return result.reason is not None
        case Differences() | Rebuilt():
            return result.report.unexplained > 0
        case Report():
            return result.unexplained > 0
        case ReplayReport():
            return result.refused > 0
        case [Finding(), *_]:
            return True
        case _:
            return False


def _rebuild(
    settings: Settings, day: Day, run_id: str | None, source: str, publish: bool, reason: str | None, made_by: str
) -> Rebuilt:
    require_rebuildable(day, days.load_window(settings))
    run_id = run_id or f"by-hand-{rfc3339(SystemClock().now())}"
    rebuild(day, run_id, reason, source)
    report = comparison.verify(settings, day, run_id)
    if not publish or report.unexplained:
        return Rebuilt(report, None)
    return Rebuilt(report, publication.publish(settings, day, run_id, made_by=made_by, reason=reason))


def _publish(
    settings: Settings, day: Day, run_id: str | None, made_by: str, reason: str | None, accept_vanishing: bool
) -> Published:
    if accept_vanishing and not reason:
        raise WrongArguments("--accept-vanishing: give the reason with --reason")
    return publication.publish(settings, day, run_id, made_by, reason, accept_vanishing=accept_vanishing)


def _undo(
    settings: Settings, day: Day, reason: str, made_by: str, to: int | None = None, dry_run: bool = False
) -> Moved | UndoPreview:
    if dry_run:
        return preview(settings, day, "undo", to)
    return publication.undo(settings, day, reason, to, made_by)


def _redo(settings: Settings, day: Day, reason: str, made_by: str, dry_run: bool = False) -> Moved | UndoPreview:
    return preview(settings, day, "redo") if dry_run else publication.redo(settings, day, reason, made_by)


def _status(settings: Settings, day: Day | None = None, limit: int = 20) -> list[Any]:
    if day is None:
        return load_rows(settings, "batch", limit)
    return [*load_rows(settings, "batch", day=day.date), *newest_run(settings, day)]


_RUN: Arguments = {"--run-id": {"help": "the run that built the generation; default: the newest built one"}}
_TIMEOUT: Arguments = {
    "--timeout": {"dest": "timeout_s", "type": float, "default": 300.0, "metavar": "S",
                  "help": "seconds; default: %(default)s"},
}  # fmt: skip
_DRY_RUN: Arguments = {"--dry-run": {"action": "store_true", "help": "show the day as it would be; change nothing"}}


def _not_blank(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("blank; give the reason")
    return text.strip()


def _author(required: bool = False) -> Arguments:
    return {
        "--reason": {"required": required, "type": _not_blank, "help": "the reason; kept in the day's history"},
        "--by": {"dest": "made_by", "metavar": "WHO", "help": "the author; default: the user and the machine"},
    }


COMMANDS: Mapping[str, Command] = {
    "rebuild": Command(_rebuild, "Build a new generation of the day from the raw records, and compare it. --publish "
        "also publishes it.", {
            "--run-id": {"help": "names the build; the same id again replaces that try. Default: a new one"},
            "--source": {"choices": ["auto", "archive"], "default": "auto",
                         "help": "auto: the archive when the topic no longer holds the day"},
            "--publish": {"action": "store_true", "help": "publish it too, unless differences are unexplained"},
            **_author(),
        }),
    "verify": Command(comparison.verify, "Compare the built generation with the rows that readers see, and count "
        "the differences by class.", _RUN),
    "diff": Command(comparison.diff, "Show the changes that publishing would make: counts by class, and rows before "
        "and after. Publishes nothing; personal values are hidden.", {
            **_RUN,
            "--samples": {"dest": "per_class", "type": int, "default": 5, "metavar": "N",
                          "help": "rows per class; default: %(default)s"},
        }),
    "publish": Command(_publish, "Publish the built generation. Ends the hold of an undo.", {
        **_RUN,
        "--accept-vanishing": {"action": "store_true", "help": "publish although the build lacks rows that readers "
                               "see and the raw records do not explain why; needs --reason"},
        **_author(),
    }),
    "undo": Command(_undo, "Show the state before the last publication again, and hold the day: the night leaves it "
        "alone until it is published by hand or redone.", {
            "--to": {"type": int, "metavar": "GENERATION", "help": "an earlier generation, see history; 0: the "
                     "stream's rows alone. Default: the state before the last publication"},
            **_DRY_RUN,
            **_author(required=True),
        }),
    "redo": Command(_redo, "Take the last undo back.", {**_DRY_RUN, **_author(required=True)}),
    "history": Command(publication.history, "List each publication, undo and redo of the day: by whom, when and why."),
    "certify": Command(certificate.certify, "Count the terms of the published day's balance, each with the query that "
        "counts it."),
    "acknowledge": Command(days.acknowledge, "Acknowledge a day that is dirty or not certified: the watch stops "
        "reporting it until a publication, an undo or new records.", {
            "--and-before": {"action": "store_true", "help": "every day until then that can no longer be rebuilt"},
            "--withdraw": {"action": "store_true", "help": "take acknowledgements back"},
            **_author(required=True),
        }),
    "status": Command(_status, "Show the status of each day, and until when it can be rebuilt.", {
        "--limit": {"type": int, "default": 20, "metavar": "N", "help": "number of days; default: %(default)s"},
    }, takes_day=None),
    "find": Command(whereabouts.find, "Find a record of the stream: when it was accepted, its coordinates, the version "
        "it was joined with, its generation, whether readers see it, and corrections by rebuilds.", {
            "--key": {"type": int, "metavar": "KEY", "help": "the stream's key, such as a board's id"},
            "--event-id": {"metavar": "ID", "help": "the event id that the gateway answered, in place of the key"},
        }, takes_day=None),
    "dirty": Command(days.dirty_days, "List published days that records reached afterwards, with cause and count.",
        takes_day=False),
    "watch": Command(watch, "List the conditions that need a person, as watch_pipeline finds them. Sends no alert.",
        takes_day=False),
    "audit": Command(audit_kafka, "Compare brokers and topics with the contract: each drift with the command that "
        "corrects it. Sends no alert.", takes_day=False),
    "collect": Command(pruning.collect_orphans, "Drop generations that nobody will publish: killed builds, old dry "
        "runs.", takes_day=False),
    "drain": Command(gateways.replay_fallback, "Drain the fallback stores of the gateways.", _TIMEOUT,
        takes_day=False),
    "give-up-store": Command(give_up_store, "Accept that the events of a missing fallback store are lost: days can be "
        "certified again. Once for each pipeline; see runbook gateway-lost.", {
            "--store": {"required": True, "metavar": "ID", "help": "the store's id, as `watch` names it"},
            **_author(required=True),
        }, takes_day=False),
    "catch-up": Command(caught_up.wait_until_caught_up, "Wait until the stream has processed the records in the "
        "topics.", _TIMEOUT, takes_day=False),
}  # fmt: skip
