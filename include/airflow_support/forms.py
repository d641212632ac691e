"""Fields that forms of DAGs share, and the error for a value that only a task can check. Imported at parse time."""

from typing import Any

from airflow.sdk import Param

from include.contracts.errors import PipelineError
from include.contracts.fields import LONG_MAX, LONG_MIN

REASON = "3 to 500 printable characters on one line"
DIGITS = "a whole number in digits, as text"
# no control character and no half of a surrogate pair, and not blank
_REASON_PATTERN = r"^(?![\s\S]*[\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff])(?=[\s\S]*\S)"
_DIGITS_PATTERN = r"^(0|-?[1-9][0-9]{0,18})$"


class FormError(PipelineError):
    """A value of the form is wrong."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={value!r}: {remedy}")


def _like(pattern: str, wanted: str, **bounds: int) -> dict[str, Any]:
    """Return the schema of a text: Airflow refuses another one with `'<wanted>' was expected`, not with the pattern."""
    return {"if": {"pattern": pattern, **bounds}, "else": {"const": wanted}}


_REASON: dict[str, Any] = {"title": "Reason", **_like(_REASON_PATTERN, REASON, minLength=3, maxLength=500)}


def reason_field(description: str) -> Param:
    """Return the required field `reason`: 3 to 500 printable characters."""
    return Param(type="string", description=f"{description} {REASON}.", **_REASON)


def reason_by_hand_field(description: str) -> Param:
    """Return the field `reason` of a DAG that also has a schedule, whose runs give none: see `require_reason`."""
    text = f"{description} {REASON}; required by hand."
    return Param(None, type=["null", "string"], description=text, **_REASON)


def require_reason(reason: str | None) -> None:
    """Raise FormError for a form without a reason."""
    if not reason:
        raise FormError("reason", reason, f"say why, in {REASON}")


def dry_run_field(description: str) -> Param:
    """Return the field `dry_run`, which is on by default."""
    return Param(True, type="boolean", title="Dry run", description=description)


def key_field(title: str, description: str) -> Param:
    """Return a required field with a key of the pipeline's table or stream, in digits.

    It is text: browsers round numbers above 2^53, and a form with numbers would remove another person.
    """
    return Param(type="string", title=title, description=f"{description} In digits.", **_like(_DIGITS_PATTERN, DIGITS))


def require_same_key(key: str, key_again: str) -> None:
    """Raise FormError unless both are the same key, of 64 bits."""
    if not LONG_MIN <= int(key) <= LONG_MAX:
        raise FormError("key", key, f"not from {LONG_MIN} to {LONG_MAX}; correct it")
    if key != key_again:
        raise FormError("key_again", key_again, f"key={key} differs; type the same key twice")
