"""Fetches and verifies the image's jars, as the local stack does: `python -m stack.team.fetch_jars /opt/jars`."""

import argparse
import os
import sys
from pathlib import Path

from stack import jars
from stack.errors import one_line_errors
from stack.layout import Layout
from stack.prerequisites import find_java


@one_line_errors("fetch_jars")
def main() -> None:
    """Make the folder match stack/jars.lock, with one subfolder per set. Exits with 1 after a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m stack.team.fetch_jars", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    layout = Layout(root=folder.parent, state=folder.parent, env_file=folder.parent / ".env", jars=folder)
    jars.ensure(layout, jars.pyspark_jars(Path(sys.prefix)), find_java(os.environ))


if __name__ == "__main__":
    main()
