"""The pipelines that this installation has definitions of, and their topics."""

import os
from collections.abc import Mapping
from pathlib import Path

from include.contracts.definition import Definition
from include.contracts.definition_file import FOLDER, load_definitions
from include.contracts.topics import Topic

# DEFINITIONS_DIR names another folder, in which board_detail.toml is too: the site's API has its topics.
PIPELINES: Mapping[str, Definition] = load_definitions(Path(os.environ.get("DEFINITIONS_DIR") or FOLDER))

TOPICS: Mapping[str, Topic] = {
    topic.name: topic for each in PIPELINES.values() for topic in (each.table, each.stream, each.output)
}
# Topics that clients may send to through the gateway. Only a pipeline writes its output.
RAW_TOPICS: Mapping[str, Topic] = {
    topic.name: topic for each in PIPELINES.values() for topic in (each.table, each.stream)
}
