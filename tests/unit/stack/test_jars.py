"""Jars: their audit, against a service that answers as https://osv.dev does, and the proxy that Java is told."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stack import jars
from stack.jars import java_options
from stack.layout import StackError
from stack.machine import unused

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
    monkeypatch.setattr(sys, "argv", ["jars", "audit", "--service", service, str(lock)])
    return jars.main()


def test_one_with_a_known_vulnerability_is_named(service, monkeypatch, tmp_path, capsys):
    assert audited(monkeypatch, tmp_path, "2.14.1", service) == 1
    assert f"{VULNERABLE}:2.14.1: GHSA-jfh8-c2jp-5v3q" in capsys.readouterr().out


def test_no_vulnerability(service, monkeypatch, tmp_path, capsys):
    assert audited(monkeypatch, tmp_path, "2.24.3", service) == 0
    assert "2 jars, 0 of them" in capsys.readouterr().out


def test_a_service_that_is_not_reached_is_no_good_news(monkeypatch, tmp_path, capsys):
    (port,) = unused(1)
    assert audited(monkeypatch, tmp_path, "2.24.3", f"http://127.0.0.1:{port}") == 2
    assert "cannot be reached" in capsys.readouterr().err


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def told(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def options(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return list(java_options())

    return options


def test_no_proxy(told):
    assert told() == []


def test_a_proxy_for_each_scheme(told):
    assert told(https_proxy="http://proxy.example:3128", HTTP_PROXY="other.example:8080") == [
        "-Dhttp.proxyHost=other.example", "-Dhttp.proxyPort=8080",
        "-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128",
    ]  # fmt: skip


def test_one_proxy_for_all_with_a_password(told):
    options = told(ALL_PROXY="http://me:p%40ss@proxy.example")
    assert "-Dhttp.proxyHost=proxy.example" in options
    assert "-Dhttps.proxyPort=80" in options
    assert "-Dhttp.proxyUser=me" in options
    assert "-Dhttp.proxyPassword=p@ss" in options


def test_hosts_without_a_proxy(told):
    assert told(no_proxy="localhost, .example.com,10.0.0.5") == [
        "-Dhttp.nonProxyHosts=localhost|*.localhost|example.com|*.example.com|10.0.0.5|*.10.0.0.5"
    ]


@pytest.mark.parametrize("address", ["http://proxy:99999", "socks5://proxy:1080", "http://"])
def test_an_address_that_is_none_is_refused_without_its_password(told, address):
    with pytest.raises(StackError, match="HTTPS_PROXY is not the address"):
        told(HTTPS_PROXY=address)
