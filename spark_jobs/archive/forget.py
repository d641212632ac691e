"""Removes one member from the archive: rewrites each file that holds the member's records without them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from include.archive.store import ArchivedFile, ArchiveStore
from include.contracts.definition import Definition
from spark_jobs.archive.files import ArchiveDamaged, ArchiveFolder, Origin


@dataclass
class Forgotten:
    """Numbers of a member's records and of the files that hold them, and the ids of the member's boards."""

    records: int = 0
    files: int = 0
    board_ids: set[int] = field(default_factory=set)


class ArchiveForgetting:
    """Reads every file that may hold the member's records, one row group at a time."""

    def __init__(self, store: ArchiveStore, folder: ArchiveFolder, definition: Definition, member_id: int) -> None:
        self._store = store
        self._folder = folder
        self._definition = definition
        self._member_id = member_id

    def find(self) -> Forgotten:
        """Count the member's records. Changes nothing."""
        found = Forgotten()
        for listed in self._store.all_files():
            if listed.kind == "places":
                continue
            origin, records = self._origin(listed), 0
            for table in self._groups(listed):
                of_member = table.filter(self._is_of_member(table, origin))
                records += of_member.num_rows
                if origin.topic == self._definition.stream.name and "id" in of_member.column_names:
                    found.board_ids |= {key for key in of_member["id"].to_pylist() if key is not None}
            found.records += records
            found.files += records > 0
        return found

    def remove(self) -> Forgotten:
        """Rewrite the files, replace the old ones in the catalogue, and remove the old ones from the folder.

        The catalogue changes in one transaction. The caller holds the archive's lock, and makes sure that no rebuild
        is running: it could be reading the old files.
        """
        removed = Forgotten()
        old: list[ArchivedFile] = []
        new: list[ArchivedFile] = []
        for listed in self._store.all_files():
            written = self._without(listed)
            kept = written.record_count if written else 0
            if kept == listed.record_count:
                continue
            old.append(listed)
            new += [written] if written else []
            removed.records += listed.record_count - kept
            removed.files += 1
        if old:
            self._store.replace(old, new, is_smaller=True)
            for listed in old:
                self._folder.remove(listed.path)
            self._store.forget([listed.path for listed in old])
        for path in self._store.replaced(0):  # left for readers by a merge, or by a run that died at this point
            self._folder.remove(path)
            self._store.forget([path])
        return removed

    def _without(self, listed: ArchivedFile) -> ArchivedFile | None:
        """Return the file without the member's records: the same file if it has none, None if it has no others."""
        if listed.kind == "places":  # coordinates of records, without their content
            return listed
        origin = self._origin(listed)
        kept = [table.filter(pc.invert(self._is_of_member(table, origin))) for table in self._groups(listed)]
        count = sum(table.num_rows for table in kept)
        if count == listed.record_count:
            return listed
        if not count:
            return None
        key = "id" if listed.kind == "records" else kept[0].column_names[0] if listed.kind == "versions" else None
        schema = kept[0].schema.remove_metadata()
        writer = self._folder.writer(listed.path.rpartition("/")[0], schema, origin, key)
        for table in kept:
            if table.num_rows:
                writer.write(table)
        return writer.close(listed.kind, listed.day)._replace(batch_id=listed.batch_id)

    def _groups(self, listed: ArchivedFile) -> Iterator[pa.Table]:
        """Yield the row groups of a file."""
        with self._folder.open(listed.path) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)

    def _origin(self, listed: ArchivedFile) -> Origin:
        origin = self._folder.origin(listed.path)
        if origin is None:
            raise ArchiveDamaged(file=listed.path, reason="its footer does not say what it was made from")
        return origin

    def _is_of_member(self, table: pa.Table, origin: Origin) -> pa.ChunkedArray:
        """True for each version and record of the member, and for each board that names the member as its author.

        False for tombstones: they hold no data, and they record that the member or the board is deleted.
        """
        if "value" not in table.column_names:
            is_key = pc.equal(table[table.column_names[0]], self._member_id).fill_null(False)
            return pc.and_(is_key, pc.invert(table["deleted"]))
        if origin.topic == self._definition.table.name:
            is_key = pc.equal(table["key"], str(self._member_id).encode()).fill_null(False)
            is_key = pc.and_(is_key, pc.is_valid(table["value"]))
            return pc.or_(is_key, self._names(table["value"], self._definition.table.key_field))
        return self._names(table["value"], self._definition.join_field)

    def _names(self, values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        # broken records may not parse as JSON, so all values are searched as bytes
        pattern = rf'"{name}"\s*:\s*"?{self._member_id}([^0-9]|$)'
        return pc.match_substring_regex(values, pattern).fill_null(False)
