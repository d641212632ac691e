"""Partitions of topics, offsets in them, and ranges of offsets."""

from dataclasses import dataclass

Partition = tuple[str, int]  # topic, number of the partition; -1 for a topic that does not exist yet
Offsets = dict[int, int]  # partition → offset


@dataclass(frozen=True)
class OffsetRange:
    """`start <= offset < end` in each partition of a topic. A partition that `start` does not name begins at 0."""

    start: Offsets
    end: Offsets

    @property
    def count(self) -> int:
        """Number of offsets. There may be fewer records, since transaction markers take offsets too."""
        return sum(end - self.start.get(partition, 0) for partition, end in self.end.items())

    def holds(self, partition: int, offset: int) -> bool:
        """True if the offset is in the range."""
        return self.start.get(partition, 0) <= offset < self.end.get(partition, 0)

    @property
    def at(self) -> dict[str, list[int]]:
        """The range in its JSON form: partition → [start, end]."""
        return {str(partition): [self.start.get(partition, 0), end] for partition, end in self.end.items()}

    def is_at(self, at: dict[str, list[int]]) -> bool:
        """True if this range starts where the range `at`, in JSON form, starts."""
        return {p: start for p, (start, _) in self.at.items()} == {p: start for p, (start, _) in at.items()}

    def resumed(self, at: dict[str, list[int]]) -> "OffsetRange":
        """Return the range with this one's start and the ends of `at`, in JSON form.

        A topic grows in each partition, so `cut` of a grown range would give other first records.
        """
        return OffsetRange(self.start, {int(partition): end for partition, (_, end) in at.items()})

    def cut(self, count: int) -> "tuple[OffsetRange, OffsetRange]":
        """Split the range into its first `count` offsets, partition by partition, and the rest."""
        middle: Offsets = {}
        for partition, end in sorted(self.end.items()):
            begin = self.start.get(partition, 0)
            middle[partition] = begin + min(end - begin, count)
            count -= middle[partition] - begin
        return OffsetRange(self.start, middle), OffsetRange(middle, self.end)
