"""The rights of each role in PostgreSQL, as the GRANT statements of the schema."""

import re
from pathlib import Path

from include.contracts.definition import Definition
from include.contracts.pipelines import SITE_PIPELINE
from include.database.named import fill

_FOLDER = Path(__file__).parent
_GRANT = re.compile(r"^GRANT [^;]+;", re.MULTILINE)
_DENIED = re.compile(r"permission denied for \w+(?: \w+)? (\w+)")


def grants(pipeline: Definition) -> list[str]:
    """Return the GRANT statements of a pipeline's database, and of the site's tables if they are in it; on one line."""
    files = ["schema.sql", *(["site.sql"] if pipeline is SITE_PIPELINE else [])]
    text = fill("\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in files), pipeline)
    return [" ".join(found.split()) for found in _GRANT.findall(text)]


def missing_grants(message: str, pipeline: Definition) -> list[str]:
    """Return the GRANT statements for the relation that PostgreSQL's message denies; none if it names no relation."""
    denied = _DENIED.search(message)
    named = re.compile(rf" ON (?:\w+ )*?(?:\w+\.)?{denied[1]}\b") if denied else None
    return [each for each in grants(pipeline) if named and named.search(each)]
