"""The notes of a certificate's terms, for each pipeline."""

import pytest

from include.contracts.pipelines import PIPELINES
from include.integrity.days.certificate import COUNTED, SINCE, note_of


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_notes_of_terms_name_the_topics_of_their_own_pipeline_alone(pipeline):
    notes = [note_of(note, PIPELINES[pipeline]) for _, _, note in (*COUNTED, *SINCE)]
    assert [note for note in notes if PIPELINES[pipeline].stream.name in note]
    for other in PIPELINES.values():
        if other.name != pipeline:
            foreign = (f"{other.stream.name} ", f"{other.table.name} ", "boards", "members")
            assert [
                note for note in notes if any(word in note.replace(" whatever their order", "") for word in foreign)
            ] == []
