"""The gateway's tokens file. It holds hashes, never the tokens themselves.

A JSON array with one object per token: its `name`; `sha256`, one or two hex digests, newest first, two during a
rotation; `topics`, those whose data it may send, or `["*"]`; `admin`, true for the calls on the fallback store. A plain
SHA-256 is enough, because tokens are random and too long to be guessed.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import RAW_TOPICS
from include.runtime.durable_files import replacing

log = logging.getLogger(__name__)

EVERY_TOPIC = "*"
DATA, ADMIN = "data", "admin"  # names of the tokens from GATEWAY_TOKEN and GATEWAY_ADMIN_TOKEN

ISSUER_PREFIX = "oidc:"  # of clients with an access token; no name in the file has a colon
_ISSUER_SERIES = ISSUER_PREFIX + "*"

_TOPICS = (*RAW_TOPICS, EVERY_TOPIC)
_MAX_HASHES = 2
_MAKE_ONE = "make one with: pipeline gateway tokens add NAME --topic TOPIC"

_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Topic = Annotated[str, Meta(pattern=rf"^({'|'.join(map(re.escape, _TOPICS))})\Z")]


class Entry(msgspec.Struct, frozen=True):
    """One token: its name, its hashes and its scope. A field's description is the remedy for a wrong value."""

    # fmt: off
    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z",
        description="give lower-case letters, digits, '.', '_' and '-', at most 64")]
    sha256: Annotated[tuple[_Digest, ...], Meta(min_length=1, max_length=_MAX_HASHES,
        description="give an array of one or two hashes, 64 lower-case hex digits each")]
    # fmt: on
    topics: Annotated[tuple[_Topic, ...], Meta(description=f"give an array of {', '.join(_TOPICS)}")] = ()
    admin: Annotated[bool, Meta(description="give true or false")] = False

    def allows(self, topic: str) -> bool:
        """True if the token may send data of this topic."""
        return topic in self.topics or EVERY_TOPIC in self.topics


_FIELDS = {each.name: each for each in msgspec.structs.fields(Entry)}


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
            content = msgspec.json.decode(file.read())
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
    if not isinstance(content, dict):
        raise ConfigurationError(f"entry {number}: not an object; give the fields {', '.join(_FIELDS)}")
    name = _value(f"entry {number}", content, "name")
    where = f"entry {name!r}"
    unknown = [each for each in content if each not in _FIELDS]
    if unknown:
        raise ConfigurationError(f"{where}: unknown field {unknown[0][:64]!r}; the fields are {', '.join(_FIELDS)}")
    entry = Entry(*(_value(where, content, field) for field in _FIELDS))
    if not entry.topics and not entry.admin:
        raise ConfigurationError(f"{where}: neither topics nor admin; give it topics, or admin true")
    return entry


def _value(where: str, content: Mapping[str, object], name: str) -> Any:
    field = _FIELDS[name]
    try:
        return msgspec.convert(content.get(name, field.default), field.type)
    except msgspec.ValidationError:
        raise ConfigurationError(f"{where}, {name}: {field.type.__metadata__[0].description}") from None


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Replace the file durably, with mode 0600. Run as root, it keeps the owner. Raises ConfigurationError."""
    target = path.resolve()  # replaces the target of a symbolic link, not the link
    content = msgspec.json.encode(entries)
    parse(msgspec.json.decode(content))
    try:
        with replacing(target, mode=0o600) as file:
            file.write(msgspec.json.format(content) + b"\n")
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
