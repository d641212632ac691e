"""An OpenID Connect issuer for tests: real keys, a real HTTP server with discovery and key set, and its tokens."""

import base64
import http.server
import json
import threading
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "the-gateway"
_RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2048)  # takes 0.1 s: the first key of each issuer


def encoded(part: object) -> str:
    """A part of a token: JSON, or bytes as they are, in base64url."""
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SigningKey:
    """A private key with an id and an algorithm."""

    def __init__(self, kid: str, algorithm: str = "RS256", private: Any = None) -> None:
        self.kid, self.algorithm = kid, algorithm
        kind: Any
        if algorithm.startswith("ES"):
            curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
            self.private, kind = private or ec.generate_private_key(curves[algorithm]), ECAlgorithm
        elif algorithm == "EdDSA":
            self.private, kind = private or ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm
        else:
            self.private, kind = private or rsa.generate_private_key(65_537, 2048), RSAAlgorithm
        self.jwk: dict[str, Any] = {**kind.to_jwk(self.private.public_key(), as_dict=True), "kid": kid, "use": "sig"}

    def token(self, claims: dict[str, Any], **header: Any) -> str:
        """A signed token; a header that is None is left out."""
        given = {"alg": self.algorithm, "typ": "at+jwt", "kid": self.kid, **header}
        return self.signed({name: value for name, value in given.items() if value is not None}, claims)

    def signed(self, header: object, payload: object) -> str:
        """A token of any header and payload, valid or not, with a valid signature."""
        signed = f"{encoded(header)}.{encoded(payload)}"
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        return f"{signed}.{encoded(algorithm.sign(signed.encode(), self.private))}"


def first_key(kid: str = "first") -> SigningKey:
    """An RSA key, the same each time."""
    return SigningKey(kid, private=_RSA)


def claims_of(issuer: str, scope: str = "gateway:topic:board", **more: Any) -> dict[str, Any]:
    """The claims of a token for a client; a claim that is None is left out."""
    now = int(time.time())
    claims = {"iss": issuer, "aud": AUDIENCE, "sub": "user-1", "client_id": "shop", "iat": now, "exp": now + 600,
              "scope": scope, "jti": "1", **more}  # fmt: skip
    return {name: value for name, value in claims.items() if value is not None}


class Issuer:
    """The server. `keys` are those that it shows; with another `status` it fails; while not `is_open`, it hangs."""

    def __init__(self) -> None:
        self.keys = [first_key()]
        self.status = 200
        self.changes: dict[str, Any] = {}  # of the discovery document
        self.body: bytes | None = None  # in place of the key set
        self.fetches = 0
        self.is_open = threading.Event()
        self.is_open.set()
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.is_open.wait()
                if self.path == "/keys":
                    issuer.fetches += 1
                    body = issuer.body or json.dumps({"keys": [key.jwk for key in issuer.keys]}).encode()
                else:
                    assert self.path == "/.well-known/openid-configuration"
                    found = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys", **issuer.changes}
                    body = json.dumps(found).encode()
                self.send_response(issuer.status)
                self.send_header("Location", f"{issuer.url}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="issuer", daemon=True).start()

    @property
    def url(self) -> str:
        """The issuer's name, which is its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def token(self, key: SigningKey | None = None, **claims: Any) -> str:
        """A token, signed by the first of the keys unless another is given."""
        return (key or self.keys[0]).token(claims_of(self.url, **claims))

    def close(self) -> None:
        """End the server."""
        self.is_open.set()
        self._server.shutdown()
        self._server.server_close()
