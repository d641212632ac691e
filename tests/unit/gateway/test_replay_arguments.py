"""Arguments of `pipeline gateway replay` that would do something else than was meant are refused."""

import pytest

from include.runtime.settings import Settings
from pipeline.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--give-up", ""], "Invalid value for '--give-up': blank"),
        (["--give-up", "  "], "Invalid value for '--give-up': blank"),
        (["--retry-refused", "--id", "3"], "--id: only with --give-up"),
        (["--id", "3"], "--id: only with --give-up"),
        (["--move-to-cluster", ""], "Invalid value for '--move-to-cluster'"),
        (["--salvage", "f", "--list-refused"], "--salvage and --list-refused: give one of them"),
    ],
)
def test_refused_before_anything_is_read(arguments, message, monkeypatch, capsys, caplog):
    monkeypatch.setattr(Settings, "from_environment", lambda: pytest.fail("the arguments were taken"))
    assert main(["gateway", "replay", *arguments]) == 2
    assert message in capsys.readouterr().err + caplog.text
