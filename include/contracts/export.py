"""Writes the JSON Schemas of the topics for clients: `python -m include.contracts.export [--check]`."""

import argparse
import json
import sys
from pathlib import Path

from include.contracts.pipelines import TOPICS

TARGET = Path(__file__).resolve().parents[2] / "docs" / "contracts"


def schema_files() -> dict[str, str]:
    """Return file name → content, one JSON Schema per topic."""
    return {
        f"{topic.name}.schema.json": json.dumps(topic.json_schema(), indent=2, ensure_ascii=False) + "\n"
        for topic in TOPICS.values()
    }


def drifted(target: Path = TARGET) -> list[str]:
    """Return the names of files that are missing or differ from the contracts."""
    return [
        name
        for name, text in schema_files().items()
        if not (target / name).exists() or (target / name).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write the schemas. With --check, write nothing and return 1 if a file is out of date."""
    parser = argparse.ArgumentParser(description="Write the topics' JSON Schemas to docs/contracts.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    if parser.parse_args().check:
        stale = drifted()
        if stale:
            print(f"out of date: {', '.join(stale)}; run: python -m include.contracts.export", file=sys.stderr)
        return 1 if stale else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, text in schema_files().items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
