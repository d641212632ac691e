"""Writes the gateway's tokens file from the tokens in `.env`: `python -m stack.team.gateway_tokens`. Idempotent.

The gateway gets the file with their hashes, never the tokens.
"""

import argparse

from stack.errors import one_line_errors
from stack.run_service import write_gateway_tokens
from stack.team.environment import required

VARIABLES = ("GATEWAY_TOKENS_FILE", "GATEWAY_TOKEN", "GATEWAY_ADMIN_TOKEN")


@one_line_errors("gateway_tokens")
def main() -> None:
    """Run the command; exits with 1 after a one-line error if a variable is missing or the file is unusable."""
    variables = required(VARIABLES)
    write_gateway_tokens(variables)
    print("the gateway's tokens file is there")


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m stack.team.gateway_tokens", description=__doc__).parse_args()
    main()
