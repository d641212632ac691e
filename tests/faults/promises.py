"""The base of verdicts: each promise is a list of its violations."""

from dataclasses import dataclass, fields


@dataclass
class Promises:
    """A verdict whose lists are promises; what else it has are counts."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """The promises that were broken."""
        lists = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: found for name, found in lists.items() if isinstance(found, list) and found}
