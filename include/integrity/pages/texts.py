"""Texts that people read, in each language, from one catalogue (texts.toml), and their form for templates."""

import datetime as dt
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).with_name("texts.toml")
LANGUAGES = {"en": "English", "ko": "한국어"}
DEFAULT = "en"


class Message(str):
    """A text of the catalogue with values in it: the string is the English one."""

    key: str
    values: Mapping[str, Any]

    def __new__(cls, key: str, /, **values: Any) -> "Message":
        """Raises KeyError for a key that the catalogue does not have."""
        made = super().__new__(cls, text(DEFAULT, key, **values))
        made.key, made.values = key, values
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        """Return the arguments that make a copy."""
        return (self.key,), dict(self.values)

    def in_language(self, language: str) -> str:
        """Return the text in the language."""
        return text(language, self.key, **self.values)


def text(language: str, key: str, /, **values: Any) -> str:
    """Return a text in the language, with values in it. Raises KeyError for a key that the catalogue does not have."""
    return catalogue()[key][language].format(**values)


def has_text(key: str) -> bool:
    """True if the catalogue has the key."""
    return key in catalogue()


@cache
def catalogue() -> Mapping[str, Mapping[str, str]]:
    """Return the texts by key and language. Raises ValueError if the file is broken."""
    found: Mapping[str, Mapping[str, str]] = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    return found


def chosen_language(*asked: str | None, accepted: str = "") -> str:
    """Return the first of the asked languages that there is, else the one a browser accepts most, else English.

    `accepted` is an Accept-Language header.
    """
    for language in asked:
        if language in LANGUAGES:
            return language
    ranked = []
    for number, part in enumerate(accepted.split(",")):
        name, _, weight = part.strip().partition(";q=")
        try:
            ranked.append((-float(weight or 1), number, name.split("-")[0].lower()))
        except ValueError:
            continue
    return next((name for weight, _, name in sorted(ranked) if name in LANGUAGES and weight < 0), DEFAULT)


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
