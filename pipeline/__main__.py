"""The command `pipeline`: operates the pipeline from a shell.

Only the module of the group that is asked for is imported, and the product when a command runs: so help and completion
are quick.
"""

import sys
from collections.abc import Sequence

import click

from include.contracts.errors import OK
from pipeline.group import Group

_MODULES = {"gateway": "gateway", "days": "days", "database": "servers", "kafka": "servers", "archive": "servers",
            "stream": "stream"}  # fmt: skip


@click.group(
    cls=Group,
    lazy={name: f"pipeline.{module}:{name}" for name, module in _MODULES.items()},
    context_settings={"max_content_width": 100},
)
def pipeline() -> None:
    """Operate the pipeline.

    Settings come from the environment, as for every process of the pipeline: set -a; . ./.env; set +a. PIPELINE chooses
    the pipeline. Results go to standard output, the log to standard error.

    Exit codes: 0 done; 2 wrong arguments; 3 done, but a person has to look; 4 refused, a retry does not help; 70
    stopped by its supervision; 75 another run may succeed; 78 a setting is wrong, or a person has to correct something
    first; 1 a defect.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of these arguments, or of the command line; returns its exit code."""
    try:
        pipeline.main(arguments, prog_name="pipeline")
    except SystemExit as ended:
        return int(ended.code or OK)


if __name__ == "__main__":
    sys.exit(main())
