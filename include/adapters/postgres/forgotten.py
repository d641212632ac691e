"""Removes a member's data from the database in one transaction, and records which members were removed."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from psycopg2.extensions import cursor as Cursor

from include.adapters.postgres.generation_store import measurement
from include.adapters.postgres.sessions import connect
from include.contracts.definition import Definition
from include.errors import DayBusy
from include.settings import DatabaseSettings
from include.sql.named import query

# Tables with data of a member, in the order of locks: the name in the report, and the statement that removes the rows.
_STATEMENTS = {
    "pending_record": "forget_pending",
    "detail_covered": "forget_covered_of_member",
    "detail_live": "forget_live",
    "reject": "forget_rejects",
    "detail_correction": "forget_corrections",
    "member": "forget_member_row",
    "board_document": "forget_board_documents",
    "change_key": "forget_change_keys",
}


class ForgottenStore:
    """Works as the owner of the tables, the only role that may delete from all of them. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings, definition: Definition) -> None:
        self._database = database
        self._topics = {"member_topic": definition.table.name, "board_topic": definition.stream.name}

    def open(self, member_id: int, reason: str, made_by: str, board_ids: Sequence[int] = ()) -> list[int]:
        """Record the member and the given boards; returns all known boards of the member.

        A rebuild that begins later omits the member. Raises DayBusy while a rebuild that began before is running.
        """
        with connect(self._database, "pipeline_owner", "forget member") as connection, connection.cursor() as cursor:
            found = sorted({*board_ids, *self._boards(cursor, member_id)})
            cursor.execute(query("open_forgotten", cursor), {
                "member_id": member_id, "reason": reason, "made_by": made_by, "board_ids": found,
            })  # fmt: skip
            boards = [int(board_id) for board_id in cursor.fetchone()[0]]
        with connect(self._database, "pipeline_owner", "forget member") as connection, connection.cursor() as cursor:
            cursor.execute(query("select_builds_under_way", cursor))
            if build := cursor.fetchone():
                raise DayBusy("a rebuild is under way and may load the member's rows; run this again when it has ended",
                              generation=build[0], day=build[1])  # fmt: skip
        return boards

    def boards(self, member_id: int) -> list[int]:
        """Return the ids of the member's boards in the tables."""
        with connect(self._database, "pipeline_owner", "forget member") as connection, connection.cursor() as cursor:
            return self._boards(cursor, member_id)

    def remove(self, member_id: int, board_ids: Sequence[int], dry_run: bool) -> Mapping[str, int]:
        """Remove the member from every table; returns the number of rows by table. A dry run rolls back."""
        which = {"member_id": member_id, "board_ids": list(board_ids), **self._topics}
        removed: dict[str, int] = {}
        with connect(self._database, "pipeline_owner", "forget member") as connection, connection.cursor() as cursor:
            cursor.execute(query("forget_final", cursor), which)  # reads all generations; nobody waits for these rows
            by_generation = Counter(int(row[0]) for row in cursor.fetchall())
            removed["detail_final"] = by_generation.total()
            counted = [_counted(cursor, generation_id) for generation_id in sorted(by_generation)]
            cursor.execute(query("hold_tombstones", cursor))
            cursor.execute(query("lock_days_of_member", cursor), which | {"generation_ids": [*by_generation]})
            for table, name in _STATEMENTS.items():
                cursor.execute(query(name, cursor), which)
                removed[table] = cursor.rowcount
            for count in counted:
                for name in ("recount_generation", "recount_shown_day", "delete_certificate"):
                    cursor.execute(query(name, cursor), count)
            if dry_run:
                connection.rollback()
        return removed

    def close(self, member_id: int, removed: Mapping[str, int]) -> None:
        """Save the numbers of removed rows."""
        with connect(self._database, "pipeline_owner", "forget member") as connection, connection.cursor() as cursor:
            cursor.execute(
                query("save_forgotten", cursor), {"member_id": member_id, "removed": json.dumps(dict(removed))}
            )

    def _boards(self, cursor: Cursor, member_id: int) -> list[int]:
        cursor.execute(query("select_boards_of_member", cursor), {"member_id": member_id})
        return [int(board_id) for (board_id,) in cursor.fetchall()]


def _counted(cursor: Cursor, generation_id: int) -> Mapping[str, object]:
    """Return the count and the hash of a generation's remaining rows, for its balance."""
    cursor.execute(query("select_hashed_columns", cursor), {"generation_id": generation_id})
    cursor.execute(measurement(cursor, generation_id, cursor.fetchone()[0]))
    row_count, *_, content_hash = cursor.fetchone()
    return {"generation_id": generation_id, "row_count": row_count, "content_hash": content_hash}
