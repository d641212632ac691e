"""Removes the data of a key of the table from the database in one transaction, and records the keys that were removed.

The site's own tables, which only the database of board_detail has, are a part of their own.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping

from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import DayBusy
from include.contracts.fields import names_key
from include.contracts.pipelines import SITE_PIPELINE
from include.database.generation_store import measurement
from include.database.named import query
from include.database.sessions import connect
from include.runtime.settings import DatabaseSettings

# Tables with data of a key, in the order of locks: the name in the report, and the statement that removes the rows.
_STATEMENTS = {
    "pending_record": "forget_pending",
    "detail_covered": "forget_covered_of_key",
    "detail_live": "forget_live",
    "reject": "forget_rejects",
    "detail_correction": "forget_corrections",
}
_STATEMENTS_OF_SITE = {
    "member": "forget_member",
    "board_document": "forget_board_documents",
    "change_key": "forget_change_keys",
}


class ForgottenStore:
    """Works as the owner of the tables, the only role that may delete from all of them. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database
        has_site = database.pipeline is SITE_PIPELINE
        self._statements = _STATEMENTS | (_STATEMENTS_OF_SITE if has_site else {})
        self._selects = ("select_keys_of_joined", *(["select_board_documents"] if has_site else []))

    def open(self, key: int, reason: str, made_by: str, stream_keys: Collection[int] = ()) -> list[int]:
        """Record the key and the given keys of the stream; returns all known ones that are joined to it.

        A rebuild that begins later omits their rows. Raises DayBusy while a rebuild that began before is running.
        """
        with connect(self._database, "pipeline_owner", "forget") as connection, connection.cursor() as cursor:
            found = sorted({*stream_keys, *self._stream_keys(cursor, key)})
            cursor.execute(query("open_forgotten", cursor), {
                "key": key, "reason": reason, "made_by": made_by, "stream_keys": found,
            })  # fmt: skip
            known = [int(stream_key) for stream_key in cursor.fetchone()[0]]
        with connect(self._database, "pipeline_owner", "forget") as connection, connection.cursor() as cursor:
            cursor.execute(query("select_builds_under_way", cursor))
            if build := cursor.fetchone():
                raise DayBusy("a rebuild is running and may load rows of the key; run this again when it has ended",
                              generation=build[0], day=build[1])  # fmt: skip
        return known

    def stream_keys(self, key: int) -> list[int]:
        """Return the keys of the stream that are joined to the key in the tables."""
        with connect(self._database, "pipeline_owner", "forget") as connection, connection.cursor() as cursor:
            return self._stream_keys(cursor, key)

    def remove(self, key: int, stream_keys: Collection[int], dry_run: bool) -> Mapping[str, int]:
        """Remove the key's rows from every table; returns their number by table. A dry run rolls back."""
        pipeline = self._database.pipeline
        which = {
            "key": key, "stream_keys": list(stream_keys), "table_pattern": names_key(key, pipeline.table.key_field),
            "join_pattern": names_key(key, *pipeline.join_names),
        }  # fmt: skip
        removed: dict[str, int] = {}
        with connect(self._database, "pipeline_owner", "forget") as connection, connection.cursor() as cursor:
            cursor.execute(query("forget_final", cursor), which)  # reads all generations; nobody waits for these rows
            by_generation = Counter(int(row[0]) for row in cursor.fetchall())
            removed["detail_final"] = by_generation.total()
            counted = [_counted(cursor, generation_id) for generation_id in sorted(by_generation)]
            cursor.execute(query("hold_pointers", cursor))
            cursor.execute(query("lock_days_of_key", cursor), which | {"generation_ids": [*by_generation]})
            for table, name in self._statements.items():
                cursor.execute(query(name, cursor), which)
                removed[table] = cursor.rowcount
            for count in counted:
                for name in ("recount_generation", "recount_shown_day", "delete_certificate"):
                    cursor.execute(query(name, cursor), count)
            if dry_run:
                connection.rollback()
        return removed

    def close(self, key: int, removed: Mapping[str, int]) -> None:
        """Save the numbers of removed rows."""
        with connect(self._database, "pipeline_owner", "forget") as connection, connection.cursor() as cursor:
            cursor.execute(query("save_forgotten", cursor), {"key": key, "removed": json.dumps(dict(removed))})

    def _stream_keys(self, cursor: Cursor, key: int) -> list[int]:
        found: set[int] = set()
        for name in self._selects:
            cursor.execute(query(name, cursor), {"key": key})
            found |= {int(stream_key) for (stream_key,) in cursor.fetchall()}
        return sorted(found)


def _counted(cursor: Cursor, generation_id: int) -> Mapping[str, object]:
    """Return the count and the hash of a generation's remaining rows, for its balance."""
    cursor.execute(query("select_hashed_columns", cursor), {"generation_id": generation_id})
    cursor.execute(measurement(cursor, generation_id, cursor.fetchone()[0]))
    row_count, *_, content_hash = cursor.fetchone()
    return {"generation_id": generation_id, "row_count": row_count, "content_hash": content_hash}
