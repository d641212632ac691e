"""schemathesis, driven by the document that the gateway itself serves, against the real gateway: broker up and down."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from include.gateway.calls.routes import ROUTES
from tests.support.database import database_environment, migrated
from tests.support.gateway_process import LONG_DEADLINE, ROOT, GatewayProcess
from tests.support.http import HTTP

# Deterministic: the same requests in each run. Every check of the fuzzer is on.
# 401 is no rejection of data: some calls get another token. 404 is none either: a generated id is seldom a row's.
# 413 rejects what has too many events. 207 rejects a part: of an array's events the negative ones, each with its 400.
CONFIGURATION = """
continue-on-failure = true
hooks = "tests.support.schemathesis_hooks"

[generation]
deterministic = true
max-examples = {examples}
no-shrink = true

[cache]
enabled = false

[auth.openapi.dataToken]
bearer = "data-token"

[auth.openapi.adminToken]
bearer = "admin-token"

[checks]
enabled = true

[checks.negative_data_rejection]
expected-statuses = [207, 400, 401, 403, 404, 405, 413, 415, 422, 431]

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 404]
"""


@dataclass(frozen=True)
class Fuzz:
    """The findings and the output of a run of the fuzzer."""

    exit_code: int
    output: str
    exchanges: list[dict]

    @property
    def statuses(self):
        return {exchange["response"]["status"] for exchange in self.exchanges}

    @property
    def kept_in(self):
        return set(
            re.findall(r'"keptIn":"(\w+)"', "\n".join(one["response"]["content"]["text"] for one in self.exchanges))
        )

    def was_let_in(self, route):
        """True if a call of the route was made, with its token and its method."""
        path = re.compile(re.sub(r"\{[^}]+\}", "[^/]+", route.path))
        return any(
            exchange["request"]["method"] == route.method
            and path.fullmatch(urlsplit(exchange["request"]["url"]).path)
            and exchange["response"]["status"] not in (401, 405)
            for exchange in self.exchanges
        )


def fuzz(gateway, document, folder, *options, examples=20):
    """Run it over the calls of a document. It does not fuzz the call that it loads a document by, so it gets a file."""
    configuration, file, har = folder / "schemathesis.toml", folder / "document.json", folder / "exchanges.har"
    configuration.write_text(CONFIGURATION.format(examples=examples), encoding="utf-8")
    file.write_text(json.dumps(document), encoding="utf-8")
    fuzzer = [sys.executable, "-m", "schemathesis.cli", "--config-file", configuration, "run", file]
    run = subprocess.run(
        [*fuzzer, "--url", gateway.url, "--no-color", "--report-har-path", har, *options],
        cwd=folder,  # it leaves files where it runs
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NO_PROXY": "*", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
    )
    exchanges = json.loads(har.read_text(encoding="utf-8"))["log"]["entries"]
    return Fuzz(run.returncode, run.stdout + run.stderr, exchanges)


def served_by(gateway):
    return HTTP.get(f"{gateway.url}/openapi.json").raise_for_status().json()


@pytest.fixture
def broker(gateway_broker):
    gateway_broker.mend()
    return gateway_broker


@pytest.fixture
def gateway(broker, postgres, tmp_path):
    migrated(postgres, "gateway_openapi")  # anew: each run gives the same keys to other rows
    database = database_environment(postgres, "gateway_openapi")
    process = GatewayProcess.over(tmp_path, broker.bootstrap_servers, **LONG_DEADLINE, **database).start()
    yield process
    process.kill()


def test_fuzzer_notices_an_answer_other_than_documented(gateway, tmp_path):
    document = served_by(gateway)
    del document["paths"]["/boards"]["post"]["responses"]["415"]
    document["components"]["schemas"]["KeptEvent"]["properties"]["eventId"]["minLength"] = 1000
    document["components"]["schemas"]["MemberFields"]["properties"]["nickname"]["maxLength"] = 10
    paths = [f"--include-path={path}" for path in ("/boards", "/members", "/topics/board/events")]
    fuzzed = fuzz(gateway, document, tmp_path, "--phases=coverage", *paths)
    assert fuzzed.exit_code == 1
    assert "Undocumented status code" in fuzzed.output
    assert "Response violates schema" in fuzzed.output
    assert "Schema-violating request accepted" in fuzzed.output


@pytest.mark.parametrize("is_up", [True, False], ids=["broker up", "broker down"])
def test_fuzzer_finds_nothing(broker, gateway, tmp_path, is_up):
    document = served_by(gateway)
    if not is_up:
        broker.kill()
    fuzzed = fuzz(gateway, document, tmp_path)
    assert fuzzed.exit_code == 0, fuzzed.output
    assert [route.name for route in ROUTES if route.operation and not fuzzed.was_let_in(route)] == []
    assert fuzzed.kept_in == {"kafka" if is_up else "fallback"}
    assert {200, 201, 202, 400, 401, 404, 405, 413, 415} <= fuzzed.statuses
    assert max(fuzzed.statuses) < 500
    assert "unexpected" not in gateway.log.read_text()
