"""The author of a publication, an undo or a redo, as it is kept: `NAME, DAG RUN[, approved by NAME]`."""

import re
from dataclasses import dataclass

_MADE_BY = re.compile(r"(?P<name>.*?), (?P<dag_id>[\w.-]+) (?P<run_id>[^\s,]+)(?:, approved by (?P<approved_by>.+))?")


@dataclass(frozen=True)
class Author:
    """The person, or `airflow`, that moved a day's pointer; the run and who approved it, if there was one."""

    name: str
    dag_id: str | None = None
    run_id: str | None = None
    approved_by: str | None = None

    @classmethod
    def of(cls, made_by: str) -> "Author":
        """Return the author of the kept text; a text of another form is the name."""
        found = _MADE_BY.fullmatch(made_by)
        return cls(**found.groupdict()) if found else cls(made_by)
