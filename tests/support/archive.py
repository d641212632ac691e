"""An archive on real servers: fills topics of its own, archives them and reads the files."""

import dataclasses
import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from confluent_kafka.admin import AdminClient

from include.archive.catalogue import ArchiveStore
from include.contracts import headers as h
from include.contracts.clock import SystemClock, epoch_ms, rfc3339
from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import parse_timestamp
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import S3Connection, Settings
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.batch.sources import ArchiveSource
from spark_jobs.connectors.archive_files import ArchiveFolder
from tests.fakes.events import board, member
from tests.support.broker import CREATE_TIME, remove_topics, set_timestamps
from tests.support.pipeline import with_topics
from tests.support.sending import sending
from tests.support.topic_log import TopicLog

STREAM, TABLE, OUTPUT = PIPELINE.stream.name, PIPELINE.table.name, PIPELINE.output.name
# Kafka refuses times ahead of its own, and removes records that are older than the retention
DAY = Day.of(SystemClock().now(), "Asia/Seoul").before(4)
NOON = DAY.start + dt.timedelta(hours=12)


def at(hours: float) -> str:
    """A time so many hours after the day's noon, as topics carry it."""
    return (NOON + dt.timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


class Archive:
    """One pipeline's topics, database and archive."""

    def __init__(
        self,
        kafka,
        postgres,
        spark,
        name: str,
        folder: Path,
        rows_per_task: int = 1000,
        pipeline: str = PIPELINE.name,
        kept_in: ArchiveFolder | None = None,
    ) -> None:
        self.log = TopicLog(kafka.bootstrap_servers)
        remove_topics(kafka.bootstrap_servers)
        settings = with_topics(kafka, postgres, name, folder, pipeline)
        self.folder = kept_in or ArchiveFolder(str(folder / "archive"))
        batch = dataclasses.replace(
            settings.batch,
            archive_dir=self.folder.location,
            archive_s3=self.folder.s3,
            rows_per_task=rows_per_task,
        )
        self.settings: Settings = dataclasses.replace(settings, batch=batch)
        topics = (settings.pipeline.stream.name, settings.pipeline.table.name, settings.pipeline.output.name)
        set_timestamps(kafka.bootstrap_servers, CREATE_TIME, *topics)  # the records are of days ago
        self.store = ArchiveStore(self.settings.database)
        self._context = spark.sparkContext

    def run_on(self, s3: S3Connection) -> None:
        """Let further runs use another connection to the same bucket."""
        batch = dataclasses.replace(self.settings.batch, archive_s3=s3)
        self.settings = dataclasses.replace(self.settings, batch=batch)

    def path(self, relative: str) -> Path:
        """The path of a file of the archive."""
        return Path(self.folder.location) / relative

    def drop(self, topic: str) -> None:
        """Delete the topic, and wait until it is gone."""
        admin = AdminClient({"bootstrap.servers": self.log.bootstrap_servers})
        if topic in admin.list_topics(timeout=10).topics:
            admin.delete_topics([topic])[topic].result(30)

    @property
    def offsets(self) -> OffsetReader:
        """A new reader: a client that saw a former topic of that name finds no leader."""
        return OffsetReader(KafkaConnection(self.log.bootstrap_servers))

    @property
    def source(self) -> ArchiveSource:
        return ArchiveSource(self.store, self.folder, self.offsets, self.settings.pipeline)

    def topic_id(self, topic: str) -> str:
        return self.offsets.topic_id(topic)

    def context(self):
        return self._context

    def run(self, accept_gap: str | None = None, run_id: str = "test"):
        """One night's run."""
        return archive_topics(self.context, self.settings, self.settings.pipeline, run_id, accept_gap)

    def send(self, records: Sequence[tuple], created: dt.datetime | None = None) -> None:
        """(topic, key, value) or (topic, key, value, headers) records; a dict goes as JSON, None is a tombstone.

        They are sent at `created`, and a version that is later is of that time. By default they are sent at noon, or
        at their version if that is later and past.
        """
        with sending(self.log.bootstrap_servers) as sender:
            for topic, key, value, *more in records:
                value, sent_at = self._timed(topic, value, created)
                data = json.dumps(value, ensure_ascii=False).encode() if isinstance(value, dict) else value
                sender.send(topic, data, str(key), headers=more[0] if more else [], timestamp=epoch_ms(sent_at))

    def _timed(self, topic: str, value, created: dt.datetime | None):
        """The value, and when it is sent."""
        pipeline = self.settings.pipeline
        field = {each.name: each.version_field for each in (pipeline.stream, pipeline.table)}.get(topic)
        if field is None or not isinstance(value, dict):
            return value, created or NOON
        version = parse_timestamp(value[field])
        if created is None:
            return value, max(NOON, version) if version < SystemClock().now() else NOON
        return value | {field: rfc3339(min(version, created))}, created

    def rows(self, topic: str, kind: str = "records") -> pa.Table:
        """Return all listed records of a topic, in the order of their coordinates."""
        batches = {batch.id for batch in self.store.batches(topic) if batch.topic_id == self.topic_id(topic)}
        files = [file for file in self.store.all_files() if file.kind == kind and file.batch_id in batches]
        tables = []
        for listed in files:
            with self.folder.open(listed.path) as file:
                tables.append(file.read().replace_schema_metadata(None))
        assert tables, f"nothing of {topic} is archived"
        return pa.concat_tables(tables).sort_by([("partition", "ascending"), ("offset", "ascending")])


def event(name: str) -> list[tuple[str, bytes]]:
    """The header with an event's id."""
    return [(h.EVENT_ID, name.encode())]


def made_from(partition: int, offset: int) -> list[tuple[str, bytes]]:
    """The headers of a record of the output topic."""
    return [("board-at", b"board/%d/%d" % (partition, offset))]


def a_board(board_id: int, hours: float = 0, modified: float | None = None, **fields: object):
    """A record of the stream, created and modified so many hours after noon."""
    times = {"createdAt": at(hours), "modifiedAt": at(hours if modified is None else modified)}
    return (STREAM, board_id, board(board_id, **{**times, **fields}), event(f"e{board_id}-{modified}"))


def a_member(member_id: int, hours: float = -10, **fields: object):
    """A record of the table."""
    return (TABLE, member_id, member(member_id, createdAt=at(-100), modifiedAt=at(hours), **fields), event("m"))
