"""An identity provider for tests: gives signed tokens to clients with an id and a secret, and serves its keys."""

import base64
import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

AUDIENCE, ISSUER = "kafka", "https://issuer.example"  # of the tokens; a broker of Kafka 4.4 asks for them
_KEY_ID = "test"
_LIFETIME_S = 600


@contextlib.contextmanager
def identity_provider(client_id: str, secret: str) -> Iterator[str]:
    """Yield the address of a provider that knows one client: tokens at /token, keys at /keys."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    keys = {"keys": [{**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": _KEY_ID, "use": "sig"}]}
    login = base64.b64encode(f"{client_id}:{secret}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(HTTPStatus.OK, keys)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Basic {login}":
                self._answer(HTTPStatus.UNAUTHORIZED, {"error": "invalid_client"})
                return
            now = int(time.time())
            claims = {"sub": client_id, "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + _LIFETIME_S,
                      "scope": "kafka"}  # fmt: skip
            token = jwt.encode(claims, key, algorithm="RS256", headers={"kid": _KEY_ID})
            self._answer(HTTPStatus.OK, {"access_token": token, "token_type": "Bearer", "expires_in": _LIFETIME_S})

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _answer(self, status: HTTPStatus, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, name="identity provider", daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
