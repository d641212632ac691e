"""An object store for tests: SeaweedFS, which speaks S3's protocol, and a proxy before it that makes faults."""

import contextlib
import http.client
import json
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from include.archive.bucket import client_of
from include.runtime.settings import S3Connection
from stack.machine import LOOPBACK, unused
from stack.services import HttpHealth
from tests.servers import ServerProcess
from tests.support.certificates import Authority

REGION = "us-east-1"
ADMIN, BATCH = ("admin-key", "admin-secret"), ("batch-key", "batch-secret")
Fault = Literal["503", "501", "slow", "lost answer", "cut off"]
_SERVERS = ("master", "volume", "filer", "s3")


class ObjectStore:
    """A server that a test may kill and start again; data and ports stay. It serves HTTP and HTTPS.

    The login ADMIN may do everything, BATCH only what a bucket's policy allows.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data").mkdir(exist_ok=True)
        self._folder = folder
        ports = unused(2 * len(_SERVERS) + 1)
        self._ports = dict(zip(_SERVERS, ports, strict=False))
        self._internal = ports[len(_SERVERS) :]
        self.authority = Authority(folder)
        self._certificate = self.authority.issue("store")
        self._process = ServerProcess("seaweedfs", folder / "store.log", HttpHealth(f"{self.endpoint}/healthz"),
                                      signal.SIGKILL)  # fmt: skip

    @property
    def port(self) -> int:
        """The port of HTTP."""
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def https_endpoint(self) -> str:
        """The address for clients with TLS."""
        return f"https://{LOOPBACK}:{self._internal[-1]}"

    def start(self) -> None:
        """Start and wait until it answers."""
        identities = [
            {"name": "admin", "credentials": [_credentials(*ADMIN)], "actions": ["Admin"]},
            {"name": "batch", "credentials": [_credentials(*BATCH)], "actions": []},
        ]
        configuration = self._folder / "s3.json"
        configuration.write_text(json.dumps({"identities": identities}))
        ports = [
            f"-{server}.port{internal}={port}"
            for internal, numbers in (("", self._ports.values()), (".grpc", self._internal))
            for server, port in zip(_SERVERS, numbers, strict=False)
        ]
        self._process.start([
            str(Path(sys.executable).with_name("weed")), "-logtostderr=true", "server", f"-dir={self._folder / 'data'}",
            f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", *ports, "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            "-volume.max=0", "-s3", "-s3.autoCreateBucket=false", "-s3.port.lance=0", "-s3.port.iceberg=0",
             f"-s3.config={configuration}", f"-s3.port.https={self._internal[-1]}",
            f"-s3.cert.file={self._certificate.certificate_file}", f"-s3.key.file={self._certificate.key_file}",
        ])  # fmt: skip

    def stop(self) -> None:
        """The same as `kill`: a clean shutdown takes half a minute, and clients see no difference."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def connection(self, login: tuple[str, str] = ADMIN, endpoint: str = "") -> S3Connection:
        """The settings of a client."""
        return S3Connection(endpoint or self.endpoint, REGION, *login)

    def client(self) -> Any:
        """An administrator's client."""
        return client_of(self.connection())

    def new_bucket(self, is_versioned: bool = False) -> str:
        """Make a bucket and return its name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        if is_versioned:
            self.client().put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    def variables(self, location: str) -> dict[str, str]:
        """The variables of a process of the pipeline whose archive is at s3://bucket/prefix."""
        return {
            "ARCHIVE_DIR": location, "ARCHIVE_S3_ENDPOINT": self.endpoint, "ARCHIVE_S3_REGION": REGION,
            "ARCHIVE_S3_ACCESS_KEY_ID": ADMIN[0], "ARCHIVE_S3_SECRET_ACCESS_KEY": ADMIN[1],
        }  # fmt: skip


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A running store, stopped at the end of the block."""
    store = ObjectStore(folder)
    try:
        store.start()
        yield store
    finally:
        store.stop()


class FaultyHttp:
    """An HTTP proxy. `faults` decides on a request by its method and path; None forwards it.

    "503" and "501" are answered in place of the server, "slow" comes a second late, "lost answer" carries the request
    out and closes the connection, "cut off" closes it in the middle of the answer's body.
    """

    def __init__(self, port: int) -> None:
        self.faults: Callable[[str, str], Fault | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        proxy = self

        class Handler(_Handler):
            target = port

            def fault(self) -> Fault | None:
                proxy.requests.append((self.command, self.path))
                return proxy.faults(self.command, self.path)

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="faulty-http", daemon=True).start()

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target = 0

    def fault(self) -> Fault | None:
        raise NotImplementedError

    def forward(self) -> None:
        fault = self.fault()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault in ("503", "501"):
            code = {"503": "SlowDown", "501": "NotImplemented"}[fault]
            self._answer(int(fault), {}, f"<Error><Code>{code}</Code></Error>".encode())
            return
        if fault == "slow":
            threading.Event().wait(1)
        server = http.client.HTTPConnection(LOOPBACK, self.target, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            server.request(self.command, self.path, body, headers)
            answer = server.getresponse()
            content, found = answer.read(), dict(answer.getheaders())
        finally:
            server.close()
        if fault == "lost answer":
            self.close_connection = True
        elif fault == "cut off":
            self._answer(answer.status, found, content, len(content) // 2)
            self.close_connection = True
        else:
            self._answer(answer.status, found, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], content: bytes, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content[:sent])

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def faulty_http(store: ObjectStore) -> Iterator[FaultyHttp]:
    """A proxy before the store, closed at the end of the block."""
    proxy = FaultyHttp(store.port)
    try:
        yield proxy
    finally:
        proxy.close()


def _credentials(key_id: str, secret: str) -> dict[str, str]:
    return {"accessKey": key_id, "secretKey": secret}
