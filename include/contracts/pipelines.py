"""The pipelines that this installation has definitions of, their topics, and the one that the site's API writes to."""

from collections.abc import Mapping

from include.contracts.definition import SITE_PIPELINE, Definition, definitions_folder
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


BOARD_DETAIL_PIPELINE = PIPELINES[SITE_PIPELINE]
MEMBER, BOARD = BOARD_DETAIL_PIPELINE.table, BOARD_DETAIL_PIPELINE.stream
BOARD_DETAIL = BOARD_DETAIL_PIPELINE.output
