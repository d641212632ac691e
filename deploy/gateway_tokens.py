"""Writes the gateway's tokens file from the tokens in `.env`: `python -m deploy.gateway_tokens`. Idempotent.

The gateway gets the file with their hashes, never the tokens.
"""

import argparse
import sys
from pathlib import Path

from deploy.environment import required
from include.errors import ConfigurationError
from include.gateway import token_file
from stack.errors import StackError

VARIABLES = ("GATEWAY_TOKENS_FILE", "GATEWAY_TOKEN", "GATEWAY_ADMIN_TOKEN")


def main() -> int:
    """Run the command; returns 1 after a one-line error if a variable is missing or the file is unusable."""
    try:
        variables = required(VARIABLES)
        path = Path(variables["GATEWAY_TOKENS_FILE"])
        notes = token_file.ensure(path, variables["GATEWAY_TOKEN"], variables["GATEWAY_ADMIN_TOKEN"])
    except (ConfigurationError, StackError) as exc:
        print(f"gateway_tokens: {exc}", file=sys.stderr)
        return 1
    for note in notes:
        print(note)
    print("the gateway's tokens file is there")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m deploy.gateway_tokens", description=__doc__).parse_args()
    sys.exit(main())
