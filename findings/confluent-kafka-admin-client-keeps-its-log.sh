#!/usr/bin/env bash
# confluent-kafka 2.16.1: with the setting `logger`, librdkafka's log lines wait in a queue until somebody calls `poll`
# on the client. Whoever has a producer or consumer calls it anyway. The methods of an AdminClient return futures, which
# end without it. So the client logs nothing, not even why it reaches no broker, until `poll(0)` passes on all lines at
# once. Without `logger` it writes them to standard error at once.
#
# Seen: "after the call failed: 0 lines, after poll(0): 39 lines, without a logger: 40 lines on standard error"; the
# last two numbers vary.
# Fails if another version is installed, if the logger gets a line before `poll`, or if one of the others gets none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1
cat > "$folder/logs.py" <<'PYTHON'
import logging
import socket
import sys

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += 1


lines = Lines()
logger = logging.getLogger("client")
logger.addHandler(lines)
logger.propagate = False

with socket.socket() as closed:  # bound and not listening: connections are refused
    closed.bind(("127.0.0.1", 0))
    settings = {"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"}
    if sys.argv[1:] == ["logger"]:
        settings["logger"] = logger
    client = AdminClient(settings)
    (future,) = client.create_topics([NewTopic("t", 1, 1)], request_timeout=2.0).values()
    try:
        future.result(30)
    except KafkaException as exc:
        assert exc.args[0].name() == "_TIMED_OUT", exc
    before = lines.count
    client.poll(0)
    print(before, lines.count)
    assert confluent_kafka.__version__ == "2.16.1"
PYTHON
read -r before after < <("$folder/venv/bin/python" "$folder/logs.py" logger)
"$folder/venv/bin/python" "$folder/logs.py" > "$folder/out" 2> "$folder/error"
error=$(wc -l < "$folder/error")
echo "after the call failed: $before lines, after poll(0): $after lines," \
    "without a logger: $error lines on standard error"
[[ $before -eq 0 && $after -gt 0 && $error -gt 0 ]]
