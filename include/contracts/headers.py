"""Names of the record headers. Values are UTF-8 text."""

EVENT_ID = "event-id"  # the client's Idempotency-Key, else a new UUID: the identity that duplicates share
ACCEPTED_AT = "accepted-at"  # when the gateway took the event, RFC 3339 in UTC
REPLAYED_AT = "replayed-at"  # set on records that came out of a fallback store

# On board-detail: the coordinates of the records it was joined from. Duplicates made by a sink have offsets of their
# own, so only these name a row.
BOARD_TOPIC = "board-topic"
BOARD_PARTITION = "board-partition"
BOARD_OFFSET = "board-offset"
MEMBER_TOPIC = "member-topic"
MEMBER_PARTITION = "member-partition"
MEMBER_OFFSET = "member-offset"
