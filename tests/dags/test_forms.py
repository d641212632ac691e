"""Every field of every form with hostile values: each is refused by the form, or reaches the tasks as it is."""

import math
from unittest.mock import Mock

import pytest

from include.airflow_support.defaults import DIGITS, REASON, FormError, require_reason, require_same_key
from include.integrity.jobs import SITE_BASES
from tests.dags.rendering import DAY, rendered, submit, texts
from tests.support.messages import KEYS_DIFFER, NO_REASON

MARK = "an unusual reason"
INVALID = "Invalid input for param"
FORMS = {
    "nightly_rebuild": {"catch_up_timeout_s": 77},
    "reprocess_days": {
        "from": DAY, "to": DAY, "dry_run": False, "source": "archive", "accept_vanishing": False, "reason": MARK,
        "catch_up_timeout_s": 77,
    },
    "undo_day": {"day": DAY, "action": "undo", "to": 77, "dry_run": False, "reason": MARK},
    "reconcile_sources": {"since": DAY, "dry_run": False, "reason": MARK},
    "forget_member": {"key": "77", "key_again": "77", "dry_run": False, "reason": MARK},
}  # fmt: skip
RUN_TYPES = {"nightly_rebuild": "backfill"}
ONE_LINE = (
    "'; DROP TABLE site.member; --", '" OR ""="', "$(touch /tmp/forms)", "`id`", "a; rm -rf /", "a && b | c > d",
    "--conf spark.master=yarn", "--execute", "-c x", "%(day)s %s", "{{ 7 * 7 }}", "{% raw %}",
    "{{ params }} {{ conn.x }}",
    "{# gone #}", "${HOME}", "\\u0000\\n", "../../etc/passwd", "<img src=x onerror=alert(1)>", "하늘 😀 \u202eabc",
    "9" * 500, "x" * 500,
)  # fmt: skip
REFUSED_TEXTS = (
    "", "ab", "   ", "\u3000\u3000\u3000", "a\nb", "two\n", "a\r\nb", "a\0b", "a\x1b[31m", "a\ud800b", "a\u2028b",
    "x" * 501, "9" * 5000, "x" * 100_000,
)  # fmt: skip
OTHER_TYPES = (
    None,
    True,
    0,
    1,
    -1,
    2**63,
    -(2**63) - 1,
    10**4000,
    7.5,
    1e308,
    math.inf,
    math.nan,
    [],
    [MARK],
    {},
    {"a": 1},
)
FIELDS = [(dag_id, field) for dag_id, form in FORMS.items() for field in form]


def outcome(dag, conf):
    """The values of the run, or None and why they are refused."""
    try:
        return submit(dag, conf), ""
    except ValueError as exc:
        return None, str(exc)


def all_texts(dag, conf):
    """The text of each template of each task."""
    run_type = RUN_TYPES.get(dag.dag_id, "manual")
    return [
        text
        for each in dag.tasks
        for task in [rendered(each, run_type, conf)]
        for name in task.template_fields
        for text in texts(getattr(task, name))
    ]


def test_every_field_of_every_form_is_here(dag_bag):
    fields = {dag_id: {*dag.params} for dag_id, dag in dag_bag.dags.items() if dag.params}
    for dag_id, form in FORMS.items():
        for suffix in [""] if dag_id in SITE_BASES else ["", "_order_detail"]:
            assert fields.pop(dag_id + suffix) == {*form}
    assert fields == {}


@pytest.mark.parametrize(("dag_id", "field"), FIELDS)
def test_a_value_is_refused_with_its_field_or_is_the_text_that_it_is(dag_bag, dag_id, field):
    dag, form = dag_bag.dags[dag_id], FORMS[dag_id]
    before = all_texts(dag, submit(dag, form))
    for value in (*ONE_LINE, *REFUSED_TEXTS, *OTHER_TYPES):
        accepted, refusal = outcome(dag, form | {field: value})
        if accepted is None:
            assert f"{INVALID} {field}: " in refusal
        elif value is None:  # of an optional field
            assert "null" in dag.params.get_param(field).schema["type"]
        else:
            assert type(value) is type(form[field]), value
            if value in ONE_LINE:
                assert all_texts(dag, accepted) == [text.replace(MARK, value) for text in before]


@pytest.mark.parametrize("dag_id", ["reprocess_days", "undo_day", "reconcile_sources", "forget_member"])
def test_a_reason_is_one_line_of_printable_text(dag_bag, dag_id):
    for value in ONE_LINE:
        assert submit(dag_bag.dags[dag_id], FORMS[dag_id] | {"reason": value})["reason"] == value
    for value in REFUSED_TEXTS:
        with pytest.raises(ValueError, match=f"^{INVALID} reason: '{REASON}' was expected\n"):
            submit(dag_bag.dags[dag_id], FORMS[dag_id] | {"reason": value})


@pytest.mark.parametrize("dag_id", ["reprocess_days", "undo_day", "reconcile_sources", "forget_member"])
def test_a_form_is_a_dry_run_by_default_and_needs_a_reason(dag_bag, dag_id):
    form = {name: value for name, value in FORMS[dag_id].items() if name != "dry_run"}
    assert submit(dag_bag.dags[dag_id], form)["dry_run"] is True

    del form["reason"]
    if dag_id == "reconcile_sources":  # its nightly runs have none
        assert submit(dag_bag.dags[dag_id], form)["reason"] is None
        with pytest.raises(FormError, match=f"reason=None: {NO_REASON}"):
            require_reason(None)
    else:
        with pytest.raises(ValueError, match="reason"):
            submit(dag_bag.dags[dag_id], form)


@pytest.mark.parametrize(("is_dry_run", "flag"), [(True, "--no-execute"), (False, "--execute")])
def test_a_person_is_forgotten_by_one_job_with_the_values_of_the_form(dag_bag, is_dry_run, flag):
    reason = "--execute $(id) {{ 7 * 7 }}"
    conf = FORMS["forget_member"] | {"key": "-9007199254740993", "reason": reason, "dry_run": is_dry_run}
    task = rendered(dag_bag.dags["forget_member_order_detail"].get_task("forget"), "manual", conf)

    by = "--by=operator, forget_member_order_detail a-run"
    assert task.application_args == ["--key=-9007199254740993", f"--reason={reason}", by, flag]
    assert task.pool == "rebuild"


@pytest.mark.parametrize("key", [9007199254740993, 7, 7.0, "7.0", "1e3", "07", " 7", "-0", "", "9" * 20, "7; --", None])
def test_a_key_that_is_not_written_in_digits_is_refused_since_a_browser_would_round_a_number(dag_bag, key):
    why = f"'{DIGITS}' was expected" if isinstance(key, str) else "is not of type 'string'"
    with pytest.raises(ValueError, match=f"^{INVALID} key: .*{why}\n"):
        submit(dag_bag.dags["forget_member"], FORMS["forget_member"] | {"key": key})


def test_a_key_is_typed_twice(dag_bag):
    require_same_key("7", "7")
    with pytest.raises(FormError, match=f"key_again='8': key=7 {KEYS_DIFFER}"):
        require_same_key("7", "8")
    with pytest.raises(FormError, match=r"key='9223372036854775808': not from -9223372036854775808 to 92"):
        require_same_key("9223372036854775808", "9223372036854775808")
    assert "forget" in dag_bag.dags["forget_member"].get_task("confirm").get_flat_relative_ids(upstream=False)
    assert dag_bag.dags["forget_member"].get_task("confirm").upstream_task_ids == set()


@pytest.mark.parametrize(("run_type", "is_dry_run"), [("scheduled", False), ("manual", True)])
def test_the_night_publishes_what_the_form_would_only_count(dag_bag, monkeypatch, run_type, is_dry_run):
    from include.airflow_support import steps
    from include.integrity.days import gateways

    defaults = {"since": None, "dry_run": True, "reason": "why" if run_type == "manual" else None}
    task = rendered(dag_bag.dags["reconcile_sources"].get_task("reconcile"), run_type, defaults)
    scopes = []
    monkeypatch.setattr(steps, "task_settings", Mock())
    monkeypatch.setattr(steps, "batch_settings", Mock())
    monkeypatch.setattr(gateways, "replay_fallback", Mock())
    monkeypatch.setattr(steps, "reconcile_sources", lambda _, scope: scopes.append(scope) or [])

    assert task.python_callable(*task.op_args) == []
    assert [scope.dry_run for scope in scopes] == [is_dry_run]
