# Stands in for apache/kafka:4.1: the jars of stack/jars.lock on Debian's Java, with paths and users of the official
# image, and configured by the same class of Kafka's.
ARG DEBIAN_IMAGE
FROM ${DEBIAN_IMAGE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --uid 1000 --user-group --create-home appuser \
    && install -d -o appuser -g appuser /opt/kafka/config /opt/kafka/logs /opt/kafka/bin /var/lib/kafka/data \
        /etc/kafka/docker /etc/kafka/secrets /mnt/shared/config
COPY kafka-broker /opt/kafka/libs
COPY kafka_log4j2.xml /opt/kafka/
COPY kafka-run.sh /etc/kafka/docker/run
COPY kafka-tool.sh /opt/kafka/bin/
RUN for name in cluster storage topics; do ln -s kafka-tool.sh /opt/kafka/bin/kafka-$name.sh; done
USER appuser
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/etc/kafka/docker/run"]
