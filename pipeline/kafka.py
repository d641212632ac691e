"""`pipeline kafka`: topics and access."""

import logging

import click

from include.contracts.errors import OK, ConfigurationError
from pipeline.group import Group, answer, json_option

log = logging.getLogger(__name__)


@click.group(cls=Group)
def kafka() -> None:
    """Create and audit the topics; print the rights of clients."""


@kafka.command()
def create_topics() -> int:
    """Create the missing topics.

    Exit codes: 75 the broker does not answer; 78 a topic differs from its contract, or another cluster answers.
    """
    from include.gateway.home_cluster import require_own_cluster
    from include.kafka.admin import TIMEOUT_S, create_topics
    from include.runtime.settings import Settings

    settings = Settings.from_environment()
    # If the gateway's store is on this machine, it shows whether this is the cluster of another stack.
    require_own_cluster(settings.kafka.connection, [settings.gateway.fallback_dir], TIMEOUT_S)
    created = create_topics(settings.kafka)
    log.info("topics created: %s", ", ".join(created) or "none, all exist as the contract says")
    return OK


@kafka.command()
@json_option
def audit(as_json: bool) -> int:
    """Compare brokers and topics with the contract.

    Prints each drift with the command that corrects it. Sends no alert.
    """
    from include.database.schema_check import checked_settings
    from include.integrity.watch.audit import audit_kafka

    return answer(audit_kafka(checked_settings("batch")), as_json)


@kafka.command()
@click.option("--principal", "given", multiple=True, metavar="PART=PRINCIPAL",
              help="The principal of gateway, stream, batch, integrity or topics; User:PART unless given.")  # fmt: skip
def rights(given: tuple[str, ...]) -> int:
    """Print the least rights of each part as commands.

    The commands are those of kafka-acls. Exit code 78: a setting is missing or wrong.
    """
    from typing import get_args

    from include.kafka.access import Part, acl_commands
    from include.runtime.settings import Settings

    settings = Settings.from_environment()
    principals: dict[Part, str] = {part: f"User:{part}" for part in get_args(Part)}
    for each in given:
        part, _, principal = each.partition("=")
        if part not in principals or not principal:
            raise ConfigurationError(f"--principal {each!r}: give one of {', '.join(principals)}, =, and its principal")
        principals[part] = principal
    print(*acl_commands(settings.kafka.connection, settings.pipeline, principals), sep="\n")
    return OK
