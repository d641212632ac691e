"""Writes the contracts for clients and catalogues: `python -m stack.export [--check]`.

They are a JSON Schema per topic, and an AsyncAPI document and an Open Data Contract per pipeline.
"""

import argparse
import json
import sys
from pathlib import Path

from include.contracts.asyncapi import asyncapi
from include.contracts.data_contract import data_contract
from include.runtime.command import as_command

TARGET = Path(__file__).resolve().parents[1] / "docs" / "contracts"


def contract_files() -> dict[str, str]:
    """Return file name → content. Raises ContractMismatch for a wrong definition."""
    from include.contracts.pipelines import PIPELINES, TOPICS  # reads the definitions

    documents = {f"{topic.name}.schema.json": topic.json_schema() for topic in TOPICS.values()}
    for definition in PIPELINES.values():
        documents[f"{definition.name}.asyncapi.json"] = asyncapi(definition)
        documents[f"{definition.name}.odcs.json"] = data_contract(definition)
    return {name: json.dumps(each, indent=2, ensure_ascii=False) + "\n" for name, each in documents.items()}


def drifted(target: Path = TARGET) -> list[str]:
    """Return the names of files that are missing or differ from the contracts."""
    return [
        name
        for name, text in contract_files().items()
        if not (target / name).exists() or (target / name).read_text(encoding="utf-8") != text
    ]


@as_command
def main() -> int:
    """Write the files. With --check, write nothing and return 1 if a file is out of date."""
    parser = argparse.ArgumentParser(description="Write the contracts to docs/contracts.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    if parser.parse_args().check:
        stale = drifted()
        if stale:
            print(f"out of date: {', '.join(stale)}; run: python -m stack.export", file=sys.stderr)
        return 1 if stale else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in contract_files().items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
