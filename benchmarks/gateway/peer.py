"""The peer: a typical hand-written gateway with aiohttp and confluent-kafka. `peer.py PORT BOOTSTRAP TOPIC`.

It responds with 204 once the broker has acknowledged the event, or all events of an array, and with 503 otherwise. It
has no store, no schema, no tokens and no limits.
"""

import asyncio
import sys
import threading

import orjson
from aiohttp import web
from confluent_kafka import KafkaError, Message, Producer


class Peer:
    """One producer, polled by a thread; delivery reports reach the event loop in batches."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "snappy",
                "linger.ms": 2,
                "partitioner": "murmur2_random",
            }
        )
        self._lock = threading.Lock()
        self._reports: list[tuple[asyncio.Future[KafkaError | None], KafkaError | None]] = []

    async def start(self, _application: web.Application) -> None:
        """Start the polling thread."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._poll, daemon=True).start()

    async def post(self, request: web.Request) -> web.Response:
        """Handle one event, or an array of events."""
        body = await request.read()
        try:
            parsed = orjson.loads(body)
        except ValueError:
            return web.Response(status=400)
        if isinstance(parsed, list):
            has_failed = any(await asyncio.gather(*[self._send(orjson.dumps(event)) for event in parsed]))
        else:
            has_failed = await self._send(body) is not None
        return web.Response(status=503 if has_failed else 204)

    def _send(self, event: bytes) -> "asyncio.Future[KafkaError | None]":
        future: asyncio.Future[KafkaError | None] = self._loop.create_future()

        def report(error: KafkaError | None, _message: Message) -> None:
            with self._lock:
                self._reports.append((future, error))
                if len(self._reports) == 1:
                    self._loop.call_soon_threadsafe(self._settle)

        self._producer.produce(self._topic, event, on_delivery=report)
        return future

    def _settle(self) -> None:
        with self._lock:
            reports, self._reports = self._reports, []
        for future, error in reports:
            if not future.done():
                future.set_result(error)

    def _poll(self) -> None:
        while True:
            self._producer.poll(0.1)


def main(port: int, bootstrap_servers: str, topic: str) -> None:
    """Serve until the process is killed."""
    peer = Peer(bootstrap_servers, topic)
    application = web.Application()
    application.router.add_post("/topics/{topic}/events", peer.post)
    application.on_startup.append(peer.start)
    web.run_app(application, host="127.0.0.1", port=port, access_log=None, print=None)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
