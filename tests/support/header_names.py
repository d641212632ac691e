"""Sends a record with a header whose name is not UTF-8, as clients of other languages can; confluent_kafka cannot."""

import ctypes
from pathlib import Path

import confluent_kafka

_PRODUCER, _NO_PARTITION, _COPY = 0, -1, 2
_TOPIC, _VALUE, _KEY, _PARTITION, _FLAGS, _HEADERS, _END = 1, 4, 5, 3, 7, 10, 0  # rd_kafka_vtype_t
_FLUSH_MS = 30_000


def send_with_header_name(
    servers: str, topic: str, key: bytes, value: bytes | None, name: bytes, partition: int = 0
) -> None:
    """Send the record by librdkafka's functions, with a header of this name."""
    client = _library()
    error = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(client.rd_kafka_conf_new())
    for setting, text in ((b"bootstrap.servers", servers.encode()), (b"acks", b"all")):
        assert client.rd_kafka_conf_set(conf, setting, text, error, len(error)) == 0, error.value
    producer = ctypes.c_void_p(client.rd_kafka_new(_PRODUCER, conf, error, len(error)))
    assert producer, error.value
    try:
        headers = ctypes.c_void_p(client.rd_kafka_headers_new(1))
        assert client.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"x", ctypes.c_ssize_t(1)) == 0
        sent = client.rd_kafka_producev(
            producer, _TOPIC, topic.encode(), _PARTITION, ctypes.c_int32(partition), _FLAGS, _COPY,
            _KEY, key, ctypes.c_size_t(len(key)), _VALUE, value, ctypes.c_size_t(len(value or b"")),
            _HEADERS, headers, _END,
        )  # fmt: skip
        assert sent == 0, sent
        assert client.rd_kafka_flush(producer, _FLUSH_MS) == 0
    finally:
        client.rd_kafka_destroy(producer)


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    (path,) = folder.glob("librdkafka-*")
    client = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(client, name).restype = ctypes.c_void_p
    return client
