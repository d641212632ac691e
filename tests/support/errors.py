"""All errors of the pipeline."""

import importlib
import pkgutil
import re
import sys

import demo
import include
import spark_jobs
from include.contracts.errors import PipelineError

_PACKAGES = (demo, include, spark_jobs)
_LEFT_OUT = r"\.(__main__|migrations)\b"  # what runs when it is imported


def pipeline_errors() -> list[type[PipelineError]]:
    """Import the modules of the pipeline, and return every class of errors that one of them has."""
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not re.search(_LEFT_OUT, module.name):
                importlib.import_module(module.name)
    return sorted(filter(_is_own, _classes(PipelineError)), key=lambda each: (each.__name__, each.__module__))


def _is_own(error: type[PipelineError]) -> bool:
    """True if the class is of a module of the pipeline, and not one that a test has made."""
    is_named = getattr(sys.modules[error.__module__], error.__name__, None) is error
    return is_named and error.__module__.split(".")[0] in {package.__name__ for package in _PACKAGES}


def _classes(base: type[PipelineError]) -> set[type[PipelineError]]:
    return {base}.union(*(_classes(each) for each in base.__subclasses__()))
