"""A topic that is deleted and created again during a read: nothing is saved from two topics of one name."""

import pytest

from include.contracts.errors import TopicChanged
from include.database.offset_ledger import OffsetLedger
from include.integrity.days.catch_up import find_late_versions
from include.kafka.offsets import OffsetReader
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.speed.positions import position_of
from tests.support.archive import DAY, OUTPUT, PIPELINE, STREAM, TABLE, Archive, a_board, a_member
from tests.support.pipeline import rows

BOARDS = 40


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path):
    archive = Archive(kafka, postgres, spark, "topic_changed", tmp_path, rows_per_task=40)
    archive.send(records())
    return archive


def records():
    return [a_member(7), *(a_board(number, memberId=7) for number in range(1, BOARDS + 1))]


def make_again(archive, topic):
    """With the same records and more, so that every offset is there."""
    archive.log.make(topic, archive.settings.kafka.partitions)
    archive.send([record for record in 2 * records() if record[0] == topic])


@pytest.fixture
def changes_after(archive, monkeypatch):
    """Deletes and creates a topic again just after the method was called."""

    def when(method, topic):
        told = getattr(OffsetReader, method)

        def then_change(reader, asked, *arguments):
            answer = told(reader, asked, *arguments)
            if asked == topic:
                monkeypatch.undo()
                make_again(archive, topic)
            return answer

        monkeypatch.setattr(OffsetReader, method, then_change)

    return when


def rebuild(archive, context=None):
    return rebuild_day(context or archive.context, archive.settings, PIPELINE, DAY, "r", None)


def built(archive):
    return rows(archive.settings, "SELECT status FROM generation WHERE status <> 'building'")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("topic", [STREAM, TABLE, OUTPUT])
def test_a_rebuild_notices_it_between_the_offsets_and_the_end(archive, changes_after, topic):
    changes_after("ends", topic)
    with pytest.raises(TopicChanged, match=f"topic={topic}"):
        rebuild(archive)
    assert built(archive) == []
    assert rebuild(archive).row_count == BOARDS  # the next try


@pytest.mark.timeout(300)
def test_a_rebuild_notices_it_after_what_is_read_was_fixed(archive):
    def context():
        make_again(archive, STREAM)
        return archive.context()

    with pytest.raises(TopicChanged, match=f"topic={STREAM}"):
        rebuild(archive, context)
    assert built(archive) == []


@pytest.mark.timeout(300)
def test_the_archive_lists_nothing_of_two_topics(archive, changes_after):
    changes_after("ends", STREAM)
    with pytest.raises(TopicChanged, match=f"topic={STREAM}"):
        archive.run()
    assert STREAM not in {batch.topic for batch in archive.store.batches(STREAM)}
    archive.run()
    assert archive.rows(STREAM).num_rows == 2 * BOARDS


def test_a_query_does_not_begin_at_offsets_of_another_topic(archive, changes_after):
    changes_after("earliest", STREAM)
    with pytest.raises(TopicChanged, match=f"topic={STREAM}"):
        position_of(OffsetLedger(archive.settings.database), archive.offsets, "join", STREAM)


@pytest.mark.timeout(300)
def test_late_versions_are_not_noted_under_the_id_of_another_topic(archive, changes_after):
    rebuild(archive)
    archive.send([a_member(7, hours=-11)])
    changes_after("ends", TABLE)
    with pytest.raises(TopicChanged, match=f"topic={TABLE}"):
        find_late_versions(archive.settings)
    assert rows(archive.settings, "SELECT topic_id FROM late_version", role="batch") == []
