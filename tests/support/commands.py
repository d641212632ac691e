"""The commands of `pipeline`, as its groups have them."""

from collections.abc import Iterator

import click

from pipeline.__main__ import pipeline


def groups_and_commands(
    group: click.Group = pipeline, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every group and command below, by its words: ("gateway", "tokens", "add")."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from groups_and_commands(command, (*words, name))


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group."""
    return ((words, command) for words, command in groups_and_commands() if not isinstance(command, click.Group))
