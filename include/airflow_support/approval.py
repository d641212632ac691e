"""The task that waits for a person before a build is published. Imported at parse time."""

import re
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from airflow.providers.standard.exceptions import HITLTimeoutError
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskAwaitingInput


class PublishApproval(ApprovalOperator):
    """Waits, without a slot, until a person approves or rejects the day's build; passes at once if none has to.

    Returns {"approved_by": the person's name, or None if none was asked, "seen": what the answer is bound to,
    "would_ask": True if a person has to approve}. `publish` refuses anything but what was seen. `seen` is None in a dry
    run, which asks nobody, and if a form accepted beforehand whatever vanishes. A rejected day is skipped with what
    follows: readers see what they saw. Without an answer within `response_timeout` the task fails and says so; clearing
    it asks again.
    """

    template_fields: Collection[str] = ("day", "build", "subject", "body")  # in the order of rendering

    def __init__(self, *, pipeline: str, day: Any, build: str, response_timeout: timedelta, **kwargs: Any) -> None:
        super().__init__(
            subject="Publish day {{ task.day }}?",
            response_timeout=response_timeout,
            execution_timeout=None,  # else it would become the time-out of the answer
            map_index_template="{{ task.day }}",
            **kwargs,
        )
        self.pipeline, self.day, self.build = pipeline, day, build

    def execute(self, context: Context) -> dict[str, Any]:
        """Ask a person if one has to decide."""
        from include.airflow_support import steps

        if context["params"].get("accept_vanishing"):
            return _passed(seen=None)
        if context["params"].get("dry_run"):
            return _passed(seen=None, would_ask=steps.needs_approval(self.pipeline, self.day, self.build))
        question, seen = steps.approval_question(self.pipeline, self.day, self.build)
        if question is None:
            return _passed(seen)
        self.body = fenced(question)
        self.log.info("day %s waits for a person, in the task's tab Required Actions\n%s", self.day, question)
        try:
            super().execute(context)
        except TaskAwaitingInput as waiting:
            waiting.kwargs = {"seen": seen}  # Airflow keeps it with the question, and passes it to `execute_complete`
            raise
        raise AssertionError("the task waits")

    def execute_complete(  # type: ignore[override]  # Airflow passes what `execute` has it keep
        self, context: Context, event: dict[str, Any], seen: dict[str, Any]
    ) -> dict[str, Any]:
        """Go on after the answer to the question about `seen`."""
        try:
            # not ApprovalOperator's: it skips nothing that follows in a mapped task group
            answer = HITLOperator.execute_complete(self, context, event)
        except HITLTimeoutError as exc:
            raise AirflowFailException(  # a retry would ask again
                f"nobody approved or rejected day {self.day} within {self.response_timeout}; the day is "
                "unchanged. Clear this task to ask again"
            ) from exc
        user = (answer["responded_by_user"] or {}).get("name")
        if answer["chosen_options"] == [self.REJECT]:
            raise AirflowSkipException(f"{user} rejected the build; day {self.day} is unchanged")
        return {"approved_by": user, "seen": seen, "would_ask": True}


def _passed(seen: dict[str, Any] | None, would_ask: bool = False) -> dict[str, Any]:
    return {"approved_by": None, "seen": seen, "would_ask": would_ask}


def fenced(text: str) -> str:
    """Return the text as a block of Markdown that shows it as it is, whatever it holds."""
    longest = max((len(run) for run in re.findall(r"~+", text)), default=0)
    fence = "~" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
