"""Texts of the page: each in every language, with the same values, and none that nobody shows."""

import ast
import copy
import re
import string
from pathlib import Path

import pytest

from include.integrity.pages import texts
from include.integrity.pages.texts import LANGUAGES, Message, PageTexts, catalogue

FOLDER = Path(texts.__file__).parent
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
# keys that are made of a prefix and a name that the data has
GROUPS = ("status_", "class_", "kind_", "action_", "severity_", "place_", "verdict_", "weekday_", "balance_", "unit_",
          "delivery_")  # fmt: skip


def values_of(text):
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def keys_in_code():
    """Keys that templates and code name in full."""
    found = set(texts.OF_SCRIPTS)
    for template in TEMPLATES:
        source = template.read_text(encoding="utf-8")
        found |= set(re.findall(r'texts\("(\w+)"', source))
        found |= {key for key in catalogue() if f'"{key}"' in source}
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="Message"), args=[ast.Constant(value=str(key)), *_]):
                    found.add(key)
                case ast.Call(func=ast.Name(id="self"), args=[ast.Constant(value=str(key)), *_]):
                    found.add(key)
                case ast.Call(func=ast.Name(id="said"), args=[ast.Constant(value=str(key)), *_]):
                    found.add(f"verdict_{key}")
    return found


@pytest.mark.parametrize("key", catalogue())
def test_each_text_is_in_every_language_with_the_same_values(key):
    found = catalogue()[key]

    assert set(found) == set(LANGUAGES)
    assert all(text.strip() for text in found.values())
    assert len({str(values_of(text)) for text in found.values()}) == 1
    if not re.fullmatch(r"[\W\d_]*", re.sub(r"\{[^}]*\}", "", found["en"])):
        assert re.search("[가-힣]", found["ko"]) or key in UNTRANSLATED, "the Korean text has no Korean in it"


UNTRANSLATED = ("title_day", "stream_batch", "nav_airflow")


def test_code_names_no_text_that_is_missing_and_none_is_left_over():
    named = keys_in_code() - set(GROUPS)

    assert named - set(catalogue()) == set()
    assert {key for key in catalogue() if key not in named and not key.startswith(GROUPS)} == set()


def test_texts_of_scripts_are_those_that_scripts_name_with_the_values_they_give():
    script = (FOLDER / "templates" / "page.js").read_text(encoding="utf-8")
    named = set(re.findall(r'say\("(\w+)"', script)) | {"approve", "reject"}

    assert named == set(texts.OF_SCRIPTS)
    for key, text in PageTexts("ko").of_scripts.items():
        assert values_of(text) == values_of(catalogue()[key]["en"])


def test_a_message_is_its_english_text_and_can_be_told_in_another_language():
    message = Message("note_unexplained", count=1200)

    assert message == "1,200 unexplained differences"
    assert message.in_language("ko") == "원인 불명 차이 1,200건"
    assert copy.deepcopy(message).in_language("ko") == message.in_language("ko")


def test_values_are_never_read_as_texts():
    assert Message("note_held", reason="{count} {0.__class__}").endswith("{count} {0.__class__}")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.8, "1 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 days")]
)
def test_durations_have_their_largest_unit(seconds, text):
    assert PageTexts("en").duration(seconds) == text


def test_names_that_the_catalogue_does_not_have_are_shown_as_they_are():
    told = PageTexts("ko")

    assert told.correction("new_class") == "new class"
    assert told.correction("customer_version_changed") == "customer 버전 변경"
    assert told.status("<b>") == "<b>"
