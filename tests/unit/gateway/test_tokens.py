"""The gateway's tokens: who may do what, the file of hashes, and the command that keeps it."""

import json
import logging
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import RAW_TOPICS
from include.gateway.auth import token_file
from include.gateway.auth.token_file import Entry, digest
from include.gateway.auth.tokens import Tokens
from include.gateway.http.message import Fault
from stack import env_file
from stack.layout import Layout, StackError
from stack.run_service import prepare
from tests.support.messages import NO_TOKENS_FILE

ROOT = Path(__file__).resolve().parents[3]

TOKENS = Tokens(
    [
        Entry("boards-only", (digest("b"),), ("board",)),
        Entry("all", (digest("new"), digest("old")), ("*",)),
        Entry("operator", (digest("o"),), admin=True),
    ]
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens.json"


def command(path, *arguments, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "pipeline", "gateway", "tokens", "--file", str(path), *arguments],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), **(environment or {})}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def refusal(tokens, authorization, access, topic=None):
    with pytest.raises(Fault) as caught:
        tokens.require(authorization, access, topic)
    return caught.value


# ------------------------------------------------------------------------------------------------------------- checking


@pytest.mark.parametrize(
    ("authorization", "access", "topic", "name"),
    [
        (b"Bearer b", "data", "board", "boards-only"),
        (b"bearer b", "data", "board", "boards-only"),
        (b"Bearer  b", "data", "board", "boards-only"),
        (b"BEARER    b", "data", "board", "boards-only"),
        (b"Bearer b", "data", None, "boards-only"),
        (b"Bearer new", "data", "board", "all"),
        (b"Bearer old", "data", "member", "all"),
        (b"Bearer o", "admin", None, "operator"),
    ],
)
def test_a_token_is_known_by_its_name_where_it_is_good(authorization, access, topic, name):
    assert TOKENS.require(authorization, access, topic) == name


@pytest.mark.parametrize(
    "authorization",
    [b"", b"Bearer", b"Bearer ", b"Bearer x", b"Basic b", b"b", b"Bearer  ", b"Bearer b ", b"Bearer B", b"\xff \xff"],
)
@pytest.mark.parametrize(("access", "topic"), [("data", "board"), ("admin", None)])
def test_no_token_or_an_unknown_one_is_401_with_the_scheme(authorization, access, topic):
    fault = refusal(TOKENS, authorization, access, topic)
    assert fault.status == 401
    has_token = authorization[:7].lower() == b"bearer " and authorization[7:].strip()
    challenge = b'Bearer error="invalid_token", error_description="no valid token"' if has_token else b"Bearer"
    assert fault.headers == ((b"www-authenticate", challenge),)
    assert fault.details[0].remedy


@pytest.mark.parametrize(
    ("authorization", "access", "topic", "problem"),
    [
        (b"Bearer b", "data", "member", "this token is not for topic member"),
        (b"Bearer b", "admin", None, "this token is not for the admin calls"),
        (b"Bearer new", "admin", None, "this token is not for the admin calls"),
        (b"Bearer o", "data", "board", "this token is not for topic board"),
        (b"Bearer o", "data", None, "this token is not for data"),
    ],
)
def test_a_token_good_for_other_calls_is_403_and_says_which_is_needed(authorization, access, topic, problem):
    fault = refusal(TOKENS, authorization, access, topic)
    assert (fault.status, fault.error) == (403, problem)
    assert fault.details[0].remedy


def test_without_a_file_everybody_may_do_everything():
    tokens = Tokens.of(None)
    assert tokens.is_open
    assert tokens.require(b"", "admin") == tokens.require(b"Bearer x", "data", "board") == ""
    assert tokens.reload() is False


def test_a_file_without_tokens_lets_nobody_in(path):
    token_file.write(path, [])
    tokens = Tokens.of(path)
    assert not tokens.is_open
    assert refusal(tokens, b"", "data", "board").status == 401


@pytest.mark.parametrize("authorization", [b"", b"Bearer ", b"Basic x", b"Bearer"])
def test_the_hash_of_nothing_lets_nobody_in(authorization):
    assert refusal(Tokens([Entry("empty", (digest(""),), ("*",))]), authorization, "data", "board").status == 401


def test_the_hash_of_a_token_is_no_token():
    assert refusal(TOKENS, b"Bearer " + digest("b").encode(), "data", "board").status == 401


# --------------------------------------------------------------------------------------------------------------- reload


def test_a_reload_takes_on_what_changed(path):
    token_file.write(path, [Entry("one", (digest("1"),), ("board",))])
    tokens = Tokens.of(path)
    token_file.write(path, [Entry("two", (digest("2"),), ("board",))])
    assert tokens.require(b"Bearer 1", "data", "board") == "one"
    assert tokens.reload()
    assert tokens.require(b"Bearer 2", "data", "board") == "two"
    assert refusal(tokens, b"Bearer 1", "data", "board").status == 401


@pytest.mark.parametrize("content", [None, "nonsense", "[{}]"])
def test_a_file_that_cannot_be_used_leaves_the_tokens_as_they_were(path, content, caplog):
    token_file.write(path, [Entry("one", (digest("1"),), ("board",))])
    tokens = Tokens.of(path)
    path.unlink() if content is None else path.write_text(content)
    assert tokens.reload() is False
    assert tokens.require(b"Bearer 1", "data", "board") == "one"
    assert str(path) in caplog.text
    assert "stay as they were" in caplog.text


def test_removing_the_last_token_is_a_reload_that_counts(path):
    token_file.write(path, [Entry("one", (digest("1"),), ("board",))])
    tokens = Tokens.of(path)
    token_file.write(path, token_file.remove(token_file.read(path), "one"))
    assert tokens.reload()
    assert refusal(tokens, b"Bearer 1", "data", "board").status == 401


# ------------------------------------------------------------------------------------------------------------- the file

GOOD = {"name": "a", "sha256": [digest("a")], "topics": ["board"], "admin": False}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({}, "not an array"),
        ([7], "entry 1: not an object"),
        ([GOOD, {**GOOD, "name": "B"}], "entry 2, name"),
        ([GOOD, {"sha256": [digest("b")], "admin": True}], "entry 2, name"),
        ([{**GOOD, "sha256": []}], "entry 'a', sha256"),
        ([{**GOOD, "sha256": [digest(str(n)) for n in range(3)]}], "entry 'a', sha256: give an array of one or two"),
        ([{**GOOD, "sha256": [digest("a").upper()]}], "entry 'a', sha256"),
        ([{**GOOD, "sha256": digest("a")}], "entry 'a', sha256"),
        ([{**GOOD, "sha256": [None]}], "entry 'a', sha256"),
        ([{**GOOD, "topics": ["board-detail"]}], "entry 'a', topics"),
        ([{**GOOD, "topics": "board"}], "entry 'a', topics"),
        ([{**GOOD, "topics": [["board"]]}], "entry 'a', topics"),
        ([{**GOOD, "admin": "yes"}], "entry 'a', admin"),
        ([{**GOOD, "topics": []}], "entry 'a': neither topics nor admin"),
        ([{**GOOD, "topcis": []}], "entry 'a': unknown field 'topcis'"),
        ([GOOD, GOOD], "entry 'a': there are two of that name"),
        ([GOOD, {**GOOD, "name": "b"}], "entry 'b', sha256: the same token is in 'a'"),
        ([{**GOOD, "sha256": [digest("a"), digest("a")]}], "entry 'a', sha256: the same token"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_entry_and_field(path, content, place):
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    with pytest.raises(ConfigurationError) as caught:
        token_file.read(path)
    assert str(caught.value).startswith(f"tokens file {path}: {place}")
    assert digest("a") not in str(caught.value)


NOT_JSON = r"tokens\.json: not JSON in UTF-8"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_named_with_its_file(path, content):
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=NOT_JSON):
        token_file.read(path)


def test_a_missing_file_is_named_with_the_command_that_makes_one(path):
    with pytest.raises(ConfigurationError, match=r"tokens\.json: No such file.*pipeline gateway tokens add"):
        token_file.read(path)


def test_a_file_that_others_may_write_is_refused(path):
    token_file.write(path, [Entry("a", (digest("a"),), ("board",))])
    path.chmod(0o620)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        token_file.read(path)


def test_a_file_that_others_may_read_is_used_with_a_warning(path, caplog):
    token_file.write(path, [Entry("a", (digest("a"),), ("board",))])
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert len(token_file.read(path)) == 1
    assert "can be read by others (0644)" in caplog.text


def test_what_is_written_is_read_again_and_belongs_to_its_owner_alone(path):
    entries = (
        Entry("a", (digest("1"), digest("2")), ("board", "member")),
        Entry("b", (digest("3"),), ("*",), admin=True),
    )
    token_file.write(path, entries)
    assert token_file.read(path) == entries
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_link_to_the_file_stays_a_link(tmp_path, path):
    link = tmp_path / "link.json"
    link.symlink_to(path)
    token_file.write(link, [Entry("a", (digest("a"),), ("board",))])
    assert link.is_symlink()
    assert token_file.read(path) == token_file.read(link)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="Not a directory"):
        token_file.write(tmp_path / "file" / "tokens.json", [])


# -------------------------------------------------------------------------------------------- a deployment's two tokens


def test_the_tokens_of_a_deployment_are_put_into_the_file_once(path):
    assert token_file.ensure(path, "d", "a") == ["token data: added", "token admin: added"]
    before = path.read_bytes()
    assert token_file.ensure(path, "d", "a") == []
    assert path.read_bytes() == before
    tokens = Tokens.of(path)
    assert tokens.require(b"Bearer d", "data", "member") == "data"
    assert tokens.require(b"Bearer a", "admin") == "admin"
    assert refusal(tokens, b"Bearer a", "data", "board").status == 403


def test_a_changed_token_leaves_the_one_before_valid_until_it_is_retired(path):
    token_file.ensure(path, "first", "a")
    [note] = token_file.ensure(path, "second", "a")
    assert "retire" in note
    tokens = Tokens.of(path)
    assert tokens.require(b"Bearer first", "data") == tokens.require(b"Bearer second", "data") == "data"
    token_file.write(path, token_file.retire(token_file.read(path), "data"))
    assert token_file.ensure(path, "second", "a") == []
    tokens.reload()
    assert tokens.require(b"Bearer second", "data") == "data"
    assert refusal(tokens, b"Bearer first", "data").status == 401


def test_of_three_tokens_the_newest_two_stay(path):
    for token in ("first", "second", "third"):
        token_file.ensure(path, token, "a")
    tokens = Tokens.of(path)
    assert tokens.require(b"Bearer third", "data") == tokens.require(b"Bearer second", "data") == "data"
    assert refusal(tokens, b"Bearer first", "data").status == 401


def test_tokens_that_a_person_added_stay(path):
    token_file.write(path, [Entry("partner", (digest("p"),), ("board",))])
    token_file.ensure(path, "d", "a")
    assert [entry.name for entry in token_file.read(path)] == ["partner", "data", "admin"]


@pytest.mark.parametrize(
    ("data", "admin", "message"),
    [("", "a", "GATEWAY_TOKEN is not set"), ("d", "", "GATEWAY_ADMIN_TOKEN is not set"), ("x", "x", "are the same")],
)
def test_tokens_that_are_missing_or_equal_are_refused(path, data, admin, message):
    with pytest.raises(ConfigurationError, match=message):
        token_file.ensure(path, data, admin)
    assert not path.exists()


def test_the_local_gateway_gets_the_file_and_no_token(tmp_path):
    env_file.ensure(tmp_path / ".env")
    settings = env_file.read(tmp_path / ".env")
    settings["GATEWAY_TOKENS_FILE"] = str(tmp_path / "run" / "tokens.json")
    launch = prepare("gateway", Layout.of(state=tmp_path), settings)
    tokens = Tokens.of(Path(launch.variables["GATEWAY_TOKENS_FILE"]))
    assert tokens.require(b"Bearer " + settings["GATEWAY_TOKEN"].encode(), "data", "board") == "data"
    assert tokens.require(b"Bearer " + settings["GATEWAY_ADMIN_TOKEN"].encode(), "admin") == "admin"
    known = [*launch.variables.values(), (tmp_path / "run" / "tokens.json").read_text()]
    for name in ("GATEWAY_TOKEN", "GATEWAY_ADMIN_TOKEN"):
        assert not [text for text in known if settings[name] in text]


def test_a_local_tokens_file_that_is_damaged_is_named(tmp_path):
    env_file.ensure(tmp_path / ".env")
    file = tmp_path / "tokens.json"
    file.write_text("[")
    settings = {**env_file.read(tmp_path / ".env"), "GATEWAY_TOKENS_FILE": str(file)}
    with pytest.raises(StackError, match=NOT_JSON):
        prepare("gateway", Layout.of(state=tmp_path), settings)


def test_an_env_file_from_before_says_how_it_is_completed(tmp_path):
    env_file.ensure(tmp_path / ".env")
    settings = env_file.read(tmp_path / ".env")
    del settings["GATEWAY_TOKENS_FILE"]
    with pytest.raises(StackError, match=r"GATEWAY_TOKENS_FILE is not in \.env: `make up` adds it"):
        prepare("gateway", Layout.of(state=tmp_path), settings)


# ---------------------------------------------------------------------------------------------------------- the command


def token_of(result):
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().encode()


def test_a_token_lives_from_add_to_remove(path):
    first = token_of(command(path, "add", "partner", "--topic", "board"))
    tokens = Tokens.of(path)
    assert tokens.require(b"Bearer " + first, "data", "board") == "partner"
    assert refusal(tokens, b"Bearer " + first, "data", "member").status == 403

    second = token_of(command(path, "rotate", "partner"))
    tokens.reload()
    assert {tokens.require(b"Bearer " + each, "data", "board") for each in (first, second)} == {"partner"}

    assert token_of(command(path, "retire", "partner")) == b""
    tokens.reload()
    assert tokens.require(b"Bearer " + second, "data", "board") == "partner"
    assert refusal(tokens, b"Bearer " + first, "data", "board").status == 401

    assert token_of(command(path, "remove", "partner")) == b""
    tokens.reload()
    assert refusal(tokens, b"Bearer " + second, "data", "board").status == 401


def test_scopes_are_as_asked_for(path):
    command(path, "add", "one", "--topic", "board", "--topic", "board")
    command(path, "add", "all", "--all-topics")
    command(path, "add", "operator", "--admin")
    assert [(e.name, e.topics, e.admin) for e in token_file.read(path)] == [
        ("one", ("board",), False), ("all", ("*",), False), ("operator", (), True)]  # fmt: skip


def test_the_list_shows_names_and_scopes_and_no_secret(path):
    token = token_of(command(path, "add", "partner", "--topic", "board", "--admin")).decode()
    token_of(command(path, "rotate", "partner"))
    shown = command(path, "list").stdout
    assert "partner" in shown
    assert "2 valid" in shown
    assert "topic board, admin" in shown
    assert token not in shown
    assert token not in path.read_text()
    assert digest(token) not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a", "--topic", "board"), "'a' exists already"),
        (("add", "b"), "'b': neither topics nor admin"),
        (("add", "B C", "--admin"), "name: give lower-case letters"),
        (("rotate", "b"), "no token is named 'b'; the names are: a"),
        (("retire", "a"), "'a' has one token only"),
        (("remove", "b"), "no token is named 'b'"),
    ],
)
def test_a_refused_change_says_why_and_changes_nothing(path, arguments, message):
    token_of(command(path, "add", "a", "--topic", "board"))
    before = path.read_bytes()
    result = command(path, *arguments)
    assert (result.returncode, result.stdout) == (78, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == before


def test_a_third_token_is_refused_until_one_is_retired(path):
    entries = (Entry("a", (digest("1"),), ("board",)),)
    entries = token_file.rotate(entries, "a", digest("2"))
    with pytest.raises(ConfigurationError, match="retire a"):
        token_file.rotate(entries, "a", digest("3"))
    assert token_file.retire(entries, "a")[0].sha256 == (digest("2"),)


def test_the_file_of_the_environment_is_the_default(path):
    module = [sys.executable, "-m", "pipeline", "gateway", "tokens", "list"]
    missing = subprocess.run(
        module, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 78
    assert NO_TOKENS_FILE in missing.stderr
    token_file.ensure(path, "d", "a")
    environment = {"PYTHONPATH": str(ROOT), "GATEWAY_TOKENS_FILE": str(path)}
    found = subprocess.run(module, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split()[0] == "data"


def test_two_editors_at_once_lose_no_change(path):
    names = [f"client-{number}" for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda name: command(path, "add", name, "--topic", next(iter(RAW_TOPICS))), names))
    assert [result.returncode for result in results] == [0] * 4
    assert sorted(entry.name for entry in token_file.read(path)) == names
