"""The batch layer from a shell: `python -m include.integrity COMMAND --help`.

A day by hand: `drain`, `catch-up`, `rebuild`, `diff`, `publish`, `certify`. To investigate: `watch`, `status`,
`history`, `undo`.
Settings come from the environment, as for every process of the pipeline (`set -a; . ./.env; set +a`).
The result is printed on standard output, as text or with --json as JSON; the log on standard error.

Exit codes: 0 done; 2 wrong arguments; 3 done, but a person has to look: differences are unexplained, Kafka refuses
events, the day is not certified, or the watch has findings; 4 refused, a retry does not help; 75 another run may
succeed: a server is unavailable, the day is busy, or events are not drained; 78 a setting is missing or wrong; 1 a
defect.
"""

import argparse
import dataclasses
import getpass
import json
import socket
import sys
from typing import Any

from include.contracts.day import Day
from include.contracts.errors import LOOK, OK
from include.database.schema_revision import checked_settings
from include.integrity.commands import COMMANDS, needs_a_person
from include.integrity.report import text_of
from include.runtime.command import as_command


@as_command
def main(argv: list[str] | None = None) -> int:
    """Run one command and print its result; an error is one line on standard error."""
    given = vars(_parser().parse_args(argv))
    name, is_json = given.pop("command"), given.pop("json")
    if "made_by" in given:
        given["made_by"] = given["made_by"] or f"{getpass.getuser()}@{socket.gethostname()}"
    settings, day = checked_settings("batch"), given.pop("day", None)
    days = [] if day is None else [Day.parse(day, settings.timezone)]
    result = COMMANDS[name].call(settings, *days, **given)
    print(json.dumps(_plain(result), default=str, ensure_ascii=False) if is_json else text_of(result))
    return LOOK if needs_a_person(result) else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m include.integrity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.text.split(".")[0], description=command.text)
        if command.takes_day is not False:
            added.add_argument(
                "--day",
                required=command.takes_day is True,
                metavar="YYYY-MM-DD",
                help="a date in the pipeline's time zone",
            )
        added.add_argument("--json", action="store_true", help="answer as one line of JSON")
        for flag, argument in command.arguments.items():
            added.add_argument(flag, **argument)
    return parser


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(one) for one in result]
    return dataclasses.asdict(result)


if __name__ == "__main__":
    sys.exit(main())
