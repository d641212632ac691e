"""Definitions of orders whose further columns have the words of the product's own statements and tables as names."""

import re
from collections.abc import Iterable
from pathlib import Path

from include.contracts.errors import ContractMismatch
from include.contracts.fields import snake_case
from include.contracts.pipelines import load_definition
from include.database.named import QUERIES
from stack.layout import Layout
from tests.support.evolved import ORDERS

_FIELD = '    {{ name = "{}", type = "long", nullable = true, description = "A number." }},\n'
_ORDERED_AT = '    { name = "orderedAt", type'
_IS_BUSINESS = '    { name = "isBusiness", type'
_NOTE = '    { stream = "note" },\n'
_COLUMN = re.compile(r'(?:\[|col\(|alias\(|field\(|\()"([a-z]\w*)"|"([a-z]\w*)":')


def words_of_statements() -> list[str]:
    """Words of the SQL files outside of comments, literals and placeholders."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in [*QUERIES.parent.glob("*.sql"), *QUERIES.glob("*.sql")]
    )
    text = re.sub(r"--[^\n]*|'[^']*'|\{\{\w+\}\}|%\(\w+\)s", " ", text)
    return _names(re.findall(r"\b[a-z]\w*", text.lower()))


def words_of_tables() -> list[str]:
    """Texts that name columns of Arrow tables and DataFrames in the Spark jobs, and others like them."""
    root = Layout.of().root
    files = [*(root / "spark_jobs").rglob("*.py"), *(root / "include/database").glob("*arrow*.py")]
    return _names(one or other for file in files for one, other in _COLUMN.findall(file.read_text(encoding="utf-8")))


def is_accepted(folder: Path, column: str) -> bool:
    """True if the output may have a column of that name. Raises ContractMismatch for an error of another kind."""
    try:
        _load(folder, orders_with([column]))
    except ContractMismatch as exc:
        if "rename one" in str(exc) or "give it another name" in str(exc):
            return False
        raise
    return True


def orders_with(columns: Iterable[str], table_fields: Iterable[str] = ()) -> str:
    """The text of order_detail.toml with columns of these names, and fields of the table that are no columns."""
    names = [_camel_case(column) for column in columns]
    fields = {_ORDERED_AT: names, _IS_BUSINESS: [*map(_camel_case, table_fields)]}
    text = ORDERS.replace(_NOTE, _NOTE + "".join(f'    {{ stream = "{name}" }},\n' for name in names))
    for before, added in fields.items():
        text = text.replace(before, "".join(map(_FIELD.format, added)) + before)
    return text


def _load(folder: Path, text: str) -> None:
    path = folder / "order_detail.toml"
    path.write_text(text, encoding="utf-8")
    load_definition(path)


def _names(found: Iterable[str]) -> list[str]:
    """Return the words that camelCase names of fields have as columns."""
    return sorted(word for word in {*found} if len(word) <= 40 and snake_case(_camel_case(word)) == word)


def _camel_case(column: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), column)
