"""What the demo looks up in PostgreSQL, with the rights of those who would look: analyst, on-call."""

from collections.abc import Sequence
from typing import Any

from include.adapters.postgres import connect
from include.contracts.day import Day
from include.settings import Role, Settings
from include.sql.named import query


class Warehouse:
    """Short queries, each in a connection of its own."""

    def __init__(self, settings: Settings) -> None:
        self._database = settings.database

    def board(self, board_id: int) -> dict[str, Any] | None:
        """The board as an analyst sees it."""
        rows = self._rows("look_board", {"board_id": board_id})
        return rows[0] if rows else None

    def count(self, first_id: int, end_id: int) -> int:
        """Boards in the view with `first_id <= board_id < end_id`."""
        return int(self._rows("look_count", {"first_id": first_id, "end_id": end_id})[0]["count"])

    def sample(self, day: Day, limit: int) -> list[dict[str, Any]]:
        """Some of the day's rows as an analyst sees them."""
        return self._rows("look_sample", {"day": day.date, "limit": limit})

    def day_status(self, day: Day) -> dict[str, Any]:
        """The day's line in `day_status`; empty when it has none."""
        rows = self._rows("look_day_status", {"day": day.date})
        return rows[0] if rows else {}

    def corrections(self, day: Day) -> dict[str, int]:
        """What the published rebuild of the day corrected, counted by class."""
        return {row["class"]: row["count"] for row in self._rows("look_corrections", {"day": day.date}, "batch")}

    def changed_authors(self, day: Day, board_ids: Sequence[int]) -> list[dict[str, Any]]:
        """Corrections that gave these boards another version of their author."""
        return self._rows("look_changed_authors", {"day": day.date, "board_ids": list(board_ids)}, "batch")

    def rejects(self, places: Sequence[tuple[str, int, int]]) -> list[dict[str, Any]]:
        """The rejects at these (topic, partition, offset)."""
        topics, partitions, offsets = zip(*places, strict=True)
        parameters = {"topics": list(topics), "partitions": list(partitions), "offsets": list(offsets)}
        return self._rows("look_rejects", parameters, "batch")

    def pending(self, board_id: int) -> bool:
        """Does the board wait for its member?"""
        return bool(self._rows("look_pending", {"board_id": board_id}, "batch"))

    def pending_count(self, first_id: int, end_id: int) -> int:
        """Boards with `first_id <= board_id < end_id` that wait for their member."""
        return int(self._rows("look_pending_count", {"first_id": first_id, "end_id": end_id}, "batch")[0]["count"])

    def reject_count(self) -> int:
        """All rejects so far."""
        return int(self._rows("look_reject_count", {}, "batch")[0]["count"])

    def served_offsets(self) -> int:
        """Records of the output topic that the speed layer has served so far, as the ledger's offsets add up."""
        return int(self._rows("look_served_offsets", {}, "batch")[0]["count"])

    def _rows(self, name: str, parameters: dict[str, Any], role: Role = "analyst") -> list[dict[str, Any]]:
        with connect(self._database, role, "demo") as connection, connection.cursor() as cursor:
            cursor.execute(query(name), parameters)
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
