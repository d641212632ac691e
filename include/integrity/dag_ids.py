"""The ids of a pipeline's DAGs. Pure but for the environment, which names the pipelines."""

from collections.abc import Mapping

from include.contracts.definition import SITE_NAME
from include.runtime.settings import listed_pipelines

BASES = (
    "nightly_rebuild",
    "rebuild_day",
    "reprocess_days",
    "undo_day",
    "replay_fallback",
    "reconcile_sources",
    "forget_member",
    "watch_pipeline",
    "audit",
)
SITE_BASES = {"reconcile_sources"}  # of the pipeline that the site's own tables feed, and of no other


def dag_ids(pipeline: str) -> Mapping[str, str]:
    """Return a pipeline's DAG ids by base: of the first pipeline the base itself, of others with the name behind it."""
    suffix = "" if pipeline == listed_pipelines()[0] else f"_{pipeline}"
    return {base: base + suffix for base in BASES if pipeline == SITE_NAME or base not in SITE_BASES}
