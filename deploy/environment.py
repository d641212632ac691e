"""The variables a one-shot service of the deployment reads."""

import os
from collections.abc import Iterable, Mapping

from stack.errors import StackError


def required(names: Iterable[str]) -> Mapping[str, str]:
    """The process' environment. Raises StackError naming the variables that are not set."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise StackError(f"{', '.join(missing)} is not set; docker-compose.yaml takes it from .env")
    return os.environ
