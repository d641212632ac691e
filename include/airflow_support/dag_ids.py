"""The ids of a pipeline's DAGs. Pure but for the environment, which names the pipelines."""

from collections.abc import Mapping

from include.settings import listed_pipelines

BASES = (
    "nightly_rebuild",
    "rebuild_day",
    "reprocess_days",
    "undo_day",
    "watch_pipeline",
    "audit_kafka",
    "audit_stream",
)


def dag_ids(pipeline: str) -> Mapping[str, str]:
    """Return a pipeline's DAG ids by base: of the first pipeline the base itself, of others with the name behind it."""
    suffix = "" if pipeline == listed_pipelines()[0] else f"_{pipeline}"
    return {base: base + suffix for base in BASES}
