"""The kinds of settings: which texts are values, and how a text becomes one."""

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

T = TypeVar("T")

_LARGEST = 2**31 - 1
_LONGEST_S = 366 * 86_400
_WHOLE = re.compile(r"[0-9]{1,19}")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/@\[\]]+):([0-9]{1,5})")
_URL = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_HEADER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*([ -~]*?)\s*")
_MAIL = re.compile(r"[^\s@<>]+@[^\s@<>]+")


class Unfit(ValueError):
    """A text is no value of its kind; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """The values that a setting can have: `wanted` says which, and after a semicolon how to write them.

    A text is refused if `fits` is false or raises, else `make` returns its value. `text` returns the text of a value,
    and `wrong` is said of a text that does not fit. Messages never show a secret, which may be in a file.
    """

    wanted: str
    fits: Callable[[str], object]
    make: Callable[[str], T]
    text: Callable[[T], str] = str
    wrong: str = ""
    is_secret: bool = False
    is_path: bool = False

    def value(self, text: str) -> T:
        """Return the value of a text, which is not empty. Raises Unfit."""
        if not self.is_secret and not text.isprintable():
            raise Unfit("has a non-printable character; type it again")
        try:
            is_fit = self.fits(text)
        except Unfit:
            raise
        except (ValueError, LookupError, OSError):  # of a time zone all three
            is_fit = False
        if not is_fit:
            raise Unfit(self.wrong or f"not {self.wanted}")
        return self.make(text)


def whole(least: int = 1, most: int = _LARGEST) -> Kind[int]:
    """Return the kind of whole numbers from `least` to `most`."""

    def fits(text: str) -> bool:
        return _WHOLE.fullmatch(text) is not None and least <= int(text) <= most  # int() also accepts 1_0

    return Kind(f"a whole number from {least} to {most}", fits, int)


def seconds(may_be_zero: bool = False) -> Kind[float]:
    """Return the kind of numbers of seconds, a year at most."""

    def fits(text: str) -> bool:
        return 0 < float(text) <= _LONGEST_S or (may_be_zero and float(text) == 0)  # False for NaN

    wanted = f"a number of seconds {'from' if may_be_zero else 'above'} 0 to {_LONGEST_S}"
    return Kind(wanted, fits, float, lambda value: str(value).removesuffix(".0"))


def choice(*names: str) -> Kind[str]:
    """Return the kind of these texts."""
    return Kind(f"one of {', '.join(names)}", names.__contains__, str)


def pattern(regex: str, wanted: str) -> Kind[str]:
    """Return the kind of texts that match as a whole."""
    return Kind(wanted, re.compile(regex).fullmatch, str)


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a text with commas between them."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def is_url(text: str) -> bool:
    """True for the URL of an HTTP server. Raises ValueError for a wrong port."""
    return _is_http(urlsplit(text)) and _URL.fullmatch(text) is not None


def is_endpoint(text: str) -> bool:
    """True for the URL of an HTTP server without a login, a path or a query. Raises ValueError for a wrong port."""
    parts = urlsplit(text)
    return _is_http(parts) and parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)


def _is_http(parts: Any) -> bool:
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match.group(1)) < 65_536


def _headers(text: str) -> dict[str, str]:
    found = [_HEADER.fullmatch(part) for part in text.split(",") if part.strip()]
    headers = {match[1].lower(): unquote(match[2]) for match in found if match}
    if None in found or not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ValueError
    return headers


# fmt: off
TEXT = Kind("a text", bool, str)
SECRET = Kind("a text", bool, str, is_secret=True)
TOKEN = Kind("ASCII without spaces", lambda text: all("!" <= character <= "~" for character in text), str,
    wrong="has a character that is not allowed in HTTP headers; use ASCII without spaces", is_secret=True)
SECRET_URL = Kind("a URL; give one such as https://host/path", is_url, str, is_secret=True)
HEADERS = Kind("name=value, or several with commas between them; encode other characters of a value as in URLs, such "
    "as %2C for a comma", lambda text: _headers(text) is not None, _headers, lambda value: "", is_secret=True)
PATH = Kind("a path", bool, Path, is_path=True)
FILE_OR_URL = Kind("a file or a URL", lambda text: "://" not in text or is_url(text), str, is_path=True,
    wrong="neither a file nor http://host:port")
PORT = whole(most=65_535)
MEMORY = pattern("[1-9][0-9]{0,6}[mMgG]", "a memory size; give a number and m or g, such as 768m or 2g")
HOST = pattern(r"[^\s]+", "the name or address of a host; remove the space")
ADDRESSES = Kind("host:port, or several with commas between them",
    lambda text: all(map(_is_address, text.split(","))), str)
URLS = Kind("http://host:port, or several with commas between them",
    lambda text: listed(text) and all(map(is_url, listed(text))), str)
ORIGINS = Kind("the origin of web pages, such as https://app.example or http://127.0.0.1:3000, or several with commas "
    "between them, in lower case and without a path",
    lambda text: all(map(_ORIGIN.fullmatch, listed(text))), listed, ",".join)
MAILS = Kind("name@host, or several with commas between them",
    lambda text: all(map(_MAIL.fullmatch, listed(text))), listed, ",".join)
ZONE = Kind("the name of a time zone", ZoneInfo, str, wrong="no such time zone; use a name such as Asia/Seoul")
TIME = Kind("a time of day; write it as HH:MM, for example 09:00",
    re.compile("([01][0-9]|2[0-3]):[0-5][0-9]").fullmatch, dt.time.fromisoformat, lambda value: f"{value:%H:%M}")
SWITCH = Kind("one of on, off", ("on", "off").__contains__, "on".__eq__, lambda value: "on" if value else "off")
MASTER = pattern(
    r"local(\[(\*|[1-9][0-9]{0,3})(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|(spark|k8s)://[^\s]+|yarn",
    "a Spark master; use local[2], spark://host:7077, yarn or k8s://…")
