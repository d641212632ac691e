"""A server that takes the notices of alerts."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Webhook:
    """An HTTP server that keeps each call's path and JSON, and answers with `status`."""

    def __init__(self):
        self.calls = []
        self.status = 204
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                webhook.calls.append((self.path, self.headers["Content-Type"], body))
                self.send_response(webhook.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/hooks/secret"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)
