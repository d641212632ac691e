"""Chooses the daemon that forks Python workers: ours, if Spark's own still has the functions that ours changes."""

import ast
import logging
from collections.abc import Mapping
from importlib.util import find_spec

log = logging.getLogger(__name__)

SPARKS = "pyspark.daemon"
OURS = "spark_jobs.batch.worker_daemon"
_KNOWN = {"worker": ["sock", "authenticated"], "manager": []}  # functions of Spark's daemon, with their arguments


def daemon_configuration() -> Mapping[str, str]:
    """Return the setting that names our daemon. If Spark's has changed, log a warning and return no setting."""
    if found := difference():
        log.warning("Spark's own daemon of Python workers is used, tasks begin later: %s", found)
        return {}
    return {"spark.python.daemon.module": OURS}


def difference() -> str:
    """Describe how Spark's daemon differs from the expected one; empty if it does not. It is parsed, not imported."""
    spec = find_spec(SPARKS)
    # under spark-submit PySpark is a zip file, whose loader has get_source() without being an InspectLoader
    get_source = getattr(spec.loader, "get_source", None) if spec else None
    source = get_source(SPARKS) if get_source else None
    if source is None:
        return f"there is no {SPARKS}"
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    taken = {function.name: [each.arg for each in function.args.args] for function in functions}
    for name, arguments in _KNOWN.items():
        if taken.get(name) != arguments:
            return f"{SPARKS} has no {name}({', '.join(arguments)})"
    return ""
