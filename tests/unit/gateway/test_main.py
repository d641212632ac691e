"""The settings that the entrypoint refuses, and the parts of the client."""

import dataclasses

import msgspec
import pytest

from include.contracts.errors import ConfigurationError
from include.gateway.client import GatewayUnavailable, _bodies, replay_fallback
from include.gateway.serve import check_exposure
from include.runtime.settings import GatewayLimits, GatewaySettings, Settings
from tests.support.messages import NO_TOKENS_FILE


def gateway(host="127.0.0.1", token="a", admin_token="b"):
    return GatewaySettings(host=host, port=0, url="http://127.0.0.1:9", token=token, admin_token=admin_token)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_tokens_file(host):
    check_exposure(gateway(host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_refuses_to_listen_beyond_loopback_without_a_tokens_file(host):
    with pytest.raises(ConfigurationError, match=NO_TOKENS_FILE):
        check_exposure(gateway(host))


def test_listens_beyond_loopback_with_a_tokens_file(tmp_path):
    check_exposure(dataclasses.replace(gateway("0.0.0.0"), tokens_file=tmp_path / "tokens.json"))


def test_client_cuts_events_into_bodies_within_the_caps():
    limits = GatewayLimits(max_events=700, max_body_bytes=1 << 20)
    large = {"body": "x" * (limits.max_body_bytes // 3)}
    values = [{"id": n} for n in range(limits.max_events + 1)] + [large] * 4
    bodies = list(_bodies(values, limits))
    assert all(len(body) <= limits.max_body_bytes for body in bodies)
    parts = [msgspec.json.decode(body) for body in bodies]
    assert [value for part in parts for value in part] == values
    assert max(len(part) for part in parts) == limits.max_events


def test_replay_of_a_gateway_that_is_not_there_can_be_tried_again():
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9", "DATABASE_HOST": "127.0.0.1"}
    settings = dataclasses.replace(Settings.from_environment(environment), gateway=gateway())
    with pytest.raises(GatewayUnavailable, match=r"127\.0\.0\.1:9"):
        replay_fallback(settings)
