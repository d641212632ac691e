"""Limits that are not settings; the others are in `GatewayLimits`."""

# MAX_RECORD_BYTES limits a record's value: the message limit less the longest key and headers. A larger event must be
# refused at once. In an outage the fallback store would accept it, and the replay could never send it.
MAX_MESSAGE_BYTES = 1_000_000
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - 1024
