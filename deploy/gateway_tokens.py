"""Writes the gateway's tokens file from the tokens in `.env`: `python -m deploy.gateway_tokens`. Idempotent.

The gateway gets the file with their hashes, never the tokens.
"""

import argparse
from contextlib import suppress
from pathlib import Path

from deploy.environment import required
from stack.errors import one_line_errors
from stack.run_service import write_gateway_tokens

VARIABLES = ("GATEWAY_TOKENS_FILE", "GATEWAY_TOKEN", "GATEWAY_ADMIN_TOKEN")


@one_line_errors("gateway_tokens")
def main() -> None:
    """Run the command; exits with 1 after a one-line error if a variable is missing or the file is unusable."""
    variables = required(VARIABLES)
    _close_to_the_group(Path(variables["GATEWAY_TOKENS_FILE"]))
    write_gateway_tokens(variables)
    print("the gateway's tokens file is there")


def _close_to_the_group(path: Path) -> None:
    """Take the group's rights from the file: Kubernetes gives them to each file of a volume that it mounts."""
    with suppress(FileNotFoundError, PermissionError):  # `ensure` says what is wrong with a file of somebody else
        path.chmod(path.stat().st_mode & ~0o070)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m deploy.gateway_tokens", description=__doc__).parse_args()
    main()
