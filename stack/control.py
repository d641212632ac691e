"""Stops, starts and kills single services of the running stack, for the command line and the demo."""

import threading
import time

from stack import environment, up
from stack.errors import StackError
from stack.layout import Layout
from stack.services import Service, declare
from stack.supervisor import Supervisor

_POLL_S = 0.1


def stop_service(name: str, layout: Layout) -> None:
    """Stop the service cleanly and wait until it has ended. It is not restarted. Raises StackError."""
    supervisor = Supervisor(layout)
    supervisor.state(_own_service(name, layout).name)
    supervisor.stop([name])


def start_service(name: str, layout: Layout) -> None:
    """Start the service and block until it is healthy. Raises StackError if it dies or is late."""
    supervisor = Supervisor(layout)
    supervisor.state(_own_service(name, layout).name)
    supervisor.start(name)
    wait_until_healthy(name, layout)


def kill_service(name: str, layout: Layout) -> int:
    """Send SIGKILL to the service's process; returns its pid. The supervisor restarts it. Raises StackError."""
    return Supervisor(layout).kill(_own_service(name, layout).name)


def wait_until_restarted(name: str, killed_pid: int, layout: Layout) -> int:
    """Block until the supervisor has restarted the killed service and it is healthy; returns the new pid.

    Raises StackError if that takes longer than the service's deadline.
    """
    supervisor, deadline = Supervisor(layout), time.monotonic() + _own_service(name, layout).deadline_s
    while (pid := supervisor.state(name).pid) in (0, killed_pid):
        if time.monotonic() > deadline:
            raise StackError(f"{name}: the supervisor did not start it again after pid {killed_pid}")
        time.sleep(_POLL_S)
    wait_until_healthy(name, layout)
    return pid


def wait_until_healthy(name: str, layout: Layout) -> None:
    """Block until the service is healthy, at most until its deadline. Raises StackError."""
    up.wait_healthy(_own_service(name, layout), layout, Supervisor(layout), threading.Event())


def _own_service(name: str, layout: Layout) -> Service:
    services = {
        node.name: node for node in declare(environment.load_settings(layout), layout) if isinstance(node, Service)
    }
    if name not in services:
        raise StackError(f"no service is called {name}: there are {', '.join(services)}")
    if services[name].external:
        raise StackError(f"{name} is your own (STACK_EXTERNAL): it is not started or stopped here")
    return services[name]
