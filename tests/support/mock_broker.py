"""librdkafka's own mock brokers: real sockets, an answer of any kind to the next requests, and no log to read."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import files

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22  # Kafka's numbers of its calls

_PRODUCER = 0
_BROKERS = 2


def _library() -> ctypes.CDLL:
    """The library that confluent-kafka itself uses."""
    [path] = [str(file.locate()) for file in files("confluent-kafka") or () if file.name.startswith("librdkafka-")]
    library = ctypes.CDLL(path)
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_new.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    library.rd_kafka_destroy.argtypes = (ctypes.c_void_p,)
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.argtypes = (ctypes.c_void_p, ctypes.c_int)
    library.rd_kafka_mock_cluster_destroy.argtypes = (ctypes.c_void_p,)
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = (ctypes.c_void_p,)
    library.rd_kafka_mock_push_request_errors_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int16,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int),
    )
    library.rd_kafka_mock_clear_request_errors.argtypes = (ctypes.c_void_p, ctypes.c_int16)
    library.rd_kafka_mock_topic_create.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
    library.rd_kafka_mock_topic_set_error.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    library.rd_kafka_mock_partition_set_leader.argtypes = (
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
    )
    library.rd_kafka_mock_broker_set_down.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    library.rd_kafka_mock_broker_set_up.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    return library


class MockBrokers:
    """A running mock cluster of two brokers, 1 and 2."""

    def __init__(self, library: ctypes.CDLL, cluster: int) -> None:
        self._library = library
        self._cluster = cluster

    @property
    def bootstrap_servers(self) -> str:
        servers: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return servers.decode()

    def make_topic(self, topic: str, partitions: int) -> None:
        """All its partitions are led by broker 1."""
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0
        for partition in range(partitions):
            self.lead(topic, partition, broker=1)

    def fail_topic(self, topic: str, code: int) -> None:
        """Every metadata request for the topic is answered with this error; 0 mends it."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def answer(self, request: int, codes: Sequence[int]) -> None:
        """The next requests of this kind are answered with these errors, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(codes), array)

    def answer_as_usual(self, request: int) -> None:
        """Forget the errors that are left of `answer`."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """The partition is led by that broker from now on."""
        assert self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker) == 0

    def stop(self, broker: int) -> None:
        """It takes no connections; the partitions that it leads have nobody else."""
        assert self._library.rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def start(self, broker: int) -> None:
        """It takes connections again."""
        assert self._library.rd_kafka_mock_broker_set_up(self._cluster, broker) == 0


@contextmanager
def mock_brokers() -> Iterator[MockBrokers]:
    """A mock cluster for the block, in threads of this process."""
    library = _library()
    reason = ctypes.create_string_buffer(512)
    client = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), reason, len(reason))
    assert client, reason.value
    cluster = library.rd_kafka_mock_cluster_new(client, _BROKERS)
    try:
        yield MockBrokers(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)
