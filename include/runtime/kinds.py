"""The kinds of settings: which texts are values, and how a text becomes one."""

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

T = TypeVar("T")

_LARGEST = 2**31 - 1
_LONGEST_S = 366 * 86_400
_WHOLE = re.compile(r"[0-9]{1,19}")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/@\[\]]+):([0-9]{1,5})")
_URL = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_HEADER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*([ -~]*?)\s*")


class Unfit(ValueError):
    """A text is no value of its kind; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """The values that a setting can have.

    `wanted` says which, and after a semicolon how to write them. A text is refused if `fits` is false or raises
    ValueError, else `make` returns its value, and `text` the text of a value. Messages never show a secret, which can
    be in a file.
    """

    wanted: str
    fits: Callable[[str], object]
    make: Callable[[str], T]
    text: Callable[[T], str] = str
    is_secret: bool = False
    is_path: bool = False

    def value(self, text: str) -> T:
        """Return the value. Raises Unfit."""
        try:
            if not self.is_secret and not text.isprintable():
                raise Unfit("has a non-printable character; type it again")
            is_fit = self.fits(text)
        except Unfit:
            raise
        except ValueError:
            is_fit = False
        if not is_fit:
            raise Unfit(f"not {self.wanted}")
        return self.make(text)


def whole(least: int = 1, most: int = _LARGEST) -> Kind[int]:
    """Return the kind of whole numbers from `least` to `most`."""
    return Kind(
        f"a whole number from {least} to {most}",
        lambda text: _WHOLE.fullmatch(text) and least <= int(text) <= most,  # int() also accepts 1_0 and other digits
        int,
    )


def seconds(may_be_zero: bool = False) -> Kind[float]:
    """Return the kind of numbers of seconds, a year at most."""
    return Kind(
        f"a number of seconds {'from' if may_be_zero else 'above'} 0 to {_LONGEST_S}",
        lambda text: 0 < float(text) <= _LONGEST_S or (may_be_zero and float(text) == 0),  # also False for NaN
        float,
        lambda value: str(value).removesuffix(".0"),
    )


def pattern(regex: str, wanted: str) -> Kind[str]:
    """Return the kind of texts that match as a whole."""
    return Kind(wanted, re.compile(regex).fullmatch, str)


def choice(*names: str) -> Kind[str]:
    """Return the kind of these texts."""
    return Kind(f"one of {', '.join(names)}", names.__contains__, str)


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a text with commas between them."""
    return tuple(each.strip() for each in text.split(",") if each.strip())


def is_url(text: str) -> bool:
    """True for the URL of an HTTP server."""
    parts = _http_parts(text)
    return parts is not None and _URL.fullmatch(text) is not None


def is_endpoint(text: str) -> bool:
    """True for the URL of an HTTP server without a login, a path or a query."""
    parts = _http_parts(text)
    return parts is not None and parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)


def _http_parts(text: str) -> Any:
    try:
        parts = urlsplit(text)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:  # invalid port
        return None


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match.group(1)) < 65_536


def _is_zone(text: str) -> bool:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:  # OSError: "Asia" is a folder
        raise Unfit("no such time zone; use a name such as Asia/Seoul") from exc
    return True


def _is_file_or_url(text: str) -> bool:
    if "://" in text and not is_url(text):
        raise Unfit("neither a file nor http://host:port")
    return True


def _is_token(text: str) -> bool:
    if not all("!" <= character <= "~" for character in text):
        raise Unfit("has a character that is not allowed in HTTP headers; use ASCII without spaces")
    return True


def _headers(text: str) -> dict[str, str]:
    found = [_HEADER.fullmatch(part) for part in text.split(",") if part.strip()]
    headers = {match[1].lower(): unquote(match[2]) for match in found if match}
    if None in found or not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ValueError
    return headers


def _any(text: str) -> bool:
    return True


TEXT = Kind("a text", _any, str)
SECRET = Kind("a text", _any, str, is_secret=True)
TOKEN = Kind("ASCII without spaces", _is_token, str, is_secret=True)  # sent in an HTTP header
SECRET_URL = Kind("a URL; give one such as https://host/path", is_url, str, is_secret=True)
HEADERS: Kind[dict[str, str]] = Kind(
    "name=value, or several with commas between them; encode other characters of a value as in URLs, such as %2C for "
    "a comma",
    lambda text: _headers(text) is not None,
    _headers,
    lambda value: "",
    is_secret=True,
)
PATH = Kind("a path", _any, Path, is_path=True)
FILE_OR_URL = Kind("a file or a URL", _is_file_or_url, str, is_path=True)
PORT = whole(most=65_535)
MEMORY = pattern("[1-9][0-9]{0,6}[mMgG]", "a memory size; give a number and m or g, such as 768m or 2g")
HOST = pattern(r"[^\s]*", "the name or address of a host; remove the space")
ADDRESSES = Kind(
    "host:port, or several with commas between them", lambda text: all(map(_is_address, text.split(","))), str
)
URLS = Kind(
    "http://host:port, or several with commas between them",
    lambda text: listed(text) and all(map(is_url, listed(text))),
    str,
)
ORIGINS = Kind(
    "the origin of web pages, such as https://app.example or http://127.0.0.1:3000, or several with commas between "
    "them, in lower case and without a path",
    lambda text: all(map(_ORIGIN.fullmatch, listed(text))),
    listed,
    ",".join,
)
MAILS = Kind(
    "name@host, or several with commas between them",
    lambda text: all(re.fullmatch(r"[^\s@<>]+@[^\s@<>]+", each) for each in listed(text)),
    listed,
    ",".join,
)
ZONE = Kind("the name of a time zone", _is_zone, str)
TIME = Kind(
    "a time of day; write it as HH:MM, for example 09:00",
    re.compile("([01][0-9]|2[0-3]):[0-5][0-9]").fullmatch,
    dt.time.fromisoformat,
    lambda value: value.isoformat("minutes"),
)
SWITCH = Kind("one of on, off", ("on", "off").__contains__, "on".__eq__, lambda value: "on" if value else "off")
MASTER = pattern(
    r"local(\[(\*|[1-9][0-9]{0,3})(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|(spark|k8s)://[^\s]+|yarn",
    "a Spark master; use local[2], spark://host:7077, yarn or k8s://…",
)
