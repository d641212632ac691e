"""`pipeline archive`: the files of the raw topics."""

import click

from include.contracts.errors import LOOK, OK
from pipeline.group import Group


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


@archive.command()
@click.option("--principal", default="", metavar="ARN", help="Print the policy of the bucket, for this principal.")
def rights(principal: str) -> int:
    """Print the least rights of the batch layer as a policy in JSON.

    Without --principal it is a policy to attach to a user or role.
    """
    import json

    from include.archive.bucket import bucket_policy
    from include.runtime.settings import Settings

    print(json.dumps(bucket_policy(Settings.from_environment().batch.archive_dir, principal), indent=2))
    return OK
