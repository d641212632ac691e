"""All errors of the pipeline."""

import importlib
import pkgutil
import re

import include
import spark_jobs
from include.errors import PipelineError

_LEFT_OUT = r"\.(__main__|migrations\b|init|airflow_support)"  # what runs when it is imported, or imports Airflow


def pipeline_errors() -> list[type[PipelineError]]:
    """Import the modules of the pipeline, and return every class of errors that is known by then."""
    for package in (include, spark_jobs):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not re.search(_LEFT_OUT, module.name):
                importlib.import_module(module.name)
    return sorted(_classes(PipelineError), key=lambda each: each.__name__)


def _classes(base: type[PipelineError]) -> set[type[PipelineError]]:
    return {base}.union(*(_classes(each) for each in base.__subclasses__()))
