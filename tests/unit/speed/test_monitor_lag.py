"""The lag, from the ends of a topic over time and the next offsets of the query."""

import datetime as dt

from spark_jobs.speed.lag import MOST_SAMPLES, Lag, TopicEnds

START = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def after(seconds):
    return START + dt.timedelta(seconds=seconds)


def ends(*samples):
    """Samples of (seconds after the start, ends of the partitions)."""
    found = TopicEnds()
    for seconds, *of_partitions in samples:
        found.note(after(seconds), dict(enumerate(of_partitions)))
    return found


def test_nothing_is_known_before_the_first_look():
    assert TopicEnds().lag({0: 5}, None, START) is None
    assert TopicEnds().appended_per_s() is None
    assert TopicEnds().last_seen_at is None


def test_all_taken_is_no_lag_however_old_the_last_record():
    assert ends((0, 10, 3)).lag({0: 10, 1: 3}, after(-3600), after(1)) == Lag(0, 0.0)


def test_records_are_counted_over_the_partitions_and_never_below_zero():
    assert ends((0, 10, 3)).lag({0: 4, 1: 99}, None, after(1)).records == 6


def test_a_partition_added_since_counts_from_its_beginning():
    assert ends((0, 10, 3)).lag({0: 10}, None, after(1)).records == 3


def test_waits_since_the_topic_last_ended_where_everything_is_taken():
    looked = ends((0, 10), (2, 10), (4, 12), (6, 15))
    assert looked.lag({0: 10}, after(-3600), after(7)) == Lag(5, 5.0)  # not an hour: the topic was idle
    assert looked.lag({0: 12}, None, after(7)) == Lag(3, 3.0)


def test_lag_grows_while_nothing_is_taken():
    looked = ends((0, 10), (2, 11))
    seconds = [looked.lag({0: 10}, None, after(now)).seconds for now in (3, 60, 3600)]
    assert seconds == [3, 60, 3600]


def test_a_backlog_from_before_the_start_is_as_old_as_the_newest_record_taken():
    looked = ends((0, 1000), (2, 1000))
    assert looked.lag({0: 300}, after(-500), after(2)) == Lag(700, 502.0)


def test_a_backlog_of_which_nothing_is_taken_has_waited_since_the_first_look_at_least():
    assert ends((0, 1000), (2, 1000)).lag({0: 300}, None, after(5)) == Lag(700, 5.0)


def test_a_timestamp_from_the_future_says_nothing():
    assert ends((0, 10), (2, 15)).lag({0: 10}, after(900), after(4)) == Lag(5, 4.0)


def test_a_long_outage_is_remembered_with_few_samples():
    looked = ends((0, 10))
    for second in range(1, 4 * MOST_SAMPLES):
        looked.note(after(second), {0: 10 + second})
    last = 4 * MOST_SAMPLES - 1
    assert looked.lag({0: 10}, None, after(last)) == Lag(last, float(last))
    assert len(looked._samples) <= MOST_SAMPLES
    assert looked.appended_per_s() == 1.0


def test_rate_is_that_of_the_last_seconds():
    assert ends((0, 0), (100, 1000), (110, 1500)).appended_per_s() == 50.0
    assert ends((0, 0), (100, 1000)).appended_per_s() == 10.0


def test_a_topic_made_anew_has_no_negative_rate():
    assert ends((0, 1000), (2, 0)).appended_per_s() == 0.0
