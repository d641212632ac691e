"""Texts that people read, in each language of the page, from one catalogue: texts.toml."""

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
