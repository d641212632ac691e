"""Notebooks of the documents run from their first cell to the last, on the database of each pipeline."""

import json
from contextlib import closing

import pytest

from include.contracts.pipelines import PIPELINES
from tests.support.certifying import certify_alone
from tests.support.documents import ROOT
from tests.support.pipeline import environment, migrated
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve

NOTEBOOKS = sorted((ROOT / "docs" / "examples").glob("*.ipynb"))


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def run(postgres, tmp_path, monkeypatch):
    """Runs the code cells of a notebook on the pipeline's database, and returns their names."""

    def call(notebook, pipeline):
        for name, value in environment(None, postgres, "notebook", tmp_path, pipeline).items():
            monkeypatch.setenv(name, value)
        names = {}
        for number, cell in enumerate(cells(notebook), 1):
            if cell["cell_type"] == "code":
                code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec")
                exec(code, names)
        return names

    return call


def test_the_example_reads_certified_days_and_what_changed(run, postgres, tmp_path):
    settings = migrated(None, postgres, "notebook", tmp_path)
    with closing(opened_store(settings)) as store:
        serve(store, [row(9, 20, day=DAY.before(1).date)])
        build(settings, [row(n, n) for n in (1, 2, 3)], cut=5, run_id="r")
        publish(settings, DAY, "r")
        certify_alone(settings, DAY)
        serve(store, [row(1, 21, title="late")])
    names = run(ROOT / "docs" / "examples" / "trusted_days.ipynb", "board_detail")
    assert names["days"]["day"].tolist() == [DAY.date, DAY.before(1).date]
    assert [text.partition(":")[0] for text in names["days"]["summary"]] == ["certified", "provisional"]
    assert names["certified"]["title"].tolist() == ["v1", "v2", "v3"]
    assert sorted(names["changed"]["title"]) == ["late", "v2", "v20", "v3"]
    assert len(names["changed_since"]) == 4  # the margin
    assert names["replaced_days"] == [DAY.date]


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_on_the_new_database_of_each_pipeline(run, postgres, tmp_path, notebook, pipeline):
    migrated(None, postgres, "notebook", tmp_path, pipeline)
    run(notebook, pipeline)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_has_no_outputs(notebook):
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
