"""Certifies without a gateway, broker or stream."""

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from include.contracts.day import Day
from include.database.named import query
from include.integrity.days.catch_up import SpeedLayerLag
from include.integrity.days.certificate import AskGateways, CatchUp, Certificate, certify
from include.integrity.days.gateways import Unsent
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Settings
from tests.support.pipeline import rows

STORE, OTHER_STORE = "6f3f8f0c-3b0e-4d0b-9a54-0d9f3c7e2b11", "b7d7a3c2-7a1f-4f5e-8a55-52a0a3c0c8de"


def nothing_waits(_settings: Settings) -> Mapping[str, Unsent]:
    """No store of a gateway holds or lost events."""
    return {"http://gateway": Unsent(0, 0, 0, store_id=STORE)}


def all_is_known(_settings: Settings) -> SpeedLayerLag:
    """The stream has taken everything, and no version of a member is late."""
    return SpeedLayerLag(True, 0, 0)


def certify_alone(
    settings: Settings, day: Day, ask_gateways: AskGateways = nothing_waits, catch_up: CatchUp = all_is_known
) -> Certificate:
    """Certify the day, as if the gateways were drained and the stream had caught up, unless given otherwise."""
    return certify(settings, day, ask_gateways, catch_up)


def take_everything(settings: Settings) -> None:
    """Move the stream's ledgers to the ends of their topics, as if it had taken everything and shown nothing of it."""
    offsets = OffsetReader(settings.kafka.connection)
    pipeline = settings.pipeline
    for consumer, topic in (("join", pipeline.stream.name), ("serve", pipeline.output.name)):
        for partition, end in offsets.high_watermarks(topic).items():
            place = {"consumer": consumer, "topic": topic, "topic_id": offsets.topic_id(topic)}
            rows(
                settings,
                query("set_ledger_entry", pipeline),
                place | {"partition": partition, "to_offset": end},
                role="stream",
            )


@contextlib.contextmanager
def gateway_with(backlog: int) -> Iterator[str]:
    """A gateway that says how much waits in its store, to who has the token `admin`. Yields its address."""
    store_id = str(uuid.uuid4())

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer admin"
            held = {
                "storeId": store_id, "backlog": backlog, "oldestAgeS": 0.0, "refused": 0, "lost": 0,
                "clockAheadS": None, "replayed": 0, "setAside": 0,
            }  # fmt: skip
            content = json.dumps(held if allowed else {"error": "forbidden", "details": []}).encode()
            self.send_response(200 if allowed and self.path.startswith("/fallback") else 403)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
