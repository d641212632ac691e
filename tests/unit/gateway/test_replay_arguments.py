"""Arguments of `pipeline gateway replay` that would do something else than was meant are refused."""

import pytest

from include.gateway import replay
from include.runtime.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--give-up", ""], "argument --give-up: empty"),
        (["--give-up", "  "], "argument --give-up: empty"),
        (["--retry-refused", "--id", "3"], "argument --id: only with --give-up"),
        (["--id", "3"], "argument --id: only with --give-up"),
        (["--move-to-cluster", ""], "argument --move-to-cluster"),
    ],
)
def test_refused_before_anything_is_read(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["replay", *arguments])
    monkeypatch.setattr(Settings, "from_environment", lambda: pytest.fail("the arguments were taken"))
    with pytest.raises(SystemExit) as refused:
        replay.main()
    assert refused.value.code == 2
    assert message in capsys.readouterr().err
