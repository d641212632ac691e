"""Reads and validates single environment variables, by kind of value."""

import datetime as dt
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from include.contracts.errors import ConfigurationError

_T = TypeVar("_T")

_LARGEST = 2**31 - 1
_LONGEST_S = 366 * 86_400
_WHOLE = re.compile(r"[0-9]{1,19}")
_MEMORY = re.compile(r"[1-9][0-9]{0,6}[mMgG]")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/@\[\]]+):([0-9]{1,5})")
_URL = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_HEADER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*([ -~]*?)\s*")
_LOGIN = re.compile(r"^([a-z0-9+.-]+://)?.*@", re.IGNORECASE | re.DOTALL)
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_MAIL = re.compile(r"[^\s@<>]+@[^\s@<>]+")
_MASTER = re.compile(
    r"local(\[(\*|[1-9][0-9]{0,3})(,[0-9]+)?\])?|local-cluster\[[0-9]+,[0-9]+,[0-9]+\]|(spark|k8s)://[^\s]+|yarn"
)


def without_login(url: str) -> str:
    """Return a URL for messages: with *** in place of a user and a password. Of several URLs, the last one is shown."""
    return _LOGIN.sub(r"\1***@", url)


class EnvironmentReader:
    """Reads variables of an environment. An empty variable counts as not set.

    A variable with the prefix before its name wins over the one without: ORDER_DETAIL__DATABASE_NAME over
    DATABASE_NAME. Every method returns the valid value, or raises ConfigurationError: one line with the variable, its
    value and the remedy.
    """

    def __init__(self, environment: Mapping[str, str], prefix: str = "") -> None:
        self._environment = environment
        self._prefix = prefix
        self._read: set[str] = set()

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text of printable characters."""
        value = self._value(name, default)
        if not value.isprintable():
            raise self._wrong(name, value, "has a non-printable character; type it again")
        return value

    def secret(self, name: str, default: str | None = None) -> str:
        """Return a text that messages never show: the variable, or the content of the file that NAME_FILE names.

        One line end at the end of the file is no part of it.
        """
        self._read.add(f"{name}_FILE")
        for variable in dict.fromkeys((self._prefix + name, name)):
            file = f"{variable}_FILE"
            if not self._environment.get(file):
                if self._environment.get(variable):
                    break
            elif self._environment.get(variable):
                raise ConfigurationError(f"{variable} and {file} are both set; remove one of them")
            else:
                self._read.add(name)
                return self._without_nul(file, _content(file, self._environment[file]))
        return self._value(name, default)

    def _value(self, name: str, default: str | None) -> str:
        self._read.add(name)
        value = self._environment.get(self.variable(name), "") or default
        if value is None:
            raise ConfigurationError(f"{name} is not set; set it in the environment or run through `make`")
        return self._without_nul(self.variable(name), value)

    @staticmethod
    def _without_nul(variable: str, value: str) -> str:
        if "\0" in value:
            raise ConfigurationError(f"{variable} has a NUL character; type it again")
        return value

    def is_set(self, name: str) -> bool:
        """True if the variable is set and not empty."""
        self._read.add(name)
        return bool(self._environment.get(self.variable(name)))

    def token(self, name: str) -> str:
        """Return a secret that is sent in an HTTP header; empty if it is not set."""
        value = self.secret(name, "")
        if not all("!" <= character <= "~" for character in value):
            raise ConfigurationError(
                f"{self.variable(name)} has a character that is not allowed in HTTP headers; use ASCII without spaces"
            )
        return value

    def whole(self, name: str, default: int | None = None, least: int = 1, most: int = _LARGEST) -> int:
        """Return a whole number from `least` to `most`."""
        text = self.text(name, None if default is None else str(default))
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:  # int() also accepts 1_0 and non-ASCII digits
            raise self._wrong(name, text, f"not a whole number from {least} to {most}")
        return int(text)

    def port(self, name: str, default: int | None = None) -> int:
        """Return a TCP port."""
        return self.whole(name, default, most=65_535)

    def seconds(self, name: str, default: float, may_be_zero: bool = False) -> float:
        """Return a number of seconds, a year at most."""
        text = self.text(name, str(default))
        wanted = f"not a number of seconds {'from' if may_be_zero else 'above'} 0 to {_LONGEST_S}"
        try:
            value = float(text)
        except ValueError as exc:
            raise self._wrong(name, text, wanted) from exc
        if not 0 <= value <= _LONGEST_S or (value == 0 and not may_be_zero):  # also False for NaN
            raise self._wrong(name, text, wanted)
        return value

    def memory(self, name: str, default: str | None = None) -> str:
        """Return a memory size in the notation that Java and Spark share."""
        text = self.text(name, default)
        if not _MEMORY.fullmatch(text):
            raise self._wrong(name, text, "not a memory size; give a number and m or g, such as 768m or 2g")
        return text

    def host(self, name: str) -> str:
        """Return the name or address of a host."""
        text = self.text(name)
        if any(character.isspace() for character in text):
            raise self._wrong(name, text, "not the name or address of a host; remove the space")
        return text

    def addresses(self, name: str) -> str:
        """Return one or more host:port, separated by commas."""
        text = self.text(name)
        for each in text.split(","):
            match = _ADDRESS.fullmatch(each)
            if match is None or not 0 < int(match.group(1)) < 65_536:
                raise self._wrong(name, without_login(text), "not host:port, or several with commas between them")
        return text

    def urls(self, name: str, default: str | None = None) -> str:
        """Return one or more URLs of HTTP servers, separated by commas."""
        text = self.text(name, default)
        urls = [each.strip() for each in text.split(",") if each.strip()]
        if not urls or not all(map(_is_url, urls)):
            raise self._wrong(name, without_login(text), "not http://host:port, or several with commas between them")
        return text

    def origins(self, name: str) -> tuple[str, ...]:
        """Return the origins of web pages, separated by commas; empty if it is not set."""
        found = tuple(each.strip() for each in self.text(name, "").split(",") if each.strip())
        if not all(map(_ORIGIN.fullmatch, found)):
            wanted = "not the origin of web pages, such as https://app.example or http://127.0.0.1:3000, or several "
            raise self._wrong(
                name, ",".join(found), f"{wanted}with commas between them, in lower case and without a path"
            )
        return found

    def secret_url(self, name: str) -> str:
        """Return the URL of an HTTP server that messages never show; empty if it is not set."""
        value = self.secret(name, "")
        if value and not _is_url(value):
            raise ConfigurationError(f"{self.variable(name)}: not a URL; give one such as https://host/path")
        return value

    def secret_headers(self, name: str) -> dict[str, str]:
        """Return HTTP headers, written as name=value with commas between them, that messages never show.

        Values are encoded as in URLs.
        """
        parts = [part for part in self.secret(name, "").split(",") if part.strip()]
        found = [_HEADER.fullmatch(part) for part in parts]
        headers = {match[1].lower(): unquote(match[2]) for match in found if match}
        if None in found or not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ConfigurationError(
                f"{self.variable(name)}: not name=value, or several with commas between them; encode other characters "
                "of a value as in URLs, such as %2C for a comma"
            )
        return headers

    def file_or_url(self, name: str) -> str:
        """Return the path of a file or the URL of an HTTP server; empty if it is not set."""
        text = self.text(name, "")
        if "://" in text and not _is_url(text):
            raise self._wrong(name, text, "neither a file nor http://host:port")
        return text

    def mail_addresses(self, name: str) -> tuple[str, ...]:
        """Return mail addresses, which are separated by commas; empty if it is not set."""
        text = self.text(name, "")
        addresses = tuple(each.strip() for each in text.split(",") if each.strip())
        if not all(map(_MAIL.fullmatch, addresses)):
            raise self._wrong(name, text, "not name@host, or several with commas between them")
        return addresses

    def path(self, name: str) -> Path | None:
        """Return the path of a file or folder; None if it is not set."""
        text = self.text(name, "")
        return Path(text) if text else None

    def readable_file(self, name: str) -> Path | None:
        """Return the path of a file that this process can read; None if it is not set."""
        path = self.path(name)
        if path is not None:
            require_readable(self.variable(name), path)
        return path

    def certificate_and_key(self, certificate: str, key: str, whose: str) -> tuple[Path, Path] | tuple[None, None]:
        """Return the paths of two readable files; None for both if neither is set. `whose` is for the message."""
        self.readable_file(certificate)
        self.readable_file(key)
        return self.pair_of_paths(certificate, key, whose)

    def pair_of_paths(self, certificate: str, key: str, whose: str) -> tuple[Path, Path] | tuple[None, None]:
        """Return the paths of two files, which are not read; None for both if neither is set."""
        found = self.path(certificate), self.path(key)
        if found[0] and found[1]:
            return found[0], found[1]
        if found[0] or found[1]:
            missing = key if found[0] else certificate
            raise ConfigurationError(f"{missing} is not set; {whose} certificate and its key go together")
        return None, None

    def zone(self, name: str, default: str) -> str:
        """Return the name of a time zone."""
        text = self.text(name, default)
        try:
            ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:  # OSError: "Asia" is a folder
            raise self._wrong(name, text, "no such time zone; use a name such as Asia/Seoul") from exc
        return text

    def time_of_day(self, name: str, default: str) -> dt.time:
        """Return a time of day, written as HH:MM."""
        text = self.text(name, default)
        if not _TIME.fullmatch(text):
            raise self._wrong(name, text, "not a time of day; write it as HH:MM, for example 09:00")
        return dt.time.fromisoformat(text)

    def choice(self, name: str, choices: Mapping[str, _T], default: str | None = None) -> _T:
        """Return the value of one of the choices."""
        text = self.text(name, default)
        if text not in choices:
            raise self._wrong(name, text, f"not one of {', '.join(choices)}")
        return choices[text]

    def master(self, name: str, default: str) -> str:
        """Return the URL of a Spark master."""
        text = self.text(name, default)
        if not _MASTER.fullmatch(text):
            raise self._wrong(name, text, "not a Spark master; use local[2], spark://host:7077, yarn or k8s://…")
        return text

    def variable(self, name: str) -> str:
        """Return the name of the variable that has the value: the one with the prefix if it is set."""
        return self._prefix + name if self._environment.get(self._prefix + name) else name

    def require_known(self) -> None:
        """Raise ConfigurationError for a variable with the prefix that was not read."""
        for variable in sorted(self._environment):
            if self._prefix and variable.startswith(self._prefix):
                name = variable.removeprefix(self._prefix)
                if name not in self._read:
                    raise ConfigurationError(f"{variable}: {name} is no setting of a pipeline; remove or correct it")

    def _wrong(self, name: str, value: str, why: str) -> ConfigurationError:
        shown = without_login(value) if "://" in value else value
        return ConfigurationError(f"{self.variable(name)}={shown!r}: {why}")


def require_readable(variable: str, path: Path) -> None:
    """Raise ConfigurationError if this process cannot read the file that the variable names."""
    try:
        path.open("rb").close()
    except OSError as exc:
        raise ConfigurationError(
            f"{variable}={str(path)!r}: cannot be read ({exc.strerror}); correct the path or the file's rights"
        ) from exc


def _content(variable: str, path: str) -> str:
    try:
        content = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text in UTF-8"
        raise ConfigurationError(
            f"{variable}={path!r}: cannot be read ({reason}); correct the path, the file or its rights"
        ) from exc
    if not content:
        raise ConfigurationError(f"{variable}={path!r}: the file is empty; write the secret into it")
    return content


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        has_parts = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # invalid port
        return False
    return has_parts and _URL.fullmatch(text) is not None
