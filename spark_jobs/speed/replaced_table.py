"""Detects that the members' topic was deleted and created again: cuts of generations hold the former topic's id."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from include.contracts.errors import TopicReplaced
from include.database.named import query
from include.database.sessions import connect
from include.kafka.offsets import OffsetReader
from include.runtime.settings import DatabaseSettings
from spark_jobs.speed.positions import remedy


@dataclass(frozen=True)
class ReplacedTable:
    """The present topic, and the days with generations that were built from a former topic of the same name."""

    topic: str
    topic_id: str
    days: Sequence[dt.date]

    @property
    def text(self) -> str:
        """The finding in one line."""
        days = f"{len(self.days)} days ({self.days[0]} to {self.days[-1]})"
        return f"topic {self.topic} was created again: generations of {days} have the former one in their cuts"


def replaced_table(database: DatabaseSettings, offset_reader: OffsetReader, topic: str) -> ReplacedTable | None:
    """Return the present topic of that name if generations were built from a former one; None otherwise.

    Raises ContractMismatch if the topic does not exist.
    """
    offset_reader.partitions(topic)  # raises ContractMismatch if the topic does not exist
    topic_id = offset_reader.topic_id(topic)
    with connect(database, "stream", "replaced table") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_of_other_topic", cursor), {"topic": topic, "topic_id": topic_id})
        days = [day for (day,) in cursor.fetchall()]
    return ReplacedTable(topic, topic_id, days) if days else None


def refuse_replaced_table(database: DatabaseSettings, offset_reader: OffsetReader, topic: str) -> None:
    """Raise TopicReplaced, with the repair command, if the members' topic was replaced.

    A board that was pending at a cut is shown if its member arrives beyond the cut. Offsets of a former topic can't be
    compared with those of the present one, so this could not be decided.
    """
    found = replaced_table(database, offset_reader, topic)
    if found is not None:
        raise TopicReplaced(f"{found.text}. {remedy('join')}", topic=found.topic, present=found.topic_id)
