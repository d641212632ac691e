"""Rules that the code which runs on Spark keeps."""

import ast
from pathlib import Path

import pytest

SPARK_JOBS = Path(__file__).resolve().parents[2] / "spark_jobs"
# Spark 4.2 runs functions of Python on columns through Arrow, which gives other values than pickle in some cases, and
# each goes through the JVM record by record: tasks read, transform and send columns themselves.
ON_COLUMNS = {"udf", "udtf", "pandas_udf", "arrow_udf", "arrow_udtf", "mapInPandas", "mapInArrow", "applyInPandas",
              "applyInArrow", "registerJavaFunction", "toPandas"}  # fmt: skip


def names_in(source: str) -> set[str]:
    """The names and attributes that the code uses or imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.alias):
            found.add(node.id if isinstance(node, ast.Name) else node.name)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


@pytest.mark.parametrize("path", sorted(SPARK_JOBS.rglob("*.py")), ids=lambda path: str(path.relative_to(SPARK_JOBS)))
def test_no_function_of_python_runs_on_columns(path):
    assert not names_in(path.read_text(encoding="utf-8")) & ON_COLUMNS


@pytest.mark.parametrize(
    "code", ["from pyspark.sql.functions import udf", "F.pandas_udf('long')", "frame.mapInArrow(f, 'a long')"]
)
def test_one_would_be_found(code):
    assert names_in(code) & ON_COLUMNS
