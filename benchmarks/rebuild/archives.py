"""Archives the reference volume into a folder and into an object store on this machine, in turns, and rebuilds it.

The store's own CPU time is on the same cores: a store of its own machines leaves that to the jobs.
"""

import shutil

from benchmarks.rebuild.rebuilds import fill, rebuild_ours, run_timed
from benchmarks.report import Report
from benchmarks.stream.parts import Bench
from include.contracts.site import BOARD, MEMBER
from tests.support.object_store import ObjectStore, object_store
from tests.support.pipeline import rows

_ARCHIVE = ["spark_jobs/archive_day.py", "--run-id", "benchmark"]
_SIZES = "SELECT count(*), sum(byte_count)::bigint FROM archive_file WHERE retired_at IS NULL"


def archive(bench: Bench, rounds: int) -> Report:
    """Measure the archive of all topics, `--verify` of it, and a rebuild of the day from it."""
    report = Report("archive")
    fill(bench, bench.boards)
    with object_store(bench.folder / "store") as store:
        bucket = store.new_bucket()
        for number in range(rounds):
            kept = {"folder": {"ARCHIVE_DIR": str(bench.folder / "archive")},
                    "store": store.variables(f"s3://{bucket}/{number}")}  # fmt: skip
            for name, variables in list(kept.items())[:: 1 if number % 2 else -1]:
                _measure(bench, report, f"{name} {number}", variables)
            shutil.rmtree(kept["folder"]["ARCHIVE_DIR"])
            _empty(store, bucket, f"{number}/")
    return report


def _measure(bench: Bench, report: Report, name: str, variables: dict[str, str]) -> None:
    bench.empty_database()
    written = run_timed(_ARCHIVE, bench, variables)
    checked = run_timed([*_ARCHIVE, "--verify"], bench, variables)
    ((files, byte_count),) = rows(bench.settings, _SIZES)
    rebuilt = rebuild_ours(bench, report, f"rebuilt from the {name}", bench.boards, source="archive", **variables)
    report.add({
        "run": name, "archived s": round(written.taken_s, 1), "verified s": round(checked.taken_s, 1),
        "rebuilt s": round(rebuilt.taken_s, 1), "files": files, "MB": round(byte_count / 1e6),
        "MiB": round(written.peak.together),
        f"records/s of {MEMBER.name}, {BOARD.name}": round((bench.members + bench.boards) / written.taken_s),
    })  # fmt: skip


def _empty(store: ObjectStore, bucket: str, prefix: str) -> None:
    for page in store.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        keys = [{"Key": each["Key"]} for each in page.get("Contents", ())]
        if keys:
            store.client().delete_objects(Bucket=bucket, Delete={"Objects": keys})
