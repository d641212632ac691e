"""What one call may carry."""

MAX_BODY_BYTES = 4 << 20
MAX_EVENTS = 1000
