import datetime as dt

import pytest

from include.clock import instant_of


def test_an_instant_is_exact_to_the_microsecond():
    assert instant_of(1_700_000_000_000_001) == dt.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("microseconds", [-62_135_596_800_000_001, 253_402_300_800_000_000, -(2**63), 2**63 - 1])
def test_beyond_the_years_1_to_9999_there_is_no_instant(microseconds):
    assert instant_of(microseconds) is None


def test_the_first_and_the_last_instant():
    assert instant_of(-62_135_596_800_000_000) == dt.datetime.min.replace(tzinfo=dt.UTC)
    assert instant_of(253_402_300_799_999_999) == dt.datetime.max.replace(tzinfo=dt.UTC)
