"""Definitions of pipelines: the files that are there load, and a wrong one is refused with the place and the remedy."""

import re

import pytest

from include.contracts.definition import FOLDER
from include.contracts.errors import ContractMismatch
from include.contracts.pipelines import load_definition, load_definitions

ORDERS = (FOLDER / "order_detail.toml").read_text(encoding="utf-8")


def test_all_files_load():
    assert set(load_definitions()) == {path.stem for path in FOLDER.glob("*.toml")}


def test_the_output_has_types_and_descriptions_of_its_sources():
    orders = load_definition(FOLDER / "order_detail.toml")
    amount, limit = orders.output.field("amount"), orders.output.field("creditLimit")
    assert (amount.type, amount.precision, amount.scale, amount.nullable) == ("decimal", 12, 2, False)
    assert (limit.column, limit.nullable, limit.description) == (
        "credit_limit", True, "The customer's limit of open orders.",
    )  # fmt: skip
    assert (orders.key_column, orders.join_column, orders.day_column) == (
        "order_number", "customer_number", "ordered_at",
    )  # fmt: skip
    assert orders.personal_columns == ("customer_name",)


WRONG = {
    "not TOML": ("[stream]", "[stream", "order_detail.toml: "),
    "unknown key": ('day = "orderedAt"', 'day = "orderedAt"\nzone = "UTC"', "unknown field `zone`"),
    "missing key": ('day = "orderedAt"\n', "", "missing required field `day`"),
    "other name": ('name = "order_detail"', 'name = "orders"', 'name = "orders": the file is named order_detail.toml'),
    "unknown type": ('type = "boolean", description = "True once', 'type = "bool", description = "True once', "'bool'"),
    "no length": ("max_length = 3, ", "", "field currency of type string: max_length=None; set it for a string"),
    "no precision": ("precision = 12, scale = 2, ", "", "field amount of type decimal: precision=0, scale=0; give"),
    "key of another type": ('key = "orderNumber"', 'key = "note"', "[stream] topic order: key_field='note' names no"),
    "nullable version": (
        'version = "changedAt"\nday', 'version = "dueOn"\nday', "version_field='dueOn' names no field",
    ),
    "unknown join": ('joined_by = "customerNumber"', 'joined_by = "x"', 'the stream\'s join field is missing; add'),
    "join of a string": (
        'joined_by = "customerNumber"', 'joined_by = "currency"', "joined_by = 'currency': not a long",
    ),
    "day is a date": ('day = "orderedAt"', 'day = "dueOn"', "day = 'dueOn': not a timestamp that is never null"),
    "key left out": ('    { stream = "orderNumber" },\n', "", 'the stream\'s key is missing; add { stream = "orderNu'),
    "unknown source": (
        '{ stream = "note" }', '{ stream = "notes" }', "'notes': topic order has no such field; use one",
    ),
    "no source": ('{ stream = "note" }', '{ name = "note" }', "[output] columns, number 12: give one source"),
    "two sources": ('{ stream = "note" }', '{ stream = "note", table = "name" }', "number 12: give one source"),
    "same column": (
        '{ stream = "note" }', '{ stream = "note", name = "amount" }', "[output] amount: another field has",
    ),
    "own column": ('{ stream = "note" }', '{ stream = "note", name = "day" }', "[output] day: the pipeline has a colu"),
    "personal date": (
        'name = "bornOn", type = "date"', 'name = "bornOn", personal = true, type = "date"', "personal date",
    ),
    "key word": (
        '{ stream = "note" }', '{ stream = "note", name = "limit" }', "[output] limit: limit is a key word of Postg",
    ),
    "too long a column": (
        '{ stream = "note" }', f'{{ stream = "note", name = "a{"Bc" * 22}" }}',
        "has 67 characters, PostgreSQL keeps 63; give it a shorter name",
    ),
    "system column": (
        '{ stream = "note" }', '{ stream = "note", name = "ctid" }', "every table of PostgreSQL has a column ctid",
    ),
    "join by the key": (
        'joined_by = "customerNumber"', 'joined_by = "orderNumber"', "[stream] joined_by = 'orderNumber': the key too",
    ),
    "own header": (
        'topic = "customer"', 'topic = "accepted"', "[table] topic: records have another header accepted-at; give the",
    ),
    "no length at all": ("max_length = 3,", "max_length = -1,", "max_length=-1; give a length of 1 or more"),
    "control character": ("The customer's note.", "a\\u0000b", "description"),
    "blank description": ("The customer's note.", "   ", "description"),
    "SQL in a name": ('name = "note", type', 'name = "note; DROP", type', "fields[6].name"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused(tmp_path, case):
    old, new, message = WRONG[case]
    assert old in ORDERS
    path = tmp_path / "order_detail.toml"
    path.write_text(ORDERS.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ContractMismatch, match=re.escape(message)) as raised:
        load_definition(path)
    assert str(raised.value).startswith("order_detail.toml: ")


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("nothing")])
def test_what_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / "payments.toml")
    with pytest.raises(ContractMismatch, match=r"^payments\.toml: .*(directory|No such file)"):
        load_definitions(tmp_path)


def test_statements_name_the_columns_of_the_output(tmp_path):
    path = tmp_path / "order_detail.toml"
    renamed = ORDERS.replace('{ stream = "customerNumber" }', '{ stream = "customerNumber", name = "buyer" }')
    path.write_text(renamed.replace('{ stream = "orderedAt",', '{ stream = "orderedAt", name = "placedAt",'))
    orders = load_definition(path)
    assert (orders.join_column, orders.day_column) == ("buyer", "placed_at")
    assert (orders.day_field_of(orders.stream).name, orders.day_field_of(orders.output).name) == (
        "orderedAt", "placedAt",
    )  # fmt: skip


def test_a_topic_belongs_to_one_pipeline(tmp_path):
    for name in ("order_detail", "order_copy"):
        (tmp_path / f"{name}.toml").write_text(ORDERS.replace('name = "order_detail"', f'name = "{name}"'))
    with pytest.raises(ContractMismatch, match=r"order_detail.toml \[stream\]: topic order stands in order_copy.toml"):
        load_definitions(tmp_path)


@pytest.mark.parametrize("name", ["generation", "publication", "recorded", "site", "batch", "pg_class", "select"])
def test_a_name_that_the_database_has_is_refused(tmp_path, name):
    path = tmp_path / f"{name}.toml"
    path.write_text(ORDERS.replace('name = "order_detail"', f'name = "{name}"', 1), encoding="utf-8")
    with pytest.raises(ContractMismatch, match=f'{name}.toml: name = "{name}": .*; give the pipeline another name'):
        load_definition(path)
