#!/usr/bin/env bash
# confluent-kafka 2.16.1: a `KafkaError` is no exception, and Python raises it all the same. Some results have errors of
# this class and not of `KafkaException`: `Message.error()`, and `errors` of `AdminClient.list_consumer_groups`. Whoever
# raises one gets no `TypeError`, as for any other object. The error then passes `except Exception` and
# `except BaseException`, because its class derives from `object` alone; only `except KafkaError`, a bare `except` and
# `finally` see it. So it ends a process that handles every exception. Raise `KafkaException(error)`.
#
# Seen: "KafkaError derives from object; raised: passes Exception, passes BaseException, caught by KafkaError".
# Fails if another version is installed, if the class has another base, or if another clause catches it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1
cat > "$folder/errors.py" <<'PYTHON'
import confluent_kafka
from confluent_kafka import KafkaError

assert confluent_kafka.__version__ == "2.16.1"
bases = KafkaError.__mro__[1:]
print("KafkaError derives from", *(base.__name__ for base in bases), end="; raised")
for separator, caught in ((":", Exception), (",", BaseException), (",", KafkaError)):
    try:
        try:
            raise KafkaError(KafkaError._ALL_BROKERS_DOWN)
        except caught:
            print(f"{separator} caught by {caught.__name__}", end="")
    except:  # noqa: E722
        print(f"{separator} passes {caught.__name__}", end="")
print()
PYTHON
seen=$("$folder/venv/bin/python" "$folder/errors.py")
echo "$seen"
[[ $seen == "KafkaError derives from object; raised: passes Exception, passes BaseException, caught by KafkaError" ]]
