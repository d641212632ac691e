"""Makes `.env` with ports and secrets: `python3 -m deploy.make_env`, before the first `docker compose up`.

Standard library only: a machine that only runs containers has no virtual environment. An existing file is kept;
missing variables are added.
"""

import argparse
import sys
from pathlib import Path

from stack import env_file
from stack.errors import StackError, describe_os_error

ENV_FILE = Path(__file__).resolve().parent.parent / ".env"


def main() -> int:
    """Run the command; returns 0 if the file is complete, 1 after a one-line error if it is unusable."""
    try:
        for note in env_file.ensure(ENV_FILE):
            print(note)
    except StackError as exc:
        print(f"make_env: {exc}", file=sys.stderr)
        return 1
    except OSError as exc:
        print(f"make_env: {describe_os_error(exc)}", file=sys.stderr)
        return 1
    print(f"{ENV_FILE} is complete")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
