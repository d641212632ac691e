"""Authorization by bearer token."""

import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from include.contracts.errors import ConfigurationError
from include.gateway.auth import token_file
from include.gateway.auth.access_tokens import (
    ADMIN_SCOPE,
    TOPIC_SCOPE,
    AccessTokens,
    insufficient_scope,
    invalid_token,
    missing_token,
)
from include.gateway.auth.token_file import EVERY_TOPIC, Entry

log = logging.getLogger(__name__)

Access = Literal["data", "admin"]

NOBODY = ""  # the sender's name on calls that need no token


class Tokens:
    """The tokens that a gateway accepts, as hashes.

    With `entries` None, calls need no token; that is for loopback only. With no entries, every token is refused, except
    those of the identity provider whose `access_tokens` are accepted too.
    """

    def __init__(
        self, entries: Sequence[Entry] | None, path: Path | None = None, access_tokens: AccessTokens | None = None
    ) -> None:
        self._path = path
        self._access_tokens = access_tokens
        self._known: list[tuple[bytes, Entry]] = []
        self.is_open = entries is None
        if entries is not None:
            self._take(entries)

    @classmethod
    def of(cls, path: Path | None, access_tokens: AccessTokens | None = None) -> "Tokens":
        """Load the tokens of a file. With neither of the two, calls need no token. Raises ConfigurationError."""
        if path is None:
            return cls(None if access_tokens is None else (), None, access_tokens)
        return cls(token_file.read(path), path, access_tokens)

    @property
    def problem(self) -> str | None:
        """The reason why some valid tokens may be refused; None if there is none."""
        return None if self._access_tokens is None else self._access_tokens.keys.problem

    def reload(self) -> bool:
        """Reload the file. True if it was loaded. The error of an invalid file is logged, and the tokens stay."""
        if self._path is None:
            return False
        try:
            self._take(token_file.read(self._path))
        except ConfigurationError as exc:
            log.error("%s; the tokens stay as they were", exc)
            return False
        return True

    def require(self, authorization: bytes, access: Access, topic: str | None = None) -> str:
        """Return the name of the token if its scope includes the call; `topic` None stands for any topic.

        Raises Fault 401 for a missing or unknown token, 403 for one whose scope does not include the call, 503 while an
        access token cannot be verified.
        """
        if self.is_open:
            return NOBODY
        token = authorization[7:].lstrip(b" ") if authorization[:7] == b"Bearer " else _token(authorization)
        presented = hashlib.sha256(token).digest()
        found: Entry | None = None
        for known, entry in self._known:  # no early exit, so that the time taken does not depend on the match
            if hmac.compare_digest(known, presented):
                found = entry
        if not token:
            raise missing_token()
        if found is None and self._access_tokens is not None and token.count(b".") == 2:
            found = self._access_tokens.entry(token, presented)
        if found is None:
            raise invalid_token("no valid token")
        if access == "admin":
            if not found.admin:
                raise insufficient_scope("the admin calls", "admin", ADMIN_SCOPE)
        elif topic is None:
            if not found.topics:
                raise insufficient_scope("data", "the topic", TOPIC_SCOPE + EVERY_TOPIC)
        elif not found.allows(topic):
            raise insufficient_scope(f"topic {topic}", "the topic", TOPIC_SCOPE + topic)
        return found.name

    def _take(self, entries: Sequence[Entry]) -> None:
        if not entries and self._path is not None:
            log.warning("the tokens file has no token: every call that needs one is answered 401")
        self._known = [(bytes.fromhex(digest), entry) for entry in entries for digest in entry.sha256]


def _token(authorization: bytes) -> bytes:
    scheme, _, token = authorization.partition(b" ")
    return token.lstrip(b" ") if scheme.lower() == b"bearer" else b""
