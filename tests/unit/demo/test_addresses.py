import pytest

from demo.story import Narrator, show_addresses
from include.runtime.settings import Settings
from stack import env_file


@pytest.mark.parametrize("is_terminal", [True, False])
def test_passwords_are_shown_on_a_terminal_and_in_no_log(tmp_path, capsys, is_terminal):
    env_file.ensure(tmp_path / ".env")
    environment = env_file.read(tmp_path / ".env")
    show_addresses(environment, Settings.from_environment(environment), Narrator(), is_terminal)
    shown = capsys.readouterr().out
    secrets = [v.variable for v in env_file.lines_of({}) if v.kind.is_secret and callable(v.env)]
    assert ("AIRFLOW_ADMIN_PASSWORD in .env" in shown) is not is_terminal
    assert any(environment[name] in shown for name in secrets) is is_terminal
