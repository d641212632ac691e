"""The demo's queries in PostgreSQL, with the roles of an analyst and of on-call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from include.contracts.day import Day
from include.database.named import fill, statements
from include.database.sessions import connect
from include.runtime.settings import Role, Settings

_QUERIES = Path(__file__).parent / "queries.sql"


class Warehouse:
    """Runs short queries, each in its own connection."""

    def __init__(self, settings: Settings) -> None:
        self._database = settings.database

    def row(self, key: int) -> dict[str, Any] | None:
        """Return the record as an analyst sees it; None if it is not in the view."""
        rows = self._rows("row", {"key": key})
        return rows[0] if rows else None

    def count(self, first: int, end: int, finality: str | None = None) -> int:
        """Count the rows in the view with `first <= key < end`, those of one finality if it is given."""
        return int(self._rows("count", {"first": first, "end": end, "finality": finality})[0]["count"])

    def sample(self, day: Day, limit: int) -> list[dict[str, Any]]:
        """Return some of the day's rows as an analyst sees them."""
        return self._rows("sample", {"day": day.date, "limit": limit})

    def day_status(self, day: Day) -> dict[str, Any]:
        """Return the day's row of `day_status`; empty if there is none."""
        rows = self._rows("day_status", {"day": day.date})
        return rows[0] if rows else {}

    def corrections(self, day: Day) -> dict[str, int]:
        """Count the corrections of the day's published rebuild, by class."""
        return {row["class"]: row["count"] for row in self._rows("corrections", {"day": day.date}, "batch")}

    def changed_authors(self, day: Day, board_ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the corrections that gave these boards another version of their author."""
        return self._rows("changed_authors", {"day": day.date, "board_ids": list(board_ids)}, "batch")

    def rejects(self, places: Sequence[tuple[str, int, int]]) -> list[dict[str, Any]]:
        """Return the rejects at these coordinates: topic, partition, offset."""
        topics, partitions, offsets = zip(*places, strict=True)
        parameters = {"topics": list(topics), "partitions": list(partitions), "offsets": list(offsets)}
        return self._rows("rejects", parameters, "batch")

    def pending(self, key: int) -> bool:
        """True if the record is pending."""
        return bool(self._rows("pending", {"key": key}, "batch"))

    def pending_count(self, first: int, end: int) -> int:
        """Count the pending records with `first <= key < end`."""
        return int(self._rows("pending_count", {"first": first, "end": end}, "batch")[0]["count"])

    def reject_count(self) -> int:
        """Count all rejects."""
        return int(self._rows("reject_count", {}, "batch")[0]["count"])

    def served_offsets(self) -> int:
        """Count the records of the output topic that are served, as the sum of the ledger's offsets."""
        return int(self._rows("served_offsets", {}, "batch")[0]["count"])

    def _rows(self, name: str, parameters: dict[str, Any], role: Role = "analyst") -> list[dict[str, Any]]:
        with connect(self._database, role, "demo") as connection, connection.cursor() as cursor:
            cursor.execute(fill(statements(_QUERIES)[name], self._database.pipeline), parameters)
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
