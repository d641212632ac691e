"""Text of order_detail.toml with changes, such as two new columns of new fields, one of them personal."""

from include.contracts.definition import FOLDER

ORDERS = (FOLDER / "order_detail.toml").read_text(encoding="utf-8")
_NOTE = '    { stream = "note" },\n'
_ORDERED_AT = '    { name = "orderedAt", type'
_BUSINESS = '    { name = "isBusiness", type'
_COUNTRY = '    { table = "country",'
NEW_COLUMNS = (
    (_ORDERED_AT, '    { name = "channel", type = "string", max_length = 20, nullable = true,'
                  ' description = "Where it was placed." },\n' + _ORDERED_AT),
    (_NOTE, _NOTE + '    { stream = "channel" },\n'),
    (_BUSINESS, '    { name = "segment", type = "string", max_length = 20, nullable = true, personal = true,'
                ' description = "Kind of customer." },\n' + _BUSINESS),
    (_COUNTRY, '    { table = "segment", name = "customerSegment" },\n' + _COUNTRY),
)  # fmt: skip


def evolved(*changes: tuple[str, str]) -> str:
    """The text with each first text replaced by the second."""
    text = ORDERS
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
