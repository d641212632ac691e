"""A group of commands, some of which are imported only when they are asked for; and options that several have."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import click

from include.contracts.errors import LOOK, OK, WrongArguments
from include.runtime.command import Command, author

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Group(click.Group):
    """A group whose commands are of class `Command`. `lazy` names further ones, as module:attribute."""

    command_class = Command

    def __init__(self, *arguments: Any, lazy: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of their definition, lazy ones last."""
        return [*self.commands, *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name; None if there is none."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


def answer(result: Any, as_json: bool) -> int:
    """Print the result of a step as text or as one line of JSON; returns LOOK if a person has to look, else OK."""
    from include.integrity.commands import needs_a_person, text_of

    print(json.dumps(_plain(result), default=str, ensure_ascii=False) if as_json else text_of(result))
    return LOOK if needs_a_person(result) else OK


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(one) for one in result]
    return dataclasses.asdict(result)


def at_most_one(**given: object) -> None:
    """Raise WrongArguments if more than one of these options is given; each name is that of its option."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False, (), "")]
    if len(names) > 1:
        raise WrongArguments(f"{' and '.join(names)}: give one of them")


def not_blank(text: str) -> str:
    """Return the text without spaces around it. Raises BadParameter if nothing is left."""
    if not text.strip():
        raise click.BadParameter("blank; give the reason")
    return text.strip()


def json_option(function: _Function) -> _Function:
    """Add --json, the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Answer as one line of JSON.")(function)


def by_option(function: _Function) -> _Function:
    """Add --by, the argument `made_by`."""
    text = "The author; default: the user and the machine."
    return click.option("--by", "made_by", metavar="WHO", default=author, help=text)(function)


def reason_option(
    required: bool, text: str = "The reason; kept in the day's history."
) -> Callable[[_Function], _Function]:
    """Return what adds --reason, the argument `reason`."""
    return click.option("--reason", required=required, type=not_blank, metavar="WHY", help=text)


def timeout_option(function: _Function) -> _Function:
    """Add --timeout, the argument `timeout_s`."""
    return click.option("--timeout", "timeout_s", type=float, default=300.0, metavar="S", show_default=True,
                        help="Seconds to wait.")(function)  # fmt: skip
