"""The join query: boards with their authors, into the topic board-detail; at least once."""

import logging
import threading
from collections.abc import Sequence

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.adapters.speed_store import PendingBoard, Reject, SpeedStore
from include.contracts import headers as h
from include.contracts.definition import Definition
from include.patience import patiently
from spark_jobs.connectors.kafka import write_records
from spark_jobs.connectors.postgres import plain_values
from spark_jobs.schemas import RECORD
from spark_jobs.speed.members import MemberTable
from spark_jobs.transforms.decode import REJECT_COLUMNS, decode, valid
from spark_jobs.transforms.details import day_of, to_records, to_rows
from spark_jobs.transforms.join_rule import board_details

log = logging.getLogger(__name__)


class BoardJoin:
    """Joins batches of boards with the member table, and pending boards once their member has come."""

    def __init__(
        self,
        session: SparkSession,
        members: MemberTable,
        store: SpeedStore,
        definition: Definition,
        bootstrap_servers: str,
        timezone: str,
    ) -> None:
        self._session = session
        self._members = members
        self._store = store
        self._definition = definition
        self._bootstrap_servers = bootstrap_servers
        self._timezone = timezone
        self._lock = threading.Lock()
        self._changed: list[int] | None = None  # members that came since pending boards were looked at; None: all
        self._table_key = definition.table.field(definition.table.key_field).column

    def process(self, records: DataFrame, batch_id: int) -> None:
        """One micro-batch. Boards are sent before anything is recorded: a crash here sends again, never loses."""
        with self._lock:
            decoded = decode(records, self._definition.stream).persist(StorageLevel.MEMORY_AND_DISK)
            try:
                # the boards' offsets are fixed by now; only then the members are read to their end
                self._refresh()
                self._emit(decoded, batch_id)
            finally:
                decoded.unpersist()

    def resolve_pending(self) -> int:
        """Send the pending boards whose member has come, also when no board arrives. Returns how many were sent."""
        with self._lock:
            self._refresh()
            if self._changed == []:
                return 0
            waiting = self._store.pending_of(self._changed)
            if not waiting:
                self._changed = []
                return 0
            decoded = decode(self._records(waiting), self._definition.stream)
            details = self._details(valid(decoded)).persist()
            try:
                known = details.where("author_known")
                sent = [
                    (row["topic"], row["partition"], row["offset"])
                    for row in known.select("topic", "partition", "offset").collect()
                ]
                if sent:
                    self._send(known)
                    self._store.delete_pending(sent)  # after the acks: a crash before sends again, never loses
                    log.info("sent %d boards that had waited for their member", len(sent))
            finally:
                details.unpersist()
            self._changed = []
            return len(sent)

    def warm_up(self, nothing: DataFrame) -> None:
        """Run the path once over records that are none of ours, sending nothing, so that its code is compiled."""
        details = self._details(valid(decode(nothing, self._definition.stream)))
        to_records(to_rows(details, self._definition, self._timezone), self._definition).collect()

    def _refresh(self) -> None:
        changed = patiently(self._members.refresh)
        if changed and self._changed is not None:
            self._changed += changed
        for rejected in self._members.take_rejects():
            self._keep_rejects([Reject._make(plain_values(row)) for row in rejected.collect()])

    def _emit(self, decoded: DataFrame, batch_id: int) -> None:
        boards = valid(decoded)
        details = self._details(boards.where(~F.col("deleted"))).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            tombstones = boards.where("deleted").withColumn("author_known", F.lit(True))
            self._send(details.where("author_known").unionByName(tombstones, allowMissingColumns=True))
            self._save_pending(details.where(~F.col("author_known")), batch_id)
            self._settle_the_rest(decoded.where(F.col("reason").isNotNull() | F.col("deleted")))
        finally:
            details.unpersist()

    def _settle_the_rest(self, rest: DataFrame) -> None:
        """Rejects and tombstones, which are few, in one look."""
        rows = rest.select(self._board_key, *REJECT_COLUMNS).collect()
        gone = [(row[self._board_key], row["offset"]) for row in rows if row["reason"] is None]
        self._store.delete_superseded_pending(gone)
        self._keep_rejects([Reject._make(plain_values(row[1:])) for row in rows if row["reason"] is not None])

    @property
    def _board_key(self) -> str:
        return self._definition.stream.field(self._definition.stream.key_field).column

    def _details(self, boards: DataFrame) -> DataFrame:
        join_column = self._definition.stream.field(self._definition.join_field).column
        members = self._members.versions_of(boards.select(F.col(join_column).alias(self._table_key)))
        return board_details(boards, members, self._definition)

    def _send(self, details: DataFrame) -> None:
        rows = to_rows(details, self._definition, self._timezone)
        write_records(to_records(rows, self._definition), self._bootstrap_servers, self._definition.output.name)

    def _save_pending(self, pending: DataFrame, batch_id: int) -> None:
        join_column = self._definition.stream.field(self._definition.join_field).column
        day_column = self._definition.stream.field(self._definition.day_field).column
        rows = pending.select(
            "topic", "partition", "offset", self._board_key, join_column,
            day_of(F.col(day_column), self._timezone).alias("day"),
            "key", "value", "kafka_timestamp", "event_id", "accepted_at",
        ).collect()  # fmt: skip
        count = self._store.save_pending(PendingBoard._make(plain_values(row)) for row in rows)
        if count:
            log.info("batch %d: %d boards wait for their member", batch_id, count)

    def _keep_rejects(self, rejected: list[Reject]) -> None:
        if rejected:
            self._store.save_rejects(rejected, rejected_by="join")
            log.warning("%d records rejected; the reasons are in table reject", len(rejected))

    def _records(self, waiting: Sequence[tuple[object, ...]]) -> DataFrame:
        rows = []
        for topic, partition, offset, key, value, timestamp, event_id, accepted_at in waiting:
            headers = [
                (name, str(text).encode())
                for name, text in ((h.EVENT_ID, event_id), (h.ACCEPTED_AT, accepted_at))
                if text is not None
            ]
            rows.append((key, value, topic, partition, offset, timestamp, headers))
        return self._session.createDataFrame(rows, RECORD)
