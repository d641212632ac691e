"""The image's jars, fetched and verified as the local stack does: `python -m deploy.fetch_jars /opt/jars`."""

import argparse
import os
import sys
from pathlib import Path

from stack import jars
from stack.errors import StackError
from stack.layout import Layout
from stack.prerequisites import find_java


def main() -> int:
    """Makes the folder equal to stack/jars.lock, one folder a set. Exit code 1 with one line when it can't."""
    parser = argparse.ArgumentParser(prog="python -m deploy.fetch_jars", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    layout = Layout(root=folder.parent, state=folder.parent, env_file=folder.parent / ".env", jars=folder)
    try:
        jars.ensure(layout, jars.pyspark_jars(Path(sys.prefix)), find_java(os.environ))
    except StackError as exc:
        print(f"fetch_jars: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
