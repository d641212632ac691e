"""Stopping, starting and killing one service of the running stack, for people and for the demo."""

import threading
import time

from stack import environment, up
from stack.errors import StackError
from stack.layout import Layout
from stack.service import Service
from stack.services import declare
from stack.supervisor import Supervisor

_POLL_S = 0.1


def stop_service(name: str, layout: Layout | None = None) -> None:
    """Stop the service cleanly and wait until it is gone; it stays stopped. Raises StackError."""
    layout = layout or Layout.of()
    supervisor = Supervisor(layout)
    supervisor.state(_own_service(name, layout).name)
    supervisor.stop([name])


def start_service(name: str, wait_healthy: bool = True, layout: Layout | None = None) -> None:
    """Start the service; with `wait_healthy` return only when it is. Raises StackError when it dies or is too late."""
    layout = layout or Layout.of()
    supervisor = Supervisor(layout)
    supervisor.state(_own_service(name, layout).name)
    supervisor.start(name)
    if wait_healthy:
        wait_until_healthy(name, layout)


def kill_service(name: str, layout: Layout | None = None) -> int:
    """SIGKILL the service's process, and return the pid it had. The supervisor starts it again. Raises StackError."""
    layout = layout or Layout.of()
    return Supervisor(layout).kill(_own_service(name, layout).name)


def service_pid(name: str, layout: Layout | None = None) -> int:
    """The pid of the service's process; 0 when it does not run. Raises StackError when the stack is down."""
    layout = layout or Layout.of()
    return Supervisor(layout).state(_own_service(name, layout).name).pid


def wait_until_restarted(name: str, killed_pid: int, layout: Layout | None = None) -> int:
    """Block until the supervisor has started the killed service again and it is healthy; returns the new pid.

    Raises StackError when it is not within the service's own deadline.
    """
    layout = layout or Layout.of()
    supervisor, deadline = Supervisor(layout), time.monotonic() + _own_service(name, layout).deadline_s
    while (pid := supervisor.state(name).pid) in (0, killed_pid):
        if time.monotonic() > deadline:
            raise StackError(f"{name}: the supervisor did not start it again after pid {killed_pid}")
        time.sleep(_POLL_S)
    wait_until_healthy(name, layout)
    return pid


def wait_until_healthy(name: str, layout: Layout | None = None) -> None:
    """Block until the service is healthy, up to its own deadline. Raises StackError."""
    layout = layout or Layout.of()
    up.wait_healthy(_own_service(name, layout), layout, Supervisor(layout), threading.Event())


def _own_service(name: str, layout: Layout) -> Service:
    for node in declare(environment.load_settings(layout), layout):
        if isinstance(node, Service) and node.name == name:
            if node.external:
                raise StackError(f"{name} is your own (STACK_EXTERNAL): it is not started or stopped here")
            return node
    raise StackError(f"no service is called {name}")
