"""Texts of a page in the language of its reader, for templates."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from include.integrity.pages.texts import Message, has_text, text

# texts that scripts show; templates hand them over as JSON
OF_SCRIPTS = (
    "starting", "started", "watch_it", "may_not_start", "may_not_decide", "not_started", "airflow_silent", "deciding",
    "decided", "decided_before", "not_decided", "approve", "reject", "approvals_run", "approvals_day",
    "approvals_unknown", "filter_shown",
)  # fmt: skip


class PageTexts:
    """Texts of the catalogue, and values as people read them, in one language. Pure."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, key: str, /, **values: Any) -> str:
        """Return a text. Raises KeyError for a key that the catalogue does not have."""
        return text(self.language, key, **values)

    def of(self, message: str) -> str:
        """Return a message in the language; any other text as it is."""
        return message.in_language(self.language) if isinstance(message, Message) else message

    def status(self, kind: str) -> str:
        """Return the name of a day's status."""
        return self.named("status", kind)

    def correction(self, name: str) -> str:
        """Return the name of a class of corrections; that of a version names the pipeline's table."""
        table = name.removesuffix("_version_changed")
        return self("class_version_changed", table=table) if table != name else self.named("class", name)

    def named(self, group: str, name: str) -> str:
        """Return the text of a name of the group, such as an action; the name itself if it has none."""
        key = f"{group}_{name}"
        return self(key) if has_text(key) else name.replace("_", " ")

    def corrections(self, counts: Mapping[str, int]) -> str:
        """Return counts by class as one line; empty when there are none."""
        return ", ".join(f"{count:,} {self.correction(name)}" for name, count in sorted(counts.items()))

    def kinds(self, counts: Mapping[str, int]) -> str:
        """Return counts of rows by how they differ, as one line."""
        return ", ".join(f"{count:,} {self.named('kind', name)}" for name, count in sorted(counts.items()))

    def causes(self, counts: Mapping[str, int]) -> str:
        """Return counts by cause as one line: `3 late board, 1 moved board`."""
        return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(counts.items()))

    def duration(self, seconds: float) -> str:
        """Return a duration, rounded to its largest unit."""
        for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
            if seconds >= 2 * size:
                return self(f"unit_{unit}", count=seconds / size)
        return self("unit_seconds", count=seconds)

    def time(self, at: dt.datetime | None, form: str = "%Y-%m-%d %H:%M") -> str:
        """Return an instant in UTC; empty if there is none."""
        return "" if at is None else at.astimezone(dt.UTC).strftime(form)

    def number(self, value: int | None) -> str:
        """Return a number with separators; empty if there is none."""
        return "" if value is None else f"{value:,}"

    @property
    def of_scripts(self) -> dict[str, str]:
        """The texts that scripts show, with their placeholders."""
        return {key: text(self.language, key, **_PLACEHOLDERS) for key in OF_SCRIPTS}


_PLACEHOLDERS = {name: f"{{{name}}}" for name in ("what", "status", "shown", "all")}
