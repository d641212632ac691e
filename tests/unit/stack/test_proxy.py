"""Java is told the proxy that pip takes from the caller's environment."""

import pytest

from stack.errors import StackError
from stack.jars import java_options

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def told(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def options(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return list(java_options())

    return options


def test_none(told):
    assert told() == []


def test_one_for_each_scheme(told):
    assert told(https_proxy="http://proxy.example:3128", HTTP_PROXY="other.example:8080") == [
        "-Dhttp.proxyHost=other.example", "-Dhttp.proxyPort=8080",
        "-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128",
    ]  # fmt: skip


def test_one_for_all_with_a_password(told):
    options = told(ALL_PROXY="http://me:p%40ss@proxy.example")
    assert "-Dhttp.proxyHost=proxy.example" in options
    assert "-Dhttps.proxyPort=80" in options
    assert "-Dhttp.proxyUser=me" in options
    assert "-Dhttp.proxyPassword=p@ss" in options


def test_hosts_without(told):
    assert told(no_proxy="localhost, .example.com,10.0.0.5") == [
        "-Dhttp.nonProxyHosts=localhost|*.localhost|example.com|*.example.com|10.0.0.5|*.10.0.0.5"
    ]


@pytest.mark.parametrize("address", ["http://proxy:99999", "socks5://proxy:1080", "http://"])
def test_an_address_that_is_none_is_refused_without_its_password(told, address):
    with pytest.raises(StackError, match="HTTPS_PROXY is not the address"):
        told(HTTPS_PROXY=address)
