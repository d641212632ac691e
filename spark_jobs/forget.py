"""Removes a person everywhere: `python -m spark_jobs.forget --key KEY --reason WHY`, and again with --execute.

PIPELINE chooses the pipeline. The key is that of its table, such as a member's id or a customer's number.

Without --execute it counts and changes nothing. It removes the key and the records of the stream that are joined to it
from the rows of every day and generation, pending records, rejects, corrections, the archive and, for board_detail, the
system of record, and sends tombstones. It is safe to run again: data already removed count as 0. The key, the reason
and the counts stay in table forgotten_key, so that no rebuild shows the key again. docs/runbooks/forget.md lists the
data that stay in Kafka, and for how long.

Exit codes: 0 counted, or removed; 2 wrong arguments; 4 refused, the log has the reason; 75 a rebuild or an archive run
is in progress, or a server is down: run it again; 78 a setting is wrong.
"""

import argparse
import getpass
import socket
import sys
from collections.abc import Mapping

from include.archive.store import ArchiveStore
from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import OK
from include.contracts.fields import LONG_MAX, LONG_MIN
from include.database.forgotten import ForgottenStore
from include.database.generation_store import remove_tables
from include.database.schema_revision import checked_settings
from include.gateway.fallback.cluster_file import require_own_cluster
from include.gateway.forget import produce_tombstones
from include.runtime.command import as_command
from include.runtime.process_tree import die_with_parent
from include.runtime.settings import Settings
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.archive.rewriting import ArchiveForgetting
from spark_jobs.archive.tasks import StartContext
from spark_jobs.connectors.archive_files import ArchiveFolder
from spark_jobs.connectors.session import context_on_demand

REMAINS = """\
Still there, until it is removed as docs/runbooks/forget.md says:
  topic {table}: records before the tombstone; the topic keeps every record
  topics {stream} and {output}: records before the tombstones, until retention removes them
  fallback stores: events of the key that wait there; run this again when they are drained
  gateways: answers kept for an Idempotency-Key, until their window ends"""


def count(settings: Settings, key: int) -> Mapping[str, int]:
    """Return the numbers of rows, records and files that `forget` would remove, by place.

    Changes nothing, but locks the rows while it counts.
    """
    store, folder = ArchiveStore(settings.database), ArchiveFolder.of(settings.batch)
    tables = ForgottenStore(settings.database)
    archived = ArchiveForgetting(store, folder, settings.pipeline, key).find(tables.stream_keys(key))
    removed = tables.remove(key, archived.stream_keys, dry_run=True)
    return {**removed, "archived records": archived.records, "archive files": len(archived.files),
            "tombstones": len(archived.stream_keys) + 1}  # fmt: skip


def forget(start_context: StartContext, settings: Settings, key: int, reason: str, made_by: str) -> Mapping[str, int]:
    """Remove the key; returns the numbers of rows, records and files removed, by place.

    Raises ForeignCluster (only on the machine that has the gateway's store), DayBusy, ArchiveBusy, VersionsKept, and
    the errors of `archive_topics`.
    """
    # in another cluster the tombstones would have no effect, and would be counted as sent
    require_own_cluster(settings.kafka.connection, [settings.gateway.fallback_dir])
    store, folder = ArchiveStore(settings.database), ArchiveFolder.of(settings.batch)
    tables = ForgottenStore(settings.database)
    archive = ArchiveForgetting(store, folder, settings.pipeline, key)
    stream_keys = tables.open(key, reason, made_by)  # first, so that no rebuild loads the key's rows from now on
    if store.batches(settings.pipeline.table.name):
        # up to the end of the topics, else the next run would archive the key's remaining records
        archive_topics(start_context, settings, settings.pipeline, f"forget-{rfc3339(SystemClock().now())}")
    with store.hold():
        archived = archive.find(stream_keys)
        stream_keys = tables.open(key, reason, made_by, archived.stream_keys)
        archive.remove(archived)
    sent = produce_tombstones(settings.kafka.connection, settings.pipeline, key, stream_keys, SystemClock())
    removed = tables.remove(key, stream_keys, dry_run=False)
    remove_tables(settings.database)  # of builds that were given up before their table was attached
    done = {**removed, "archived records": archived.records, "archive files": len(archived.files), "tombstones": sent}
    tables.close(key, done)
    return done


def _key(text: str) -> int:
    """Parse a key of 64 bits."""
    key = int(text)
    if not LONG_MIN <= key <= LONG_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not from {LONG_MIN} to {LONG_MAX}")
    return key


@as_command
def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Removes one key of the pipeline's table everywhere.")
    parser.add_argument("--key", type=_key, required=True, help="key of the pipeline's table, such as a member's id")
    parser.add_argument("--reason", required=True, help="why; never deleted, so give no personal data")
    parser.add_argument("--execute", action=argparse.BooleanOptionalAction, default=False,
                        help="remove; without this option only count")  # fmt: skip
    parser.add_argument("--by", default=f"{getpass.getuser()}@{socket.gethostname()}", help="default: %(default)s")
    arguments = parser.parse_args()
    settings = checked_settings("batch")
    if arguments.execute:
        with context_on_demand(settings.spark, "forget", settings.batch.driver_memory) as context:
            found = forget(context, settings, arguments.key, arguments.reason, arguments.by)
    else:
        found = count(settings, arguments.key)
    print("removed" if arguments.execute else "would be removed with --execute")
    for place, number in found.items():
        print(f"  {place:<26}{number:>10,}")
    pipeline = settings.pipeline
    print(REMAINS.format(table=pipeline.table.name, stream=pipeline.stream.name, output=pipeline.output.name))
    return OK


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
