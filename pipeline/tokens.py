"""`pipeline gateway tokens`: the file with the hashes of the tokens of clients."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from include.contracts.pipelines import RAW_TOPICS
from pipeline.group import Group, at_most_one

if TYPE_CHECKING:
    from include.gateway.auth.token_file import Entry

    Change = Callable[[Sequence[Entry]], Sequence[Entry]]


@click.group(cls=Group)
@click.option("--file", type=click.Path(path_type=Path), envvar="GATEWAY_TOKENS_FILE", metavar="FILE",
              help="The tokens file (default: GATEWAY_TOKENS_FILE).")  # fmt: skip
@click.pass_context
def tokens(ctx: click.Context, file: Path | None) -> None:
    """Edit the tokens file, or list its entries.

    A running gateway reloads the file on SIGHUP. Exit codes: 0 done; 78 the file or an argument is wrong.
    """
    ctx.obj = file


@tokens.command()
@click.argument("name")
@click.option(
    "--topic", "topics", multiple=True, type=click.Choice(list(RAW_TOPICS)), help="May send this topic's data."
)
@click.option("--all-topics", is_flag=True, help="May send every topic's data.")
@click.option("--admin", is_flag=True, help="May see and replay the fallback store.")
@click.pass_obj
def add(file: Path | None, name: str, topics: tuple[str, ...], all_topics: bool, admin: bool) -> None:
    """Create a token and print it once."""
    from include.gateway.auth import token_file

    at_most_one(topic=topics, all_topics=all_topics)
    allowed = (token_file.EVERY_TOPIC,) if all_topics else tuple(dict.fromkeys(topics))
    token = token_file.new_token()
    entry = token_file.Entry(name, (token_file.digest(token),), allowed, admin)
    _change(file, lambda entries: token_file.add(entries, entry), making=True)
    _show(name, token)


@tokens.command()
@click.argument("name")
@click.pass_obj
def rotate(file: Path | None, name: str) -> None:
    """Create a second token beside the first.

    Prints it once: give it to the client.
    """
    from include.gateway.auth import token_file

    token = token_file.new_token()
    _change(file, lambda entries: token_file.rotate(entries, name, token_file.digest(token)))
    _show(name, token)


@tokens.command()
@click.argument("name")
@click.pass_obj
def retire(file: Path | None, name: str) -> None:
    """Revoke the older of two tokens.

    Run it when the client uses the newer one.
    """
    from include.gateway.auth import token_file

    _change(file, lambda entries: token_file.retire(entries, name))


@tokens.command()
@click.argument("name")
@click.pass_obj
def remove(file: Path | None, name: str) -> None:
    """Revoke all tokens of that name."""
    from include.gateway.auth import token_file

    _change(file, lambda entries: token_file.remove(entries, name))


@tokens.command("list")
@click.pass_obj
def list_entries(file: Path | None) -> None:
    """Print names and scopes, no secrets."""
    from include.gateway.auth import token_file

    for entry in token_file.read(_required(file)):
        scopes = [f"topic {each}" for each in entry.topics if each != token_file.EVERY_TOPIC]
        scopes += ["every topic"] * (token_file.EVERY_TOPIC in entry.topics) + ["admin"] * entry.admin
        print(f"{entry.name:<24} {len(entry.sha256)} valid   {', '.join(scopes)}")


def _change(file: Path | None, change: "Change", making: bool = False) -> None:
    """Write the file with the change. With `making`, a file that does not exist has no entries."""
    from include.gateway.auth import token_file

    path = _required(file)
    with token_file.locked(path):
        token_file.write(path, change(() if making and not path.exists() else token_file.read(path)))
    print(f"{path} is written; send SIGHUP to a running gateway to reload it", file=sys.stderr)


def _show(name: str, token: str) -> None:
    """Print a token, after the file has it, so that every printed token is valid."""
    print(f"token {name}, printed only once:", file=sys.stderr)
    print(token)


def _required(file: Path | None) -> Path:
    from include.contracts.errors import ConfigurationError

    if file is None:
        raise ConfigurationError("GATEWAY_TOKENS_FILE is not set; name the file with --file")
    return file
