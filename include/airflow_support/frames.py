"""The origins that may show Airflow's pages in a frame."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = "frame-ancestors 'self'"


class OwnFramesOnly:
    """Forbids every other site to frame a page, and so to have a user press its buttons unseen.

    A page with a policy of its own keeps that. Airflow's pages have none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, with the policy."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Content-Security-Policy", _POLICY)
            await send(message)

        await self._app(scope, receive, send_with_policy)
