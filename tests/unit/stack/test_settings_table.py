"""The table of settings has each setting once, and the files that are written from it."""

from include.runtime import kinds
from include.runtime.environment_reader import Setting, settings_of
from include.runtime.settings import OTEL, Settings
from stack.settings_table import SECTIONS, is_setting, of_compose, of_kubernetes, page, with_settings

PRODUCT = [each for section in SECTIONS for each in section.product]


def test_each_setting_of_a_process_is_in_one_section():
    named = [each.variable for section in SECTIONS for each in section.settings]
    assert len(named) == len(set(named))
    assert {each.variable for each in (*settings_of(Settings), *OTEL)} <= {each.variable for each in PRODUCT}


def test_who_reads_a_setting_is_said():
    assert [each.variable for section in SECTIONS for each in section.settings
            if not (each.reader or section.reader)] == []  # fmt: skip


def test_lines_between_the_marks_are_written_and_those_by_hand_stay():
    marks = (
        "# written by `python -m stack.export`, from the table of settings\n  old\n  # end of the written lines\nlast\n"
    )
    text = with_settings(f"a:\n  GATEWAY_PORT: by hand\n  {marks}", lambda setting: setting.variable)
    written = [line.strip() for line in text.splitlines()]
    assert written[:2] + written[-2:] == ["a:", "GATEWAY_PORT: by hand", "# end of the written lines", "last"]
    assert written[3:-2] == [
        each.variable for each in PRODUCT if each.variable != "GATEWAY_PORT" and not each.kind.is_secret
    ]
    assert with_settings(text, lambda setting: setting.variable) == text


def test_a_deployment_gets_a_setting_from_where_it_stands():
    for more, compose, kubernetes in (
        ({}, "${X:-}", ""),
        ({"env": True}, "${X:?not in .env, see docs/deployment/compose.md}", "5"),
        ({"env": "1"}, '"5"', "5"),  # the local stack's own value
        ({"team": True}, "${TEAM_X:-}", ""),
        ({"env": True, "container": "9"}, '"9"', "9"),
    ):
        setting = Setting("X", kinds.whole(), 5, "", **more)
        assert (of_compose(setting), of_kubernetes(setting)) == (f"X: {compose}", f"X={kubernetes}")


def test_the_page_has_the_defaults_of_both():
    text = page("# Settings\n\nBy hand.\n\n## Old\n", "image: ${KAFKA_IMAGE:-apache/kafka:1}")
    assert text.startswith("# Settings\n\nBy hand.\n\n## ")
    assert "## Old" not in text
    assert "| `KAFKA_IMAGE` | `apache/kafka:1` |" in text
    assert "| `KAFKA_REPLICATION_FACTOR` | `3`; `.env`: `1` | a whole number from 1 to 1000 |" in text
    assert "| `DB_BATCH_PASSWORD` | made with `.env` | a text, secret |" in text


def test_a_name_is_a_setting_with_a_prefix_and_in_a_file_if_it_is_secret():
    for name in ("GATEWAY_PORT", "ORDER_DETAIL__GATEWAY_PORT", "DB_BATCH_PASSWORD_FILE", "TEAM_DATABASE_HOST",
                 "TEAM_KAFKA_SASL_PASSWORD_FILE", "TEAM_ORDER_DETAIL_ARCHIVE_DIR"):  # fmt: skip
        assert is_setting(name)
    for name in ("GATEWAY_PORTS", "GATEWAY_PORT_FILE", "TEAM_GATEWAY_PORT", "ORDER_DETAIL_GATEWAY_PORT"):
        assert not is_setting(name)
