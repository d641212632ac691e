"""The site's own API writes members and boards; these are their topics, and the pipeline that joins them."""

from include.contracts.definition import SITE_PIPELINE
from include.contracts.pipelines import PIPELINES

BOARD_DETAIL_PIPELINE = PIPELINES[SITE_PIPELINE]
MEMBER, BOARD = BOARD_DETAIL_PIPELINE.table, BOARD_DETAIL_PIPELINE.stream
BOARD_DETAIL = BOARD_DETAIL_PIPELINE.output
