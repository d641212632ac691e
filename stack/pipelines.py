"""The pipelines that run side by side on the stack: the first one, and further ones. Standard library only.

The first has the plain names of variables, services and jobs. A further one has variables with its prefix, and its name
as a suffix of services and jobs.
"""

from collections.abc import Mapping

from include.contracts.definition import FOLDER
from include.contracts.errors import ConfigurationError
from include.runtime.settings import DEFAULT_PIPELINE, pipeline_names
from stack.errors import StackError


def pipelines_of(settings: Mapping[str, str]) -> list[str]:
    """Return the names in PIPELINES, the first pipeline first. Raises StackError for a name without a definition."""
    try:
        return pipeline_names({"PIPELINES": settings["PIPELINES"]}, FOLDER)
    except ConfigurationError as exc:
        raise StackError(f"in .env, {exc}") from exc


def gateway_pipeline(settings: Mapping[str, str]) -> str:
    """Return the pipeline whose database the gateway uses: board_detail, which has the site's tables, else the first.

    Raises StackError as `pipelines_of` does.
    """
    names = pipelines_of(settings)
    return DEFAULT_PIPELINE if DEFAULT_PIPELINE in names else names[0]


def suffix_of(pipeline: str, settings: Mapping[str, str]) -> str:
    """Return the suffix of the pipeline's services and jobs: none for the first, else such as -order-detail."""
    return "" if pipeline == pipelines_of(settings)[0] else f"-{pipeline.replace('_', '-')}"
