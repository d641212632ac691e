"""Quotas of clients: what is admitted in any stretch of time, and when a refused client may come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.gateway.auth.quotas import BURST_S, Quotas
from include.gateway.counters import Latencies
from include.gateway.http.message import Fault


class Time:
    now = 1000.0

    def __call__(self):
        return self.now


def is_admitted(quotas, client="a", size=0):
    try:
        quotas.admit(client)
    except Fault:
        return False
    quotas.charge(client, size)
    return True


def test_without_limits_everything_is_admitted():
    quotas = Quotas(0, 0, Time())
    assert all(is_admitted(quotas, size=10**9) for _ in range(1000))
    assert quotas.known == []


def test_a_client_has_a_burst_and_then_its_rate():
    time = Time()
    quotas = Quotas(10, 0, time)
    assert sum(is_admitted(quotas) for _ in range(100)) == 10 * BURST_S
    time.now += 1
    assert sum(is_admitted(quotas) for _ in range(100)) == 10
    assert quotas.refused["a", "requests"] == 100 - 20 + 100 - 10


def test_clients_do_not_share_a_quota():
    quotas = Quotas(1, 0, Time())
    assert [is_admitted(quotas, "a") for _ in range(3)] == [True, True, False]
    assert is_admitted(quotas, "b")


def test_a_body_larger_than_the_quota_is_taken_and_paid_for_afterwards():
    time = Time()
    quotas = Quotas(0, 100, time)
    assert is_admitted(quotas, size=1200)  # 1,000 more than the burst
    with pytest.raises(Fault) as raised:
        quotas.admit("a")
    assert raised.value.status == 429
    assert dict(raised.value.headers)[b"retry-after"] == b"10"
    time.now += 10
    assert is_admitted(quotas)


@given(
    st.integers(1, 50), st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 20_000)), max_size=60),
)  # fmt: skip
def test_no_stretch_of_time_admits_more_than_burst_and_rate(requests_per_s, bytes_per_s, calls):
    time = Time()
    quotas, admitted = Quotas(requests_per_s, bytes_per_s, time), []
    for pause, size in calls:
        time.now += pause
        if is_admitted(quotas, size=size):
            admitted.append((time.now, size))
        else:  # the promised time is enough
            waits = max(quotas.wait_s("a", kind) for kind in quotas.limits)
            assert waits > 0
            time.now += waits + 1e-6
            assert is_admitted(quotas, size=0)
            admitted.append((time.now, 0))
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            stretch = admitted[last][0] - admitted[first][0] + BURST_S
            assert last - first + 1 <= requests_per_s * stretch + 1e-3
            # the last body may exceed what was left
            assert (
                sum(size for _, size in admitted[first:last])
                <= bytes_per_s * stretch + max(size for _, size in admitted[first : last + 1]) + 1e-3
            )


def test_full_buckets_of_the_issuers_clients_are_dropped_and_others_kept():
    time = Time()
    quotas = Quotas(10, 100, time)
    assert is_admitted(quotas, "oidc:indebted", size=1_000_000)
    assert is_admitted(quotas, "of-the-file")
    for number in range(50_000):
        time.now += 0.01
        assert is_admitted(quotas, f"oidc:{number}", size=1)
    assert quotas.size < 2500
    assert not is_admitted(quotas, "oidc:indebted")
    assert quotas.known == [("of-the-file", "requests"), ("of-the-file", "bytes")]


def test_the_issuers_clients_have_one_series_of_metrics():
    quotas, latencies = Quotas(1, 0, Time()), Latencies()
    for number in range(100):
        for _ in range(3):
            is_admitted(quotas, f"oidc:user-{number}")
        latencies.observe("POST /boards", f"oidc:user-{number}", 0.01)
    assert quotas.refused == {("oidc:*", "requests"): 100}
    assert [*latencies.histograms()] == [("POST /boards", "oidc:*")]
