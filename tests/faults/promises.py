"""What a verdict's promises have in common: each is a list, of where it was broken."""

from dataclasses import dataclass, fields


@dataclass
class Promises:
    """A verdict whose lists are promises; what else it has are counts."""

    @property
    def faults(self) -> dict[str, list[str]]:
        """The promises that were broken."""
        lists = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: found for name, found in lists.items() if isinstance(found, list) and found}
