"""What one call may carry. Those that an operator may want to change are in `settings.GatewayLimits`."""

from include.settings import GatewayLimits

DEFAULT = GatewayLimits()
MAX_BODY_BYTES = DEFAULT.max_body_bytes
MAX_EVENTS = DEFAULT.max_events
MAX_HEAD_BYTES = 16 << 10
