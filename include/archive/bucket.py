"""Checks the bucket of an archive on an object store: `python -m include.archive.bucket [--set-lifecycle]`.

It prints whether the store honours conditional writes, the bucket's versioning, and lifecycle rules that would remove
files of the archive. With --set-lifecycle it first sets a rule that removes noncurrent versions after 30 days, and
parts of uploads after 2. It needs the rights of an administrator, besides those of
`python -m include.integrity.rights archive`.
Exit codes: 0 all is well; 3 a rule would remove files; 75 the store is down; 78 a setting is wrong, or a right is
missing.
"""

import argparse
import sys

from include.archive.bucket_check import ArchiveBucket
from include.contracts.errors import LOOK, OK, ConfigurationError
from include.runtime.command import as_command
from include.runtime.s3_connection import S3_SCHEME
from include.runtime.settings import Settings


@as_command
def main() -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description="Checks the bucket of the archive.")
    parser.add_argument("--set-lifecycle", action="store_true", help="first set the rule for noncurrent versions")
    arguments = parser.parse_args()
    batch = Settings.from_environment().batch
    if not batch.archive_dir.startswith(S3_SCHEME):
        raise ConfigurationError(f"ARCHIVE_DIR={batch.archive_dir}: not in a bucket; set it to s3://bucket/prefix")
    bucket = ArchiveBucket(batch.archive_dir, batch.archive_s3)
    if arguments.set_lifecycle:
        bucket.set_lifecycle()
    state = bucket.state()
    print(f"conditional writes: {state.conditional_writes}\nversioning: {state.versioning}")
    print(*(state.problems or ["lifecycle: no rule removes files of the archive"]), sep="\n")
    return LOOK if state.problems else OK


if __name__ == "__main__":
    sys.exit(main())
