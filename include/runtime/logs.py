"""Set-up of logging: entries as text or as JSON lines on standard error, with the request to which they belong."""

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType

from include.contracts.clock import rfc3339
from include.contracts.errors import ConfigurationError
from include.runtime import kinds
from include.runtime.environment_reader import EnvironmentReader, Setting


@dataclass(slots=True)  # not frozen: that would cost each request half a microsecond
class RequestIds:
    """The ids of a request that a process handles; `trace_id` is empty for a request without a trace."""

    request_id: str
    trace_id: str = ""


REQUEST: ContextVar[RequestIds | None] = ContextVar("request", default=None)
"""The request that the current task handles. Each log entry of the task names it."""

LOG_FORMAT = Setting(
    "LOG_FORMAT", kinds.choice("text", "json"), "text", "log entries as lines of text or as JSON objects"
)
_CLIENT_LIBRARIES = ("httpx", "py4j")  # they log each call at level INFO


def log_format(environment: Mapping[str, str] | None = None) -> str:
    """Return LOG_FORMAT: text or json. Raises ConfigurationError."""
    text: str = EnvironmentReader(os.environ if environment is None else environment).read(LOG_FORMAT)
    return text


def set_up(component: str) -> None:
    """Send log entries of level INFO and above to standard error, in the format of LOG_FORMAT.

    A process whose logging is set up already keeps it. Raises ConfigurationError for an unknown format, after logging
    has been set up as text.
    """
    try:
        is_json = log_format() == "json"
    except ConfigurationError:
        _set_up(TextFormatter())
        raise
    _set_up(JsonFormatter(component) if is_json else TextFormatter())
    if is_json:  # the interpreter would write a traceback of several lines
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(
            args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback
        )
        logging.captureWarnings(True)


def _set_up(formatter: logging.Formatter) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in _CLIENT_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def _log_uncaught(kind: type[BaseException], exc: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, exc, traceback)
        return
    logging.getLogger("uncaught").critical("the process or a thread of it fails", exc_info=(kind, exc, traceback))


class TextFormatter(logging.Formatter):
    """Formats an entry as text: time, level, logger, message and the ids of the request, if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        """Return the line without a traceback."""
        line = super().formatMessage(record)
        ids = _ids()
        return f"{line} {' '.join(f'{name}={value}' for name, value in ids.items())}" if ids else line


class JsonFormatter(logging.Formatter):
    """Formats an entry as one line with a JSON object.

    It has timestamp (RFC 3339, UTC), level, logger, component and message; the ids of the request, if there is one; the
    entry's own `fields`; and the traceback of an exception as `exception`.
    """

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Characters outside of ASCII are escaped, so no text can end the line or fail to encode."""
        entry: dict[str, object] = {
            "timestamp": rfc3339(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname,
            "logger": record.name,
            "component": self._component,
            "message": record.getMessage(),
            **_ids(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        return json.dumps(entry, default=str)


def _ids() -> dict[str, str]:
    request = REQUEST.get()
    if request is None:
        return {}
    ids = {"request_id": request.request_id}
    return ids | {"trace_id": request.trace_id} if request.trace_id else ids
