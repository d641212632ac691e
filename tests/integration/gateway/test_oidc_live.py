"""Access tokens of a real issuer over HTTP, at a real gateway: rights, rotation of keys, an issuer that is out."""

import signal

import pytest

from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.gateway_process import TOKENS, GatewayProcess
from tests.support.http import HTTP
from tests.support.issuer import AUDIENCE, Issuer, SigningKey

REFRESH_S = 0.5


@pytest.fixture
def issuer():
    made = Issuer()
    yield made
    made.close()


@pytest.fixture
def started(tmp_path):
    """A function that starts a gateway without a broker, with further settings: events go to its fallback store."""
    processes = []

    def start(issuer, **more):
        variables = {"GATEWAY_OIDC_ISSUER": issuer.url, "GATEWAY_OIDC_AUDIENCE": AUDIENCE,
                     "GATEWAY_OIDC_REFRESH_S": str(REFRESH_S), **more}  # fmt: skip
        process = GatewayProcess.over(tmp_path, "127.0.0.1:1", **variables)
        processes.append(process)
        return process.start()

    yield start
    for process in processes:
        if process.process is not None and process.process.poll() is None:
            process.kill()


def post(gateway, token, topic="board"):
    value = board() if topic == "board" else member()
    headers = {"Authorization": f"Bearer {token}"}
    return HTTP.post(f"{gateway.url}/topics/{topic}/events", json=value, headers=headers)


def status(gateway, token, topic="board"):
    return post(gateway, token, topic).status_code


def degraded(gateway):
    return HTTP.get(f"{gateway.url}/readyz").json()["degraded"]


def test_access_tokens_and_the_tokens_of_the_file_are_accepted_side_by_side(issuer, started):
    gateway = started(issuer, GATEWAY_ACCESS_LOG="on", GATEWAY_CLIENT_REQUESTS_PER_S="2")
    token = issuer.token()
    wait_until(lambda: status(gateway, token) == 201, 10, "the keys are there")
    assert status(gateway, TOKENS["GATEWAY_TOKEN"]) == 201

    refused = post(gateway, token, "member")
    challenge = 'Bearer error="insufficient_scope", scope="gateway:topic:member"'
    assert (refused.status_code, refused.headers["www-authenticate"]) == (403, challenge)
    expired = post(gateway, issuer.token(exp=1))
    assert (expired.status_code, expired.json()["error"]) == (401, "the token has expired")
    assert expired.headers["www-authenticate"].startswith('Bearer error="invalid_token"')

    admin = {"Authorization": f"Bearer {issuer.token(scope='gateway:admin', client_id='ops')}"}
    assert HTTP.get(f"{gateway.url}/fallback", headers=admin).status_code == 200
    data = {"Authorization": f"Bearer {token}"}
    assert HTTP.get(f"{gateway.url}/fallback", headers=data).status_code == 403

    # another token of the same client, and the client itself has one quota
    wait_until(lambda: 429 in [status(gateway, issuer.token(jti=str(each))) for each in range(20)], 10, "its quota")
    assert status(gateway, issuer.token(client_id="other")) == 201
    page = HTTP.get(f"{gateway.url}/metrics").text
    assert 'gateway_quota_refusals_total{client="oidc:*",limit="requests"}' in page
    assert "oidc:shop" not in page
    log = gateway.log.read_text()
    assert "client=oidc:shop status=201" in log
    assert "client=oidc:ops status=200" in log
    assert token not in log


def test_keys_are_rotated_while_the_gateway_runs(issuer, started):
    gateway = started(issuer)
    old = issuer.token()
    wait_until(lambda: status(gateway, old) == 201, 10, "the keys are there")

    second = SigningKey("second", "ES256")
    issuer.keys.append(second)
    new = issuer.token(second)
    wait_until(lambda: status(gateway, new) == 201, 10, "the new key is taken on")
    assert status(gateway, old) == 201

    del issuer.keys[0]

    def refused():
        answer = post(gateway, old)
        return answer.status_code == 401 and answer.json()["error"] == "the issuer has no such key"

    wait_until(refused, 30, "the old key is refused")
    assert status(gateway, new) == 201


def test_a_key_with_the_id_of_another_replaces_it(issuer, started):
    gateway = started(issuer)
    old = issuer.token()
    wait_until(lambda: status(gateway, old) == 201, 10, "the keys are there")
    issuer.keys[:] = [SigningKey("first", "ES256")]
    new = issuer.token()
    wait_until(lambda: status(gateway, new) == 201, 10, "the new key is taken on")
    assert status(gateway, old) == 401


def test_an_unknown_key_is_looked_up_and_made_up_ones_put_no_load_on_the_issuer(issuer, started):
    gateway = started(issuer, GATEWAY_OIDC_REFRESH_S="3600")
    wait_until(lambda: status(gateway, issuer.token()) == 201, 10, "the keys are there")
    fetches = issuer.fetches
    made_up = SigningKey("made-up", "ES256")
    answers = {status(gateway, issuer.token(SigningKey(f"made-up-{n}", "ES256", made_up.private))) for n in range(50)}
    assert answers <= {401, 503}
    assert issuer.fetches <= fetches + 1

    second = SigningKey("second", "ES256")
    issuer.keys.append(second)
    token = issuer.token(second)
    wait_until(lambda: status(gateway, token) == 201, 30, "the new key is fetched")  # after the interval
    assert issuer.fetches <= fetches + 5


@pytest.mark.parametrize("failure", ["error", "redirect", "no JSON", "another issuer", "plain HTTP", "hangs", "gone"])
def test_while_the_issuer_is_out_known_keys_stay_valid(issuer, started, failure):
    gateway = started(issuer)
    token = issuer.token()
    wait_until(lambda: status(gateway, token) == 201, 10, "the keys are there")
    assert not any("issuer" in each for each in degraded(gateway))
    match failure:
        case "error":
            issuer.status = 500
        case "redirect":
            issuer.status = 302
        case "no JSON":
            issuer.body = b"<html>"
        case "another issuer":
            issuer.changes["issuer"] = "https://evil.example.com"
        case "plain HTTP":
            issuer.changes["jwks_uri"] = "http://keys.example.com/"
        case "hangs":
            issuer.is_open.clear()
        case "gone":
            issuer.close()
    wait_until(lambda: any("token issuer's keys" in each for each in degraded(gateway)), 30, "the failure is seen")
    assert status(gateway, token) == 201
    assert status(gateway, issuer.token(jti="another")) == 201  # one that was not verified before
    unknown = post(gateway, issuer.token(SigningKey("second", "ES256")))
    assert (unknown.status_code, "retry-after" in unknown.headers) == (503, True)
    assert HTTP.get(f"{gateway.url}/healthz").is_success
    assert status(gateway, TOKENS["GATEWAY_TOKEN"]) == 201


def test_a_gateway_starts_without_its_issuer_and_takes_its_keys_on_later(issuer, started):
    issuer.status = 503
    gateway = started(issuer)
    token = issuer.token()
    answer = post(gateway, token)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert status(gateway, TOKENS["GATEWAY_TOKEN"]) == 201
    issuer.status = 200
    wait_until(lambda: status(gateway, token) == 201, 30, "the keys are there")


def test_a_hangup_fetches_the_keys_at_once(issuer, started):
    gateway = started(issuer, GATEWAY_OIDC_REFRESH_S="3600")
    old = issuer.token()
    wait_until(lambda: status(gateway, old) == 201, 10, "the keys are there")
    issuer.keys[:] = [SigningKey("second", "ES256")]
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: status(gateway, old) == 401, 10, "the old key is refused")


def test_without_a_tokens_file_only_access_tokens_are_accepted(issuer, started):
    gateway = started(issuer, GATEWAY_TOKEN="", GATEWAY_ADMIN_TOKEN="", GATEWAY_TOKENS_FILE="", GATEWAY_HOST="0.0.0.0")
    wait_until(lambda: status(gateway, issuer.token()) == 201, 10, "the keys are there")
    assert status(gateway, "data-token") == 401
    missing = HTTP.post(f"{gateway.url}/topics/board/events", json=board())
    assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"GATEWAY_OIDC_AUDIENCE": ""}, "GATEWAY_OIDC_AUDIENCE is not set"),
        ({"GATEWAY_OIDC_ISSUER": ""}, "GATEWAY_OIDC_AUDIENCE is set without GATEWAY_OIDC_ISSUER"),
        ({"GATEWAY_OIDC_ISSUER": "http://login.example.com"}, "its keys could be replaced on their way"),
        ({"GATEWAY_OIDC_ISSUER": "login.example.com"}, "not http://host:port"),
        ({"GATEWAY_OIDC_ISSUER": "https://a.example.com,https://b.example.com"}, "the URL of one issuer"),
        ({"GATEWAY_OIDC_LEEWAY_S": "-1"}, "GATEWAY_OIDC_LEEWAY_S='-1': not a number of seconds"),
        ({"GATEWAY_OIDC_CA_FILE": "/nowhere.pem"}, "GATEWAY_OIDC_CA_FILE='/nowhere.pem': cannot be read"),
        ({"GATEWAY_TLS_CERTIFICATE_FILE": "/nowhere.pem", "GATEWAY_TLS_KEY_FILE": "/nowhere.key"},
         "GATEWAY_TLS_CERTIFICATE_FILE='/nowhere.pem': cannot be read"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_one_line(tmp_path, variables, message):
    given = {"GATEWAY_OIDC_ISSUER": "https://login.example.com", "GATEWAY_OIDC_AUDIENCE": AUDIENCE, **variables}
    gateway = GatewayProcess.over(tmp_path, "127.0.0.1:1", **given)
    assert gateway.launch().wait(30) == 78
    log = gateway.log.read_text()
    assert message in log
    assert "Traceback" not in log
