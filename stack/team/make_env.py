"""Makes `.env` with ports and secrets: `python3 -m stack.team.make_env`, before the first `docker compose up`.

Standard library only: a machine that only runs containers has no virtual environment. An existing file is kept;
missing variables are added.
"""

import argparse
from pathlib import Path

from stack import env_file
from stack.errors import one_line_errors

ENV_FILE = Path(__file__).resolve().parents[2] / ".env"


@one_line_errors("make_env")
def main() -> None:
    """Complete the file; exits with 1 after a one-line error if it is unusable."""
    for note in env_file.ensure(ENV_FILE):
        print(note)
    print(f"{ENV_FILE} is complete")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
