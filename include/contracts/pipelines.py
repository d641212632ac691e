"""The pipelines that this installation has definitions of, their topics, and the one that the site's API writes to."""

from collections.abc import Mapping

from include.contracts.definition import Definition, definitions_folder
from include.contracts.definition_file import load_definitions
from include.contracts.topics import Topic

PIPELINES: Mapping[str, Definition] = load_definitions(definitions_folder())

TOPICS: Mapping[str, Topic] = {
    topic.name: topic for each in PIPELINES.values() for topic in (each.table, each.stream, each.output)
}
# Topics that clients may send to through the gateway. Only a pipeline writes its output.
RAW_TOPICS: Mapping[str, Topic] = {
    topic.name: topic for each in PIPELINES.values() for topic in (each.table, each.stream)
}

SITE_PIPELINE = PIPELINES[
    "board_detail"
]  # its topics are fed by the tables of the site's API; the default of PIPELINES
MEMBER, BOARD = SITE_PIPELINE.table, SITE_PIPELINE.stream
BOARD_DETAIL = SITE_PIPELINE.output
