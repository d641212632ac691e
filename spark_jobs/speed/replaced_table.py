"""The members' topic, deleted and made again: cuts of generations name the one that was there when they were built."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from include.adapters.kafka_offsets import OffsetReader
from include.adapters.postgres import connect
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import TopicReplaced
from include.settings import DatabaseSettings
from include.sql.named import query

_REMEDY = "python -m spark_jobs.repair --consumer join"


@dataclass(frozen=True)
class ReplacedTable:
    """The topic that is there, and the days with generations that were built from another one of its name."""

    topic: str
    topic_id: str
    days: Sequence[dt.date]

    @property
    def text(self) -> str:
        """One line for people."""
        days = f"{len(self.days)} days ({self.days[0]} to {self.days[-1]})"
        return f"topic {self.topic} was made again: generations of {days} have another one in their cuts"


def replaced_table(database: DatabaseSettings, offset_reader: OffsetReader) -> ReplacedTable | None:
    """None when no generation was built from another topic. Raises ContractMismatch when there is no topic."""
    topic = PIPELINE.table.name
    offset_reader.partitions(topic)  # this one says so when the topic does not exist
    topic_id = offset_reader.topic_id(topic)
    with connect(database, "stream", "replaced table") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_of_other_topic"), {"topic": topic, "topic_id": topic_id})
        days = [day for (day,) in cursor.fetchall()]
    return ReplacedTable(topic, topic_id, days) if days else None


def refuse_replaced_table(database: DatabaseSettings, offset_reader: OffsetReader) -> None:
    """Raise TopicReplaced with the repair.

    A board that was pending at a cut is shown when its member comes beyond the cut: an offset of another topic does not
    tell whether it does.
    """
    found = replaced_table(database, offset_reader)
    if found is not None:
        raise TopicReplaced(f"{found.text}. Stop the stream, look with `{_REMEDY} --dry-run`, then repair with "
                            f"`{_REMEDY}`", topic=found.topic, present=found.topic_id)  # fmt: skip
