"""The number of examples of a property test whose examples take a server, Spark or many milliseconds each.

`make test` runs a few, `make test-long` many: see `pytest_addoption` in tests/conftest.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LONG_PROFILE = "long"


def is_long() -> bool:
    """True if the run was started with `--long`."""
    return settings.get_current_profile_name() == LONG_PROFILE


def examples(few: int, many: int, **others: Any) -> Callable[[Any], Any]:
    """Return a decorator: `few` examples, with `--long` `many`; `others` are further settings of Hypothesis."""
    count = many if is_long() else few
    checked = settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), **others)
    return lambda test: pytest.mark.shortened(checked(test))
