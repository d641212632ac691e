"""Generated records of the story of any pipeline keep to the contracts of their topics."""

import pytest

from demo.reference_data import GeneratedRecords
from include.contracts.day import Day
from include.contracts.pipelines import PIPELINES
from include.contracts.validation import parse_timestamp, violations

DAY = Day.parse("2026-11-20", "America/New_York")


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES.keys())
@pytest.mark.parametrize("number", [0, 7, 400, 9_999])
def test_generated_records_are_valid_and_lie_in_the_day(pipeline, number):
    records = GeneratedRecords.begun_now(pipeline, DAY)
    stream, morning, evening = records.stream_value(number, 3), records.table_value(3), records.table_value(3, 20)
    assert violations(pipeline.stream, stream) == []
    assert violations(pipeline.table, morning) == violations(pipeline.table, evening) == []
    assert stream[pipeline.join_field] == morning[pipeline.table.key_field] == evening[pipeline.table.key_field]
    assert DAY.start <= parse_timestamp(stream[pipeline.day_field]) < DAY.end
    rows = [records.row(number, 3, hour) for hour in (1, 20)]
    assert rows[0] != rows[1]
    assert len(rows[0]) == len(pipeline.columns) - len(pipeline.personal_columns)
