"""Removes a person everywhere: `pipeline days forget`, and a job of the DAG `forget_member`.

spark-submit runs this file, so each job has one of its own.
"""

import click

from include.contracts.errors import OK
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.runtime.command import Job, author

REMAINS = """\
Still there, until it is removed as docs/runbooks/forget.md says:
  topic {table}: records before the tombstone; the topic keeps every record
  topics {stream} and {output}: records before the tombstones, until retention removes them
  fallback stores: events of the key that wait there; run this again when they are drained
  gateways: answers kept for an Idempotency-Key, until their window ends"""


@click.command(cls=Job)
@click.option("--key", type=click.IntRange(LONG_MIN, LONG_MAX), required=True, metavar="KEY",
              help="Key of the pipeline's table, such as a member's id.")  # fmt: skip
@click.option("--reason", required=True, metavar="WHY", help="Why; never deleted, so give no personal data.")
@click.option("--execute/--no-execute", default=False, help="Remove; without this option only count.")
@click.option("--by", "made_by", metavar="WHO", default=author, help="The author; default: the user and the machine.")
def main(key: int, reason: str, execute: bool, made_by: str) -> int:
    """Remove a person everywhere.

    The key is that of the pipeline's table, such as a member's id or a customer's number. Without --execute it counts
    and changes nothing. It removes the key and the records of the stream that are joined to it from the rows of every
    day and generation, pending records, rejects, corrections, the archive and, for board_detail, the system of record,
    and sends tombstones. It is safe to run again: data already removed count as 0. The key, the reason and the counts
    stay in table forgotten_key, so that no rebuild shows the key again. docs/runbooks/forget.md lists the data that
    stay in Kafka, and for how long.

    Exit codes: 0 counted, or removed; 2 wrong arguments; 4 refused, the log has the reason; 75 a rebuild or an archive
    run is in progress, or a server is down: run it again; 78 a setting is wrong.
    """
    from include.database.schema_check import checked_settings
    from spark_jobs.archive.rewriting import count, forget
    from spark_jobs.connectors.session import context_on_demand

    settings = checked_settings("batch")
    if execute:
        with context_on_demand(settings.spark, "forget", settings.batch.driver_memory) as context:
            found = forget(context, settings, key, reason, made_by)
    else:
        found = count(settings, key)
    print("removed" if execute else "would be removed with --execute")
    for place, number in found.items():
        print(f"  {place:<26}{number:>10,}")
    pipeline = settings.pipeline
    print(REMAINS.format(table=pipeline.table.name, stream=pipeline.stream.name, output=pipeline.output.name))
    return OK


if __name__ == "__main__":
    main()
