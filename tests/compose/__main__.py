"""Exits with 1 and a remedy if this machine cannot run the deployment: `python -m tests.compose`."""

import sys

from tests.compose.engine import NoEngine, require_engine


def main() -> int:
    """Ask the engine; returns the exit code."""
    try:
        require_engine()
    except NoEngine as exc:
        print(f"compose-test: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
