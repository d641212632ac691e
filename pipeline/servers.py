"""`pipeline database`, `pipeline kafka`, `pipeline archive`: schema, topics and bucket, and the rights on them."""

import logging

import click

from include.contracts.errors import LOOK, OK, ConfigurationError
from pipeline.group import Group, answer, json_option

log = logging.getLogger(__name__)


@click.group(cls=Group)
def database() -> None:
    """Migrate the database; print the rights of its roles."""


@database.command()
def migrate() -> int:
    """Bring roles and schema to this version.

    Run it before anything of a new version connects; running it again changes nothing. Exit codes: 75 the database is
    down, or a session blocks the migration; 78 a setting is wrong, or a role is missing.
    """
    from include.database.migrate import migrate
    from include.runtime.settings import Settings

    settings = Settings.from_environment()
    log.info("database %s is at revision %s", settings.database.name, migrate(settings))
    return OK


@database.command("rights")
def database_rights() -> int:
    """Print the least rights of each role as GRANT statements."""
    from include.database.sessions import grants
    from include.runtime.settings import Settings

    print(*grants(Settings.from_environment().pipeline), sep="\n")
    return OK


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


@kafka.command("rights")
@click.option("--principal", "given", multiple=True, metavar="PART=PRINCIPAL",
              help="The principal of gateway, stream, batch, integrity or topics; User:PART unless given.")  # fmt: skip
def kafka_rights(given: tuple[str, ...]) -> int:
    """Print the least rights of each part as commands.

    The commands are those of kafka-acls. Exit code 78: a setting is missing or wrong.
    """
    from typing import get_args

    from include.kafka.access import Part, acl_commands
    from include.runtime.settings import EXACTLY_ONCE, Settings

    settings = Settings.from_environment()
    principals: dict[Part, str] = {part: f"User:{part}" for part in get_args(Part)}
    for each in given:
        part, _, principal = each.partition("=")
        if part not in principals or not principal:
            raise ConfigurationError(f"--principal {each!r}: give one of {', '.join(principals)}, =, and its principal")
        principals[part] = principal
    is_exactly_once = settings.stream.delivery == EXACTLY_ONCE
    print(*acl_commands(settings.kafka.connection, settings.pipeline, principals, is_exactly_once), sep="\n")
    return OK


@click.group(cls=Group, lazy={"day": "spark_jobs.archive_day:main"})
def archive() -> None:
    """Archive the raw topics; check the bucket of the archive."""


@archive.command()
@click.option("--set-lifecycle", is_flag=True, help="First set a rule that removes noncurrent versions after 30 days, "
              "and parts of uploads after 2.")  # fmt: skip
def bucket(set_lifecycle: bool) -> int:
    """Check the bucket of an archive on an object store.

    Prints whether the store honours conditional writes, the bucket's versioning, and lifecycle rules that would remove
    files of the archive. It needs the rights of an administrator, besides those of `pipeline archive rights`.

    Exit codes: 0 all is well; 3 a rule would remove files; 75 the store is down; 78 a setting is wrong, or a right is
    missing.
    """
    from include.archive.bucket import bucket_of
    from include.runtime.settings import Settings

    found = bucket_of(Settings.from_environment().batch)
    if set_lifecycle:
        found.set_lifecycle()
    state = found.state()
    print(f"conditional writes: {state.conditional_writes}\nversioning: {state.versioning}")
    print(*(state.problems or ["lifecycle: no rule removes files of the archive"]), sep="\n")
    return LOOK if state.problems else OK


@archive.command("rights")
@click.option("--principal", default="", metavar="ARN", help="Print the policy of the bucket, for this principal.")
def archive_rights(principal: str) -> int:
    """Print the least rights of the batch layer as a policy in JSON.

    Without --principal it is a policy to attach to a user or role.
    """
    import json

    from include.archive.bucket import bucket_policy
    from include.runtime.settings import Settings

    print(json.dumps(bucket_policy(Settings.from_environment().batch.archive_dir, principal), indent=2))
    return OK
