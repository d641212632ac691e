"""Jars are fetched through the caller's proxy, whose password is on no command line."""

import base64
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stack import jars
from stack.layout import Layout, StackError
from stack.machine import find_java

JAR = b"PK\5\6" + bytes(18)  # an empty archive
BASIC = "Basic " + base64.b64encode(b"me:p@ss").decode()


class Proxy(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]]
    commands: list[str]

    def do_GET(self) -> None:
        if self.headers.get("Proxy-Authorization") != BASIC:
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.asked.append((self.command, self.path))
        self.commands.extend(command_lines())
        body = JAR if self.path.endswith("thing-1.0.jar") else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def command_lines() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture
def proxy(monkeypatch):
    handler = type("Recording", (Proxy,), {"asked": [], "commands": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, f"http://me:p%40ss@127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("NO_PROXY", "")
    yield handler
    server.shutdown()
    server.server_close()


def fetch(folder: Path) -> Path:
    lock = folder / "jars.lock"
    lock.write_text(f"things org.example:thing:1.0 {hashlib.sha256(JAR).hexdigest()}\n")
    layout = Layout(root=folder, state=folder, env_file=folder / ".env", jars=folder / "jars")
    jars.ensure(layout, jars.pyspark_jars(Layout.of().venv), find_java(os.environ), lock)
    return layout.jars / "things" / "thing-1.0.jar"


def test_a_repository_is_reached_through_the_proxy(proxy, monkeypatch, tmp_path):
    monkeypatch.setenv("MAVEN_MIRROR_URL", "http://maven.invalid/repository/")
    assert fetch(tmp_path).read_bytes() == JAR
    assert ("GET", "http://maven.invalid/repository/org/example/thing/1.0/thing-1.0.jar") in proxy.asked
    assert [line for line in proxy.commands if "org.apache.ivy.Main" in line and "p@ss" in line] == []


def test_one_with_https_too(proxy, monkeypatch, tmp_path):
    monkeypatch.setenv("MAVEN_MIRROR_URL", "https://maven.invalid/repository/")
    with pytest.raises(StackError, match="HTTPS_PROXY"):
        fetch(tmp_path)
    assert ("CONNECT", "maven.invalid:443") in proxy.asked
