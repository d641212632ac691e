"""Files that the catalogue does not list: forgetting a person removes them, or names those with their records."""

import pyarrow as pa
import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from spark_jobs.archive.rewriting import ArchiveForgetting, Forgotten, UnlistedRecords
from spark_jobs.connectors.archive_files import ArchiveFolder, Origin
from spark_jobs.decoding.dated_rows import DAY, DELETED, ID

SCHEMA = pa.schema([
    ("key", pa.binary()), ("value", pa.binary()), (ID, pa.int64()), (DAY, pa.date32()), (DELETED, pa.bool_())
])  # fmt: skip


class Catalogue:
    """A catalogue that lists nothing, and whose topics are archived up to these ends."""

    def __init__(self, ends):
        self._ends = ends

    def replaced(self, kept_s):
        return []

    def forget(self, paths):
        pass

    def paths(self):
        return set()

    def ends(self, topic, topic_id):
        return self._ends if topic_id == "present" else {}


@pytest.fixture
def folder(tmp_path):
    return ArchiveFolder(str(tmp_path / "archive"))


def write(folder, topic_id, key):
    value = f'{{"id": {key}, "nickname": "mina"}}'.encode()
    writer = folder.writer(f"member/{topic_id}/records", SCHEMA, Origin("member", topic_id, {0: 100}), None)
    row = {"key": str(key).encode(), "value": value, ID: key, DAY: None, DELETED: False}
    writer.write(pa.Table.from_pylist([row], SCHEMA))
    return writer.close("records").path


def forget(folder, key, ends):
    ArchiveForgetting(Catalogue(ends), folder, PIPELINE, key).remove(Forgotten(set()))


def test_a_file_whose_records_are_archived_goes(folder):
    write(folder, "present", 7)
    forget(folder, 7, {0: 100})
    assert [*folder.storage.iter_objects()] == []


@pytest.mark.parametrize(("topic_id", "ends"), [("former", {0: 100}), ("present", {0: 99})])
def test_the_only_copy_of_records_of_the_person_is_named(folder, topic_id, ends):
    others, path = write(folder, topic_id, 8), write(folder, topic_id, 7)
    with pytest.raises(UnlistedRecords) as raised:
        forget(folder, 7, ends)
    assert path in str(raised.value)
    assert others not in str(raised.value)
    folder.storage.remove([path])
    forget(folder, 7, ends)
    assert [each.path for each in folder.storage.iter_objects()] == [others]
