#!/usr/bin/env bash
# Apache Kafka 4.4.0 (KRaft; 4.1.1 as well): a setting of a topic outlives the topic. A topic gets a setting of its own
# (max.message.bytes=1000) and is deleted. Without a restart, a topic that is made again under the name has the default.
# If the broker was stopped cleanly and started in between, the new topic has the deleted topic's setting, as its own
# (source DYNAMIC_TOPIC_CONFIG), and refuses a record of 5,000 bytes. It is not so if the setting was deleted before the
# topic. On start the broker replays its metadata log into one delta, and the record that removes a topic clears the
# settings of the image before the delta, not those that the delta itself has collected.
#
# Seen: "no restart: 1048588, taken", "restart: 1000 (own), MSG_SIZE_TOO_LARGE", "setting deleted, restart: 1048588, taken".
# Fails if another version is installed, or if one of the three changes. Needs Java 17 or newer; takes two minutes.
set -euo pipefail
folder=$(mktemp -d)
broker=
trap '[ -z "$broker" ] || kill "$broker" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 pyspark==4.2.0
spark=$(echo "$folder"/venv/lib/python3*/site-packages/pyspark/jars)
# pyspark has Ivy, and the Scala library that Ivy leaves out
java -cp "$(echo "$spark"/ivy-*.jar)" org.apache.ivy.Main -cache "$folder/ivy" -dependency org.apache.kafka kafka_2.13 4.4.0 \
    -retrieve "$folder/jars/[artifact]-[revision].[ext]" > "$folder/ivy.log" 2>&1 || { tail -5 "$folder/ivy.log"; exit 1; }
read -r port quorum < <(python3 -c 'import socket
both = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in both))')
cat > "$folder/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$quorum
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$quorum
log.dirs=$folder/data
offsets.topic.replication.factor=1
EOF
classes="$folder/jars/*:$(echo "$spark"/scala-library-*.jar)"
java -cp "$classes" kafka.tools.StorageTool format -t IL4irDsLRYGw9bkmk4v-2w -c "$folder/server.properties" > /dev/null 2>&1

start() {
    java -Xmx400m -cp "$classes" kafka.Kafka "$folder/server.properties" > "$folder/kafka.log" 2>&1 &
    broker=$!
}

cat > "$folder/topics.py" <<'PYTHON'
import sys
import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewTopic

SETTING = "max.message.bytes"
port, step, topic = sys.argv[1:]
client = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
admin = AdminClient(client)


def done(futures):
    return [future.result(60) for future in futures.values()][0]


def set_to(value, operation):
    entry = ConfigEntry(SETTING, value, incremental_operation=operation)
    done(admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[entry])]))


while True:
    try:
        names = admin.list_topics(timeout=60).topics
        break
    except KafkaException:
        time.sleep(1)
if step != "look":
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    set_to("1000", AlterConfigOpType.SET)
    if step == "delete-setting":
        set_to(None, AlterConfigOpType.DELETE)
    done(admin.delete_topics([topic]))
else:
    assert topic not in names
    done(admin.create_topics([NewTopic(topic, 1, 1)]))
    time.sleep(2)
    found = done(admin.describe_configs([ConfigResource("topic", topic)]))[SETTING]
    producer, results = Producer(client), []
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: results.append(error.name() if error else "taken"))
    producer.flush(60)
    own = " (own)" if found.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value else ""
    print(f"{found.value}{own}, {results[0]}")
PYTHON
topics() { "$folder/venv/bin/python" "$folder/topics.py" "$port" "$@"; }

start
topics delete first
one=$(topics look first)
topics delete second
topics delete-setting third
kill "$broker"
wait "$broker" || true
start
two=$(topics look second)
three=$(topics look third)
printf 'no restart: %s\nrestart: %s\nsetting deleted, restart: %s\n' "$one" "$two" "$three"
[ "$one/$two/$three" = "1048588, taken/1000 (own), MSG_SIZE_TOO_LARGE/1048588, taken" ]
