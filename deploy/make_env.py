"""Make `.env`, ports and secrets, if there is none: `python3 -m deploy.make_env`, before the first `docker compose up`.

Standard library only: a machine that only runs containers has no virtual environment. A file that is there is kept;
variables it does not have yet are added.
"""

import sys
from pathlib import Path

from stack import env_file
from stack.errors import StackError, describe_os_error

ENV_FILE = Path(__file__).resolve().parent.parent / ".env"


def main() -> int:
    """Exit code 0 when the file is complete, 1 with one line when it is not readable."""
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
    sys.exit(main())
