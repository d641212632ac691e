"""Prints the least rights of the pipeline's parts: `python -m include.integrity.rights kafka | postgres | archive`.

Those in Kafka and PostgreSQL are commands, those in the archive's bucket a policy in JSON.
"""

import argparse
import json
import sys
from typing import get_args

from include.archive.bucket import bucket_policy
from include.contracts.errors import ConfigurationError
from include.database.grants import grants
from include.kafka.access import Part, acl_commands
from include.runtime.command import as_command
from include.runtime.settings import Settings


@as_command
def main() -> int:
    """Print the rights. Exit code: 78 a setting is missing or wrong."""
    parser = argparse.ArgumentParser(description="Print the least rights of the pipeline's parts.")
    parser.add_argument("server", choices=["kafka", "postgres", "archive"])
    parser.add_argument(
        "--principal", action="append", default=[], metavar="PART=PRINCIPAL",
        help=f"principal in Kafka of {', '.join(get_args(Part))}; User:PART unless given. For the archive batch=ARN, "
        "which makes the policy that of the bucket",
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
    if arguments.server == "archive":
        given_arn = principals["batch"] if arguments.principal else ""
        print(json.dumps(bucket_policy(settings.batch.archive_dir, given_arn), indent=2))
        return 0
    if arguments.server == "kafka":
        commands = list(acl_commands(settings.kafka.connection, settings.pipeline, principals))
    else:
        commands = grants(settings.pipeline)
    print(*commands, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
