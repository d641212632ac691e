"""Creates the topics of the contracts: `python -m stack.create_topics`."""

import argparse
import logging
import sys

from include.gateway.fallback.cluster_file import require_own_cluster
from include.kafka.admin import create_topics
from include.kafka.audit import TIMEOUT_S
from include.runtime.command import as_command
from include.runtime.settings import Settings

log = logging.getLogger(__name__)


@as_command
def main() -> int:
    """Create the missing topics.

    Exit codes: 75 the broker does not answer; 78 a topic differs from its contract, or another cluster answers.
    """
    argparse.ArgumentParser(description="Create the missing topics of the pipeline.").parse_args()
    settings = Settings.from_environment()
    # If the gateway's store is on this machine, it shows whether this is the cluster of another stack.
    require_own_cluster(settings.kafka.connection, [settings.gateway.fallback_dir], TIMEOUT_S)
    created = create_topics(settings.kafka)
    log.info("topics created: %s", ", ".join(created) or "none, all exist as the contract says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
