"""Java options for the caller's proxy, from the same variables that pip reads. Standard library only."""

import os
from collections.abc import Iterator
from urllib.parse import SplitResult, unquote, urlsplit

from stack.errors import StackError

_OF_SCHEME = {"http": ("HTTP_PROXY", "ALL_PROXY"), "https": ("HTTPS_PROXY", "ALL_PROXY")}
_EXCEPTED = "NO_PROXY"


def java_options() -> Iterator[str]:
    """Yield Java options for the proxy. They include its password, so do not put them on a command line.

    Raises StackError if a variable is not the address of an HTTP proxy.
    """
    for scheme, names in _OF_SCHEME.items():
        name = next((name for name in names if _value(name)), None)
        if name is not None:
            proxy = _address(name)
            yield f"-D{scheme}.proxyHost={proxy.hostname}"
            yield f"-D{scheme}.proxyPort={proxy.port or 80}"
            if proxy.username:
                # Ivy reads only these two, and uses them for both schemes
                yield f"-Dhttp.proxyUser={unquote(proxy.username)}"
                yield f"-Dhttp.proxyPassword={unquote(proxy.password or '')}"
                yield "-Djdk.http.auth.tunneling.disabledSchemes="  # by default Java sends no password for HTTPS
    excepted = [host for entry in _value(_EXCEPTED).split(",") if entry.strip() for host in _hosts(entry.strip())]
    if excepted:
        yield f"-Dhttp.nonProxyHosts={'|'.join(excepted)}"  # Java uses it for HTTPS too


def _value(name: str) -> str:
    return os.environ.get(name.lower()) or os.environ.get(name, "")


def _address(name: str) -> SplitResult:
    value = _value(name)
    proxy = urlsplit(value if "://" in value else f"http://{value}")
    try:
        is_valid = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise StackError(
            f"{name} is not the address of an HTTP proxy: give http://HOST:PORT, with USER:PASSWORD@ before the host "
            "where the proxy wants them"
        )
    return proxy


def _hosts(entry: str) -> Iterator[str]:
    yield entry.removeprefix(".")
    if not entry.startswith("*"):
        yield f"*.{entry.removeprefix('.')}"
