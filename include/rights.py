"""Prints the least rights of the pipeline's parts, as commands: `python -m include.rights kafka` or `… postgres`."""

import argparse
import sys
from typing import get_args

from include.adapters.kafka.access import Part, acl_commands
from include.command import as_command
from include.errors import ConfigurationError
from include.settings import Settings
from include.sql.grants import grants


@as_command
def main() -> int:
    """Print the commands. Exit code: 78 a setting is missing or wrong."""
    parser = argparse.ArgumentParser(description="Print the least rights of the pipeline's parts, as commands.")
    parser.add_argument("server", choices=["kafka", "postgres"])
    parser.add_argument(
        "--principal", action="append", default=[], metavar="PART=PRINCIPAL",
        help=f"principal in Kafka of {', '.join(get_args(Part))}; User:PART unless given",
    )  # fmt: skip
    arguments = parser.parse_args()
    settings = Settings.from_environment()
    principals: dict[Part, str] = {part: f"User:{part}" for part in get_args(Part)}
    for given in arguments.principal:
        part, _, principal = given.partition("=")
        if part not in principals or not principal:
            raise ConfigurationError(
                f"--principal {given!r}: give one of {', '.join(principals)}, =, and its principal"
            )
        principals[part] = principal
    if arguments.server == "kafka":
        commands = list(acl_commands(settings.kafka.connection, settings.pipeline, principals))
    else:
        commands = grants(settings.pipeline)
    print(*commands, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
