"""Does Spark's checkpoint agree with the offset ledger? The ledger decides."""

import json
from pathlib import Path

from include.adapters.kafka_offsets import Offsets
from include.errors import CheckpointAhead


def committed_offsets(checkpoint: Path, topic: str) -> Offsets | None:
    """The offsets up to which the checkpoint's last committed batch went; None for a new checkpoint."""
    batches = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        return None
    lines = (checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()
    return {int(partition): offset for partition, offset in json.loads(lines[2])[topic].items()}


def refuse_checkpoint_ahead(checkpoint: Path, topic: str, ledger: Offsets) -> None:
    """Raise CheckpointAhead when the checkpoint believes more was served than the ledger knows: it would be skipped.

    The other way round is no harm: what the ledger has already is not written twice.
    """
    committed = committed_offsets(checkpoint, topic) or {}
    ahead = {p: (offset, ledger.get(p, 0)) for p, offset in committed.items() if offset > ledger.get(p, 0)}
    if ahead:
        raise CheckpointAhead(
            f"partition: (checkpoint, ledger) = {ahead}; the database is older than the checkpoint. Delete the folder "
            f"{checkpoint} to go on from the ledger",
            topic=topic,
        )
