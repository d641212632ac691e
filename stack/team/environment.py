"""Variables for the one-shot services of the deployment."""

import os
from collections.abc import Iterable, Mapping

from stack.errors import StackError


def required(names: Iterable[str]) -> Mapping[str, str]:
    """Return the process's environment. Raises StackError naming the variables that are not set."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise StackError(f"{', '.join(missing)} is not set; docker-compose.yaml takes it from .env")
    return os.environ
