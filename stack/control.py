"""Starts the stack, and stops, starts and kills single services of it.

Each service starts as soon as its dependencies are healthy, independent ones in parallel.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from stack import env_file, jobs, leftovers
from stack.down import stop_all
from stack.health import unhealthy_reason
from stack.layout import Layout, StackError, exclusive
from stack.machine import is_free
from stack.run_service import started_with_another
from stack.services import Job, Node, Service, declare, needed_by, own_services, services_of
from stack.supervisor import ALIVE, Supervisor

_POLL_S = 0.2
_LOG_LINES = 15
_SAY_AGAIN_S = 10.0


def up(layout: Layout, only: tuple[str, ...] = (), pipeline: str = "") -> None:
    """Start the named services and their dependencies, or everything. Running services are left alone.

    With a `pipeline`, it is added to PIPELINES in `.env` first if it is missing there.

    If the code, the environment or `.env` has changed since a service was started, all running services are stopped
    first and started again: a process of an earlier version must not use tables of this one.
    Blocks until all are healthy. Raises StackError if a port is in use, or if a service dies or is not healthy by its
    deadline; the other services stay up, and so does one that is late.
    """
    started = time.monotonic()
    layout.make_folders()
    with exclusive(layout):
        notes = env_file.complete(layout)
        if pipeline and env_file.add_pipeline(layout.env_file, pipeline):
            notes += [f"{pipeline} is added to PIPELINES in {layout.env_file.name}", *env_file.complete(layout)]
        for note in notes:
            print(note)
        settings = env_file.load_settings(layout)
        nodes = declare(settings, layout)
        supervisor = Supervisor(layout)
        running = supervisor.alive()
        if not supervisor.is_running():
            _end_leftovers(layout)
        elif earlier := started_with_another(layout, running):
            print(f"code or settings have changed since the start of {', '.join(earlier)}: all start again")
            stop_all(layout)
            only = (*only, *running) if only else ()
        wanted = needed_by(nodes, only)
        _check_ports(wanted, supervisor)
        supervisor.start_daemon(own_services(nodes))
        _Start(layout, settings, supervisor).run(wanted)
    print(f"up in {time.monotonic() - started:.1f} s")


def wait_healthy(service: Service, layout: Layout, supervisor: Supervisor, cancelled: threading.Event) -> None:
    """Block until the service is healthy; prints what it waits for every ten seconds.

    Raises StackError if the service dies, misses its deadline, or `cancelled` is set. One that died is stopped, so that
    supervisord does not restart it for ever. One that is late goes on starting.
    """
    began = said = time.monotonic()
    first_pid = 0
    while True:
        pid, started_at = 0, 0.0
        if not service.external:
            process = supervisor.state(service.name)
            first_pid = first_pid or process.pid
            if process.state not in ALIVE or process.pid not in (0, first_pid):
                supervisor.stop([service.name])
                raise _failed(service, layout, f"died while starting ({process.description or process.state})")
            pid, started_at = process.pid, process.started_at
        reason = unhealthy_reason(service, pid, started_at)
        if reason is None:
            return
        if cancelled.is_set():
            raise StackError(f"{service.name}: no longer waited for")
        now = time.monotonic()
        if now - began > service.deadline_s:
            later = "" if service.external else "; it goes on starting, start it again to wait for it"
            raise _failed(service, layout, f"not healthy after {service.deadline_s:.0f} s ({reason}){later}")
        if now - said >= _SAY_AGAIN_S:
            print(f"  waiting for {service.name}: {reason}")
            said = now
        cancelled.wait(_POLL_S)


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


def kill_service(name: str, layout: Layout, signal: str = "KILL") -> int:
    """Send a signal to the service's process; returns its pid. If it ends, it is restarted. Raises StackError."""
    return Supervisor(layout).kill(_own_service(name, layout).name, signal)


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
    wait_healthy(_own_service(name, layout), layout, Supervisor(layout), threading.Event())


def _own_service(name: str, layout: Layout) -> Service:
    services = {each.name: each for each in services_of(declare(env_file.load_settings(layout), layout))}
    if name not in services:
        raise StackError(f"no service is called {name}: there are {', '.join(services)}")
    if services[name].external:
        raise StackError(f"{name} is your own (STACK_EXTERNAL): it is not started or stopped here")
    return services[name]


class _Start:
    """Starts the nodes, each when its dependencies are done."""

    def __init__(self, layout: Layout, settings: Mapping[str, str], supervisor: Supervisor) -> None:
        self._layout = layout
        self._settings = settings
        self._supervisor = supervisor
        self._cancelled = threading.Event()

    def run(self, nodes: Sequence[Node]) -> None:
        """Start the nodes and wait for them. Raises the first failure, after the nodes in progress have ended."""
        print("starting services; the first time takes a minute or two")
        waiting = {node.name: node for node in nodes}
        job_names = {node.name for node in nodes if isinstance(node, Job)}  # services say themselves what they lack
        running: dict[Future[None], str] = {}
        done: set[str] = set()
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            try:
                while waiting or running:
                    for node in [node for node in waiting.values() if done.issuperset(node.depends_on)]:
                        running[pool.submit(self._begin, node)] = node.name
                        del waiting[node.name]
                    finished = wait(running, _SAY_AGAIN_S, return_when=FIRST_COMPLETED).done
                    if not finished and (names := sorted(each for each in running.values() if each in job_names)):
                        print(f"  waiting for {', '.join(names)}")
                    for future in finished:
                        future.result()
                        done.add(running.pop(future))
            except BaseException:  # a failure or Ctrl-C: the other threads must not wait for their deadlines
                self._cancelled.set()
                raise

    def _begin(self, node: Node) -> None:
        started = time.monotonic()
        match node:
            case Job():
                jobs.run(node, self._layout, self._settings)
                print(f"  {node.name:<24} done      {time.monotonic() - started:5.1f} s")
            case Service():
                if not node.external:
                    self._supervisor.start(node.name)
                wait_healthy(node, self._layout, self._supervisor, self._cancelled)
                print(f"  {node.name:<24} healthy   {time.monotonic() - started:5.1f} s   {node.address}".rstrip())


def _failed(service: Service, layout: Layout, what: str) -> StackError:
    log = layout.log_file(service.name)
    tail = "".join(f"\n    {line}" for line in jobs.last_lines(log, _LOG_LINES))
    return StackError(f"{service.name} {what}, see {log}{tail}")


def _check_ports(nodes: Sequence[Node], supervisor: Supervisor) -> None:
    running = supervisor.alive()
    for service in (each for each in own_services(nodes) if each.name not in running):
        for variable, port in service.ports.items():
            if not is_free(port):
                raise StackError(
                    f"port {port} of {service.name} is in use by another program: stop that, "
                    f"or set {variable} in .env to a free port"
                )


def _end_leftovers(layout: Layout) -> None:
    """End services that survived a crash of their supervisor: they hold ports and are not supervised."""
    found = leftovers.find(layout.state)
    if found:
        print(f"ending {len(found)} processes that an earlier run left: {', '.join(str(each.pid) for each in found)}")
        leftovers.terminate(found)
