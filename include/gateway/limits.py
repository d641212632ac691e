"""The limits that nobody needs to change; the others are settings (`GatewayLimits`)."""

# Of a record's value. Kafka's usual limit for a message, less a key and headers of the greatest length: a larger one
# must be refused before it is kept, because in an outage nobody else would say so, and the replay could not send it.
MAX_MESSAGE_BYTES = 1_000_000
MAX_RECORD_BYTES = MAX_MESSAGE_BYTES - 1024
