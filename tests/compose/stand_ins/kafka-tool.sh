#!/bin/sh
# kafka-cluster.sh, kafka-storage.sh, kafka-topics.sh or, under its own name, any class: `kafka-tool.sh CLASS ARGUMENT…`
set -eu
quick="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" # a tool runs for a second
case "${0##*/}" in
    kafka-cluster.sh) class=org.apache.kafka.tools.ClusterTool ;;
    kafka-storage.sh) class=kafka.tools.StorageTool ;;
    kafka-topics.sh) class=org.apache.kafka.tools.TopicCommand ;;
    *) class=$1; quick=; shift ;;
esac
# shellcheck disable=SC2086  # several options
exec java $quick ${KAFKA_HEAP_OPTS:--Xmx256m} -Dlog4j2.configurationFile=/opt/kafka/kafka_log4j2.xml -cp '/opt/kafka/libs/*' "$class" "$@"
