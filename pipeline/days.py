"""`pipeline days`: the batch layer by hand. DAGs call the same functions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from include.contracts.errors import WrongArguments
from pipeline.group import Group, answer, by_option, json_option, reason_option

if TYPE_CHECKING:
    from include.contracts.day import Day
    from include.runtime.settings import Settings

_Function = TypeVar("_Function", bound=Callable[..., Any])


@click.group(cls=Group, lazy={"forget": "spark_jobs.forget:main"})
def days() -> None:
    """Rebuild, publish, undo and certify days; find records.

    A day by hand: gateway drain, stream catch-up, then rebuild, diff, publish, certify. To investigate: watch, status,
    history, find.

    Exit code 3: differences are unexplained, the day is not certified, or the watch has findings.
    """


def _day_option(required: bool = True) -> Callable[[_Function], _Function]:
    text = "A date in the pipeline's time zone."
    return click.option("--day", "date", required=required, metavar="YYYY-MM-DD", help=text)


def _run_option(function: _Function) -> _Function:
    text = "The run that built the generation; default: the newest built one."
    return click.option("--run-id", metavar="ID", help=text)(function)


def _dry_run_option(function: _Function) -> _Function:
    return click.option("--dry-run", is_flag=True, help="Show the day as it would be; change nothing.")(function)


def _settings() -> "Settings":
    from include.database.schema_check import checked_settings

    return checked_settings("batch")


def _day(settings: "Settings", date: str) -> "Day":
    from include.contracts.day import Day

    return Day.parse(date, settings.timezone)


@days.command()
@_day_option()
@click.option(
    "--run-id", metavar="ID", help="Names the build; the same id again replaces that try. Default: a new one."
)
@click.option("--source", type=click.Choice(["auto", "archive"]), default="auto",
              help="auto: the archive when the topic no longer holds the day.")  # fmt: skip
@click.option("--publish", is_flag=True, help="Publish it too, unless differences are unexplained.")
@reason_option(required=False)
@by_option
@json_option
def rebuild(
    date: str, run_id: str | None, source: str, publish: bool, reason: str | None, made_by: str, as_json: bool
) -> int:
    """Build a generation of the day, and compare it.

    The rebuild reads the raw records. --publish also publishes the generation.
    """
    from include.integrity import commands

    settings = _settings()
    day = _day(settings, date)
    return answer(commands.rebuild(settings, day, run_id, source, publish, reason, made_by), as_json)


@days.command()
@_day_option()
@_run_option
@json_option
def verify(date: str, run_id: str | None, as_json: bool) -> int:
    """Compare the built generation with the rows that readers see.

    Counts the differences by class.
    """
    from include.integrity.days import comparison

    settings = _settings()
    return answer(comparison.verify(settings, _day(settings, date), run_id), as_json)


@days.command()
@_day_option()
@_run_option
@click.option("--samples", type=int, default=5, metavar="N", show_default=True, help="Rows per class.")
@json_option
def diff(date: str, run_id: str | None, samples: int, as_json: bool) -> int:
    """Show the changes that publishing would make.

    Prints counts by class, and rows before and after. Publishes nothing; personal values are hidden.
    """
    from include.integrity.days import comparison

    settings = _settings()
    return answer(comparison.diff(settings, _day(settings, date), run_id, samples), as_json)


@days.command()
@_day_option()
@_run_option
@click.option("--accept-vanishing", is_flag=True, help="Publish although the build lacks rows that readers see and the "
              "raw records do not explain why; needs --reason.")  # fmt: skip
@reason_option(required=False)
@by_option
@json_option
def publish(
    date: str, run_id: str | None, accept_vanishing: bool, reason: str | None, made_by: str, as_json: bool
) -> int:
    """Publish the built generation.

    Ends the hold of an undo.
    """
    from include.integrity.days import publication

    settings = _settings()
    day = _day(settings, date)
    if accept_vanishing and not reason:
        raise WrongArguments("--accept-vanishing: give the reason with --reason")
    published = publication.publish(settings, day, run_id, made_by, reason, accept_vanishing=accept_vanishing)
    return answer(published, as_json)


@days.command()
@_day_option()
@click.option("--to", type=int, metavar="GENERATION", help="An earlier generation, see history; 0: the stream's rows "
              "alone. Default: the state before the last publication.")  # fmt: skip
@_dry_run_option
@reason_option(required=True)
@by_option
@json_option
def undo(date: str, to: int | None, dry_run: bool, reason: str, made_by: str, as_json: bool) -> int:
    """Take the last publication back, and hold the day.

    Readers see the state before it. Nightly runs skip the day until it is published by hand or redone.
    """
    from include.integrity.days import publication
    from include.integrity.pages.day_page import preview

    settings = _settings()
    day = _day(settings, date)
    if dry_run:
        return answer(preview(settings, day, "undo", to), as_json)
    return answer(publication.undo(settings, day, reason, to, made_by), as_json)


@days.command()
@_day_option()
@_dry_run_option
@reason_option(required=True)
@by_option
@json_option
def redo(date: str, dry_run: bool, reason: str, made_by: str, as_json: bool) -> int:
    """Take the last undo back."""
    from include.integrity.days import publication
    from include.integrity.pages.day_page import preview

    settings = _settings()
    day = _day(settings, date)
    if dry_run:
        return answer(preview(settings, day, "redo"), as_json)
    return answer(publication.redo(settings, day, reason, made_by), as_json)


@days.command()
@_day_option()
@json_option
def history(date: str, as_json: bool) -> int:
    """List each publication, undo and redo of the day.

    Prints author, time and reason of each.
    """
    from include.integrity.days import publication

    settings = _settings()
    return answer(publication.history(settings, _day(settings, date)), as_json)


@days.command()
@_day_option()
@json_option
def certify(date: str, as_json: bool) -> int:
    """Count the terms of the published day's balance.

    Prints each term; table day_certificate has the query that counts it.
    """
    from include.integrity.days import certificate

    settings = _settings()
    return answer(certificate.certify(settings, _day(settings, date)), as_json)


@days.command()
@_day_option()
@click.option("--and-before", is_flag=True, help="Every day until then that can no longer be rebuilt.")
@click.option("--withdraw", is_flag=True, help="Take acknowledgements back.")
@reason_option(required=True)
@by_option
@json_option
def acknowledge(date: str, and_before: bool, withdraw: bool, reason: str, made_by: str, as_json: bool) -> int:
    """Acknowledge a day that is dirty or not certified.

    The watch stops reporting it until a publication, an undo or new records.
    """
    from include.integrity.days import due_days

    settings = _settings()
    found = due_days.acknowledge(settings, _day(settings, date), reason, made_by, and_before, withdraw)
    return answer(found, as_json)


@days.command()
@_day_option(required=False)
@click.option("--limit", type=int, default=20, metavar="N", show_default=True, help="Number of days.")
@json_option
def status(date: str | None, limit: int, as_json: bool) -> int:
    """Show the status of each day.

    Also prints until when each day can be rebuilt.
    """
    from include.integrity.days.day_status import newest_run
    from include.integrity.pages.page_model import load_rows

    settings = _settings()
    if date is None:
        return answer(load_rows(settings, "batch", limit), as_json)
    day = _day(settings, date)
    return answer([*load_rows(settings, "batch", day=day.date), *newest_run(settings, day)], as_json)


@days.command()
@_day_option(required=False)
@click.option("--key", type=int, metavar="KEY", help="The stream's key, such as a board's id.")
@click.option("--event-id", metavar="ID", help="The event id that the gateway answered, in place of the key.")
@json_option
def find(date: str | None, key: int | None, event_id: str | None, as_json: bool) -> int:
    """Find a record of the stream.

    Prints when it was accepted, its coordinates, the version it was joined with, its generation, whether readers see
    it, and corrections by rebuilds.
    """
    from include.integrity.pages import whereabouts

    settings = _settings()
    day = None if date is None else _day(settings, date)
    return answer(whereabouts.find(settings, day, key, event_id), as_json)


@days.command()
@json_option
def dirty(as_json: bool) -> int:
    """List published days that records reached afterwards.

    Prints causes and counts.
    """
    from include.integrity.days import due_days

    return answer(due_days.dirty_days(_settings()), as_json)


@days.command()
@json_option
def watch(as_json: bool) -> int:
    """List the conditions that need a person.

    The conditions are those of the DAG watch_pipeline. Sends no alert.
    """
    from include.integrity.watch.conditions import watch

    return answer(watch(_settings()), as_json)


@days.command()
@json_option
def collect(as_json: bool) -> int:
    """Drop generations that nobody will publish.

    These are the generations of killed builds and old dry runs.
    """
    from include.integrity.days import pruning

    return answer(pruning.collect_orphans(_settings()), as_json)
