"""The gateway's tokens file. It holds hashes, never the tokens themselves.

A JSON array with one object per token: its `name`; `sha256`, one or two hex digests, newest first, two during a
rotation; `topics`, those whose data it may send, or `["*"]`; `admin`, true for the calls on the fallback store. A plain
SHA-256 is enough, because tokens are random and too long to be guessed.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import RAW_TOPICS
from include.runtime.durable_files import replacing

log = logging.getLogger(__name__)

EVERY_TOPIC = "*"
DATA, ADMIN = "data", "admin"  # names of the tokens from GATEWAY_TOKEN and GATEWAY_ADMIN_TOKEN

ISSUER_PREFIX = "oidc:"  # of clients with an access token; no name in the file has a colon
_ISSUER_SERIES = ISSUER_PREFIX + "*"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = ("name", "sha256", "topics", "admin")
_MAX_HASHES = 2
_MAKE_ONE = "make one with: pipeline gateway tokens add NAME --topic TOPIC"


@dataclass(frozen=True)
class Entry:
    """One token: its name, its hashes and its scope."""

    name: str
    sha256: tuple[str, ...]
    topics: tuple[str, ...] = ()
    admin: bool = False

    def allows(self, topic: str) -> bool:
        """True if the token may send data of this topic."""
        return topic in self.topics or EVERY_TOPIC in self.topics


def is_of_issuer(client: str) -> bool:
    """True for a client with an access token. Their number has no limit, since users may be clients."""
    return client.startswith(ISSUER_PREFIX)


def series_of(client: str) -> str:
    """Return the label of a client in metrics: its name in the file, or one label for all clients of the issuer.

    So the page has a bounded size, and no ids of users, although everybody may read it.
    """
    return _ISSUER_SERIES if is_of_issuer(client) else client


def new_token() -> str:
    """Return a token with 256 random bits, in characters that need no quoting in shells and headers."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the hash of a token, as the file stores it."""
    return hashlib.sha256(token.encode()).hexdigest()


def read(path: Path) -> tuple[Entry, ...]:
    """Return the tokens of a file. Raises ConfigurationError with the file, the entry, the field and the remedy."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = json.load(file)
    except OSError as exc:
        raise ConfigurationError(f"tokens file {path}: {exc.strerror}; {_MAKE_ONE}") from exc
    except (ValueError, RecursionError) as exc:  # includes a wrong encoding; the message must not quote content
        raise ConfigurationError(f"tokens file {path}: not JSON in UTF-8; correct it, or {_MAKE_ONE}") from exc
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(f"tokens file {path}: others may write it ({mode:04o}); chmod 600 {path}")
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning("tokens file %s can be read by others (%04o): chmod 600", path, mode)
    try:
        return parse(content)
    except ConfigurationError as exc:
        raise ConfigurationError(f"tokens file {path}: {exc}") from exc


def parse(content: object) -> tuple[Entry, ...]:
    """Return the tokens of a decoded file. Raises ConfigurationError with the entry, the field and the remedy."""
    if not isinstance(content, list):
        raise ConfigurationError("not an array; give an array with one object per token")
    entries = tuple(_entry(number, each) for number, each in enumerate(content, start=1))
    names: set[str] = set()
    owners: dict[str, str] = {}
    for entry in entries:
        if entry.name in names:
            raise ConfigurationError(f"entry {entry.name!r}: there are two of that name; give each its own")
        names.add(entry.name)
        for each in entry.sha256:
            if each in owners:
                raise ConfigurationError(
                    f"entry {entry.name!r}, sha256: the same token is in {owners[each]!r}; give each its own"
                )
            owners[each] = entry.name
    return entries


def _entry(number: int, content: object) -> Entry:
    where = f"entry {number}"
    if not isinstance(content, dict):
        raise ConfigurationError(f"{where}: not an object; give the fields {', '.join(_FIELDS)}")
    name = content.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}, name: give lower-case letters, digits, '.', '_' and '-', at most 64")
    where = f"entry {name!r}"
    unknown = [each for each in content if each not in _FIELDS]
    if unknown:
        raise ConfigurationError(f"{where}: unknown field {unknown[0][:64]!r}; the fields are {', '.join(_FIELDS)}")
    digests, topics, admin = content.get("sha256"), content.get("topics", []), content.get("admin", False)
    if not (
        isinstance(digests, list)
        and 1 <= len(digests) <= _MAX_HASHES
        and all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in digests)
    ):
        raise ConfigurationError(f"{where}, sha256: give an array of one or two hashes, 64 lower-case hex digits each")
    allowed = (*RAW_TOPICS, EVERY_TOPIC)
    if not isinstance(topics, list) or not all(isinstance(each, str) and each in allowed for each in topics):
        raise ConfigurationError(f"{where}, topics: give an array of {', '.join(allowed)}")
    if not isinstance(admin, bool):
        raise ConfigurationError(f"{where}, admin: give true or false")
    if not topics and not admin:
        raise ConfigurationError(f"{where}: neither topics nor admin; give it topics, or admin true")
    return Entry(name, tuple(digests), tuple(topics), admin)


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Replace the file durably, with mode 0600. Run as root, it keeps the owner. Raises ConfigurationError."""
    target = path.resolve()  # replaces the target of a symbolic link, not the link
    content = [
        {"name": each.name, "sha256": each.sha256, "topics": each.topics, "admin": each.admin} for each in entries
    ]
    text = json.dumps(content, indent=2) + "\n"
    parse(json.loads(text))
    try:
        with replacing(target, mode=0o600) as file:
            file.write(text.encode())
            if target.exists() and os.geteuid() == 0:
                owner = target.stat()  # the gateway that reads the file may run as another user
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    except OSError as exc:
        raise ConfigurationError(f"tokens file {path}: cannot be written: {exc.strerror}") from exc


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock against concurrent edits of the file, which would overwrite each other. Creates the folder."""
    folder = path.resolve().parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise ConfigurationError(f"folder {folder} of the tokens file: {exc.strerror}") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # on the folder, because edits replace the file
        yield
    finally:
        os.close(descriptor)


def add(entries: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
    """Return the entries with one more token. Raises ConfigurationError if the name is in use."""
    if any(each.name == entry.name for each in entries):
        raise ConfigurationError(f"{entry.name!r} exists already; rotate it, or remove it first")
    return (*entries, entry)


def rotate(entries: Sequence[Entry], name: str, sha256: str) -> tuple[Entry, ...]:
    """Return the entries with a second, newer hash for a token; the first stays valid.

    Raises ConfigurationError if the token has two already.
    """
    entry = _find(entries, name)
    if len(entry.sha256) == _MAX_HASHES:
        raise ConfigurationError(f"{name!r} has two tokens already; retire the older one first: retire {name}")
    return _replaced(entries, replace(entry, sha256=(sha256, *entry.sha256)))


def retire(entries: Sequence[Entry], name: str) -> tuple[Entry, ...]:
    """Return the entries without the token's older hash. Raises ConfigurationError if it has only one."""
    entry = _find(entries, name)
    if len(entry.sha256) == 1:
        raise ConfigurationError(f"{name!r} has one token only; remove it to end it, or rotate it first")
    return _replaced(entries, replace(entry, sha256=entry.sha256[:1]))


def remove(entries: Sequence[Entry], name: str) -> tuple[Entry, ...]:
    """Return the entries without the token. Raises ConfigurationError if there is none of that name."""
    gone = _find(entries, name)
    return tuple(each for each in entries if each is not gone)


def ensure(path: Path, data_token: str, admin_token: str) -> list[str]:
    """Add or rotate a deployment's two tokens, as the entries `data` and `admin`; keep other entries.

    A changed token is a rotation: the previous one stays valid until it is retired. Safe to call at every start.
    Returns one line per change, to be shown to a person, without any token. Raises ConfigurationError.
    """
    if not data_token or not admin_token:
        missing = "GATEWAY_ADMIN_TOKEN" if data_token else "GATEWAY_TOKEN"
        raise ConfigurationError(f"{missing} is not set; the gateway's tokens file is made from it")
    if data_token == admin_token:
        raise ConfigurationError("GATEWAY_TOKEN and GATEWAY_ADMIN_TOKEN are the same; give the admin calls their own")
    wanted: Mapping[str, Entry] = {
        DATA: Entry(DATA, (digest(data_token),), topics=(EVERY_TOPIC,)),
        ADMIN: Entry(ADMIN, (digest(admin_token),), admin=True),
    }
    with locked(path):
        before = read(path) if path.exists() else ()
        entries, notes = before, []
        for name, entry in wanted.items():
            known = next((each.sha256 for each in entries if each.name == name), ())
            if not known:
                entries = add(entries, entry)
                notes.append(f"token {name}: added")
            elif entry.sha256[0] not in known:
                # two hashes at most: the newest known one stays, because clients use it now
                entries = _replaced(entries, replace(_find(entries, name), sha256=(*entry.sha256, known[0])))
                notes.append(f"token {name}: changed; the previous one is valid until you retire it")
        if entries != before:
            write(path, entries)
    return notes


def _find(entries: Sequence[Entry], name: str) -> Entry:
    for entry in entries:
        if entry.name == name:
            return entry
    names = ", ".join(each.name for each in entries) or "none"
    raise ConfigurationError(f"no token is named {name!r}; the names are: {names}")


def _replaced(entries: Sequence[Entry], entry: Entry) -> tuple[Entry, ...]:
    return tuple(entry if each.name == entry.name else each for each in entries)
