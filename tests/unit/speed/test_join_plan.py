"""The JVM compiles the generated code of the join: a method beyond its limit is not generated, and rows cost more."""

import re

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from include.contracts.pipelines import PIPELINES
from include.runtime.settings import Settings
from spark_jobs.connectors.session import STREAM_CONFIGURATION
from spark_jobs.decoding.arrow import table_schema
from spark_jobs.decoding.spark import RECORD
from spark_jobs.speed.delivery import AtLeastOnce
from spark_jobs.speed.join import StreamTableJoin
from tests.support.driver import driver_context

NUMBER = re.compile(r"\*\([0-9]+\)")  # of a stage, before each of its operators
LIMIT = int(STREAM_CONFIGURATION["spark.sql.codegen.hugeMethodLimit"])


class NoTable:
    """A table without rows."""

    def known(self, keys):
        return []


@pytest.mark.parametrize("name", PIPELINES)
def test_the_method_of_the_join_is_compiled(spark, name):
    settings = Settings.from_environment({"DATABASE_HOST": "nowhere", "KAFKA_BOOTSTRAP_SERVERS": "nowhere:1"}, name)
    join = StreamTableJoin(
        driver_context(settings), PIPELINES[name], spark, NoTable(), None, None, AtLeastOnce(None, PIPELINES[name])
    )
    record = {"key": b"1", "value": b"{}", "topic": "t", "partition": 0, "offset": 0, "headers": []}
    records = spark.createDataFrame(pa.Table.from_pylist([record], to_arrow_schema(RECORD, timezone="UTC")))
    records = records.coalesce(1)  # as the stream has them: else the optimizer decodes them
    schema = table_schema(PIPELINES[name])
    row = {schema.names[0]: 1, "partition": 0, "offset": 0, "deleted": False}
    details = join._details(join.decoded(records), spark.createDataFrame(pa.Table.from_pylist([row], schema)))
    (size,) = [size for plan, size in codegen_of(details) if f"{NUMBER.match(plan)[0]} BroadcastHashJoin" in plan]
    assert 0 < size < LIMIT


def codegen_of(frame):
    """(plan, size of the largest method) of each generated stage."""
    found = frame._jdf.queryExecution().debug().codegenToSeq()
    return [(found.apply(n)._1(), found.apply(n)._3().maxMethodCodeSize()) for n in range(found.length())]
