"""Measures the part of a night outside Spark, after 40 published days and after 400."""

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing

from benchmarks.publish.parts import DAY, Bench
from benchmarks.report import Goal, Report, median
from include.adapters.postgres.sessions import connect
from include.contracts.site import BOARD_DETAIL_PIPELINE as PIPELINE
from include.integrity import publication
from include.integrity.comparison import verify
from include.integrity.day_checks import check_days
from include.integrity.days import dirty_days
from include.integrity.pruning import collect_orphans
from include.sql.named import query
from tests.support.certifying import certify_alone
from tests.support.many_days import age, publish_days
from tests.support.serving import build, opened_store, row, serve

_DAYS = (40, 400)
_FACTOR = 1.5
_BOARDS = 1_000_000_000  # of the night's day, beyond those of all others
_LATE = 1_000_000_000  # offset of a version of a member that all days lack


def nights(bench: Bench, rounds: int) -> Report:
    """Medians. Each day has a 500th of the rows; a build that it showed before, and a deletion that its cut covers."""
    report = Report("nights")
    taken: dict[int, dict[str, list[float]]] = {days: defaultdict(list) for days in _DAYS}
    rows, published = min(999, max(10, bench.rows // 500)), 0
    for days in _DAYS:
        publish_days(bench.settings, str(DAY), days, published + 1, rows)
        age(bench.settings, DAY.before(days), DAY.before(published))
        published = days
        for number in range(rounds + 1):
            steps = _prepared(bench, f"{days} days, {number}", rows, offset=(days * 100 + number) * 1_000)
            for name, step in steps.items():
                began = time.monotonic()
                step()
                if number:  # the first night is not like the others: the day was not published before
                    taken[days][name].append((time.monotonic() - began) * 1000)
    few, many = ({name: median(figures) for name, figures in taken[days].items()} for days in _DAYS)
    for name in few:
        report.add({"run": name} | {f"{days} days ms": round(found[name], 1)
                                    for days, found in zip(_DAYS, (few, many), strict=True)})  # fmt: skip
    for name in list(few)[:-1]:
        report.judge(Goal(f"{name}, {_DAYS[-1]} days / {_DAYS[0]}", many[name] / few[name], at_most=_FACTOR))
    return report


def _prepared(bench: Bench, run_id: str, rows: int, offset: int) -> dict[str, Callable[[], object]]:
    settings = bench.settings
    boards = [row(_BOARDS + n, offset + n, title=run_id) for n in range(rows)]

    with closing(opened_store(settings)) as store:
        serve(store, boards[: rows // 2])
    build(settings, boards, cut=offset + rows, run_id=run_id, day=DAY, members=_LATE + 1)

    def a_late_version() -> None:
        with connect(settings.database, "batch", "bench") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO late_version VALUES ('bench', 0, %s, 7, '1970-01-01') ON CONFLICT DO NOTHING",
                           (_LATE,))  # fmt: skip
            cursor.execute(query("request_checks", PIPELINE), {"partitions": [0], "last_offsets": [_LATE],
                                                     "oldest": ["1970-01-01T00:00:00Z"]})  # fmt: skip
        check_days(settings)

    return {
        "verify": lambda: verify(settings, DAY, run_id),
        "publish": lambda: publication.publish(settings, DAY, run_id),
        "days to rebuild": lambda: dirty_days(settings),
        "certify": lambda: certify_alone(settings, DAY),
        "collect": lambda: collect_orphans(settings),
        "a late version that may concern all days": a_late_version,
    }
