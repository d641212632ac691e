"""The names in a PromQL expression, as far as the rules and dashboards of this project use the language."""

import re

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^{}]*)\}")
_MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")\s*')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_RANGE = re.compile(r"\[\w+(?::\w*)?\]")
_NAME = re.compile(r"(?<![\w.])([a-zA-Z_:][\w:]*)(?!\w)\s*(\()?")
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


def metrics_in(expression: str) -> set[str]:
    """Return the metrics of an expression. Raises ValueError if its brackets do not match."""
    bare = _STRING.sub("", expression)
    for opening, closing in ("()", "[]", "{}"):
        if bare.count(opening) != bare.count(closing):
            raise ValueError(f"{expression!r}: {opening} and {closing} do not match")
    bare = _RANGE.sub("", _GROUPING.sub("", re.sub(r"\{[^{}]*\}", "", bare)))
    return {name for name, call in _NAME.findall(bare) if not call and name not in _OPERATORS}


def matchers_in(expression: str) -> list[tuple[str, str, str, str]]:
    """Return (metric, label, operator, value) of each label matcher. Raises ValueError for one that is none."""
    found = []
    for metric, inside in _MATCHERS.findall(expression):
        for text in filter(None, re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', inside)):
            if (match := _MATCHER.fullmatch(text)) is None:
                raise ValueError(f"{expression!r}: {text!r} is no matcher")
            label, operator, value = match.groups()
            found.append((metric, label, operator, value[1:-1]))
    return found


def grouped_by(expression: str) -> set[str]:
    """Return the labels that the expression groups by."""
    return {label.strip() for inside in _GROUPING.findall(expression) for label in inside.split(",") if label.strip()}
