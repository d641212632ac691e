"""The audit of jars, against a service that answers as https://osv.dev does."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stack import jar_audit
from stack.ports import unused

VULNERABLE = "org.apache.logging.log4j:log4j-core"


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        known = {(VULNERABLE, "2.14.1"): [{"id": "GHSA-jfh8-c2jp-5v3q", "modified": "2024-01-01T00:00:00Z"}]}
        found = [known.get((query["package"]["name"], query["version"])) for query in asked]
        body = json.dumps({"results": [{"vulns": each} if each else {} for each in found]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = HTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def audited(monkeypatch, tmp_path, version, service):
    lock = tmp_path / "jars.lock"
    lock.write_text(f"broker {VULNERABLE}:{version} {'0' * 64}\nbroker org.slf4j:slf4j-api:2.0.16 {'0' * 64}\n")
    monkeypatch.setattr(sys, "argv", ["jar_audit", "--service", service, str(lock)])
    return jar_audit.main()


def test_one_with_a_known_vulnerability_is_named(service, monkeypatch, tmp_path, capsys):
    assert audited(monkeypatch, tmp_path, "2.14.1", service) == 1
    assert f"{VULNERABLE}:2.14.1: GHSA-jfh8-c2jp-5v3q" in capsys.readouterr().out


def test_none(service, monkeypatch, tmp_path, capsys):
    assert audited(monkeypatch, tmp_path, "2.24.3", service) == 0
    assert "2 jars, 0 of them" in capsys.readouterr().out


def test_a_service_that_is_not_reached_is_no_good_news(monkeypatch, tmp_path, capsys):
    (port,) = unused(1)
    assert audited(monkeypatch, tmp_path, "2.24.3", f"http://127.0.0.1:{port}") == 2
    assert "cannot be reached" in capsys.readouterr().err
