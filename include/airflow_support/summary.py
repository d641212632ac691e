"""The result of a day that a person had rebuilt. Pure but for Airflow's address, which the link to the page has."""

from collections.abc import Mapping
from typing import Any

from include.airflow_support.notifiers import address_of

Result = Mapping[str, Any]


def summary_of(
    pipeline: str,
    day: str,
    is_dry_run: bool,
    report: Result | None,
    approval: Result | None,
    published: Result | None,
    certified: Result | None,
) -> dict[str, Any]:
    """Return the day's result from those of its tasks; None for a task that did not succeed."""
    page = address_of(f"integrity/{pipeline}/days/{day}")
    if report is None:
        return {"result": "not built: see the failed task of the day", "page": page}
    return {
        "result": _result(is_dry_run, approval, published),
        "certified": certified is not None,
        "rows": report["generation"]["row_count"],
        "corrections": dict(report["corrections"]),
        "page": page,
    }


def _result(is_dry_run: bool, approval: Result | None, published: Result | None) -> str:
    if is_dry_run:
        would_wait = approval is not None and bool(approval.get("would_ask"))
        return "would wait until a person approves it" if would_wait else "would be published"
    if published is None:
        return "not published: a person rejected it, or a task of the day failed"
    if published["was_identical"]:
        return "unchanged: the day shows the same rows already"
    return f"published as generation {published['generation_id']}"
