"""Every step that a DAG's task calls works with the settings of the pipeline that the task names."""

import inspect

import pytest

from include.airflow_support import steps
from include.integrity.commands import COMMANDS
from include.settings import Settings

STEPS = [step for _, step in inspect.getmembers(steps, inspect.isfunction) if step.__module__ == steps.__name__]


class Read(Exception):
    """The settings of the pipeline were read."""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_step_reads_the_settings_of_its_pipeline(step, monkeypatch):
    def read(_, pipeline):
        raise Read(pipeline)

    monkeypatch.setattr(Settings, "from_environment", read)
    others = {name: "scheduled" for name in inspect.signature(step).parameters if name != "pipeline"}

    with pytest.raises(Read, match=r"^order_detail$"):
        step(pipeline="order_detail", **others | ({"timeout_s": 0.0} if "timeout_s" in others else {}))


class Bound(Exception):
    """A command of the batch layer takes the arguments."""


@pytest.mark.parametrize(
    "step", [step for step in STEPS if " run(" in inspect.getsource(step)], ids=lambda step: step.__name__
)
def test_a_step_gives_its_command_the_arguments_that_it_takes(step, monkeypatch):
    def bind(command, *days, pipeline, **arguments):
        inspect.signature(COMMANDS[command].call).bind("settings", *days, **arguments)
        raise Bound(pipeline)

    monkeypatch.setattr(steps, "run", bind)
    texts = dict.fromkeys(inspect.signature(step).parameters, "1")
    with pytest.raises(Bound, match=r"^order_detail$"):
        step(**texts | {"pipeline": "order_detail"})
