#!/bin/sh
# Has Kafka write server.properties from the variables KAFKA_… and format the data, then becomes the broker.
set -eu
tool=/opt/kafka/bin/kafka-tool.sh
if ! said=$("$tool" kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
    --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config 2>&1); then
    case "$said" in
        *"already formatted"*) ;;
        *) echo "$said" >&2; exit 1 ;;
    esac
fi
exec "$tool" kafka.Kafka /opt/kafka/config/server.properties
