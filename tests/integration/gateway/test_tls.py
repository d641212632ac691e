"""The gateway over TLS: real processes, with certificates that the test makes."""

import shutil
import signal
import socket
import ssl

import pytest

from include.contracts.errors import ConfigurationError
from include.gateway.client import GatewayClient, GatewayUnavailable
from include.runtime.settings import Settings
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.certificates import Authority
from tests.support.gateway_process import GatewayProcess

NO_BROKER = "127.0.0.1:1"  # events go to the fallback store


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def gateway(authority, tmp_path_factory):
    """A gateway that only clients with a certificate may call."""
    folder = tmp_path_factory.mktemp("gateway")
    own, client = authority.issue("gateway"), authority.issue("client")
    for source, name in ((own.certificate_file, "own.pem"), (own.key_file, "own.key")):
        shutil.copy(source, folder / name)
    made = GatewayProcess.over(
        folder, NO_BROKER,
        GATEWAY_TLS_CERTIFICATE_FILE=str(folder / "own.pem"), GATEWAY_TLS_KEY_FILE=str(folder / "own.key"),
        GATEWAY_TLS_CLIENT_CA_FILE=str(authority.ca_file), GATEWAY_CA_FILE=str(authority.ca_file),
        GATEWAY_CLIENT_CERTIFICATE_FILE=str(client.certificate_file), GATEWAY_CLIENT_KEY_FILE=str(client.key_file),
    )  # fmt: skip
    made.environment["GATEWAY_URL"] = made.url.replace("http:", "https:")
    made.launch()
    wait_until(lambda: is_healthy(made), 30, "the health check of the deployment says healthy")
    yield made
    assert made.terminate() == 0


def is_healthy(gateway):
    return gateway.run("stack.team", "health", f"{gateway.url}/healthz").wait() == 0


def client_of(gateway, **changes):
    return GatewayClient(Settings.from_environment({**gateway.environment, **changes}).gateway)


def serial(gateway):
    context = gateway.settings.gateway.client_tls.context()
    plain = socket.create_connection(("127.0.0.1", gateway.settings.gateway.port))
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        return connection.getpeercert()["serialNumber"]


def test_clients_with_a_certificate_send_events(gateway):
    with client_of(gateway) as client:
        assert client.post_event("member", member(1))["keptIn"] == "fallback"
        results = client.post_events("member", [member(key, biography="x" * 2000) for key in range(500)])
    assert {result["status"] for result in results} == {201}


def test_a_scheme_in_capitals_is_the_same_scheme(gateway):
    loud = gateway.url.replace("https:", "HTTPS:")
    with client_of(gateway, GATEWAY_URL=loud) as client:
        assert client.post_event("member", member(2))["keptIn"] == "fallback"
    assert gateway.run("stack.team", "health", f"{loud}/healthz").wait() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"GATEWAY_CLIENT_CERTIFICATE_FILE": "", "GATEWAY_CLIENT_KEY_FILE": ""},
        {"GATEWAY_CA_FILE": ""},
        {"GATEWAY_CA_FILE": "", "GATEWAY_URL": "HTTPS://127.0.0.1:{port}"},
        {"GATEWAY_URL": "http://127.0.0.1:{port}"},
    ],
    ids=["no certificate", "unknown authority", "unknown authority, scheme in capitals", "no TLS"],
)
def test_others_are_refused(gateway, changes):
    port = gateway.environment["GATEWAY_PORT"]
    changes = {name: value.format(port=port) for name, value in changes.items()}
    with client_of(gateway, **changes) as client, pytest.raises(GatewayUnavailable):
        client.post_event("member", member(1))


def test_a_new_certificate_is_read_at_sighup_and_a_broken_or_half_written_one_is_not(gateway, authority):
    files = gateway.settings.gateway.tls
    before, renewed = serial(gateway), authority.issue("renewed")
    shutil.copy(renewed.certificate_file, files.certificate_file)
    shutil.copy(renewed.key_file, files.key_file)
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: serial(gateway) != before, 10, "the new certificate")
    after = serial(gateway)
    files.certificate_file.write_text("not a certificate")
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "the former certificate is kept" in gateway.log.read_text(), 10, "the refusal is logged")
    assert serial(gateway) == after
    half = authority.issue("half")  # of a renewal that has written its certificate, and not its key yet
    shutil.copy(half.certificate_file, files.certificate_file)
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: gateway.log.read_text().count("the former certificate is kept") == 2, 10, "it is logged again")
    assert serial(gateway) == after
    shutil.copy(renewed.certificate_file, files.certificate_file)


def test_wrong_files_are_refused_by_name(gateway, authority, tmp_path):
    encrypted, empty = authority.issue("encrypted", "secret"), tmp_path / "empty"
    empty.touch()
    for changes, message in (
        ({"GATEWAY_TLS_KEY_FILE": ""}, "GATEWAY_TLS_KEY_FILE is not set"),
        ({"GATEWAY_TLS_KEY_FILE": "", "GATEWAY_TLS_CERTIFICATE_FILE": ""}, "GATEWAY_TLS_CLIENT_CA_FILE is set without"),
        ({"GATEWAY_TLS_CERTIFICATE_FILE": "/none"}, "GATEWAY_TLS_CERTIFICATE_FILE='/none': cannot be read"),
        ({"GATEWAY_TLS_CERTIFICATE_FILE": str(empty)}, "GATEWAY_TLS_CERTIFICATE_FILE="),
        ({"GATEWAY_TLS_CLIENT_CA_FILE": str(empty)}, "GATEWAY_TLS_CLIENT_CA_FILE="),
        ({"GATEWAY_TLS_CERTIFICATE_FILE": str(encrypted.certificate_file),
          "GATEWAY_TLS_KEY_FILE": str(encrypted.key_file)}, "openssl pkey"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError) as raised:
            Settings.from_environment({**gateway.environment, **changes}).gateway.tls.context()
        assert message in str(raised.value)


def test_the_context_of_clients_verifies_names(gateway):
    context = gateway.settings.gateway.client_tls.context()
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
