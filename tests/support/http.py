"""The HTTP client of tests: httpx's functions load a machine's certificates for each call, 20 ms of CPU."""

import ssl

import httpx

HTTP = httpx.Client(
    trust_env=False,
    timeout=60,  # a busy machine answers later than in httpx's 5 s
    verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts nobody
    limits=httpx.Limits(max_keepalive_connections=0),
)
