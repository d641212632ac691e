"""Configures supervisord and controls it over its Unix socket."""

import hashlib
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xmlrpc.client import Fault, ServerProxy

from supervisor.xmlrpc import Faults, SupervisorTransport

from stack import env_file
from stack.layout import Layout, StackError
from stack.services import Service

_SOCKET_PATH_LIMIT = 100  # the kernel's limit is 107 bytes, and supervisord adds a suffix while it starts
_DAEMON_DEADLINE_S = 20
_SHUTDOWN_DEADLINE_S = 120
_POLL_S = 0.1
_UMASK = 0o077  # files of services are private, also in folders outside of the state folder

STOPPED = frozenset({"STOPPED", "FATAL", "UNKNOWN"})  # without EXITED and BACKOFF, which supervisord restarts
ALIVE = frozenset({"STARTING", "RUNNING"})


@dataclass(frozen=True)
class ProcessState:
    """State of a process in supervisord. `pid` is 0 and `started_at` (Unix time) meaningless unless it is running."""

    name: str
    state: str
    pid: int
    started_at: float
    description: str


class Supervisor:
    """One stack's supervisord. Thread-safe, because every call opens a connection of its own."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    @property
    def socket(self) -> Path:
        """The control socket; in a private temporary folder if the project's path is too long for a socket."""
        path = self._layout.run / "supervisor.sock"
        if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT:
            return path
        digest = hashlib.sha256(os.fsencode(self._layout.state)).hexdigest()[:16]
        return Path(tempfile.gettempdir(), f"stack-{os.geteuid()}-{digest}", "s")

    def is_running(self) -> bool:
        """True if a supervisord responds on the socket."""
        try:
            self._call("getPID")
        except (OSError, Fault):
            return False
        return True

    def start_daemon(self, services: Iterable[Service]) -> None:
        """Start supervisord, without services. Does nothing if it is running."""
        if self.is_running():
            return
        self._make_socket_folder()
        config = self._layout.run / "supervisord.conf"
        config.write_text(self.render(services))
        config.chmod(0o600)
        settings = env_file.load_settings(self._layout)
        result = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)],
            cwd=self._layout.root,
            env=env_file.base_environment(self._layout, settings),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            umask=_UMASK,
        )
        if result.returncode != 0:
            raise StackError(f"supervisord did not start: {(result.stderr or result.stdout).strip()}")
        deadline = time.monotonic() + _DAEMON_DEADLINE_S
        while not self.is_running():
            if time.monotonic() > deadline:
                raise StackError(f"supervisord does not answer, see {self._layout.log_file('supervisord')}")
            time.sleep(_POLL_S)

    def render(self, services: Iterable[Service]) -> str:
        """Return the configuration. `up` starts services in order; supervisord restarts those that die."""
        run = self._layout.run
        lines = [
            "[supervisord]",
            f"logfile={_escape(self._layout.log_file('supervisord'))}",
            "logfile_maxbytes=5MB",
            "logfile_backups=1",
            f"pidfile={_escape(run / 'supervisord.pid')}",
            f"childlogdir={_escape(self._layout.logs)}",
            f"directory={_escape(self._layout.root)}",
            f"umask={_UMASK:03o}",  # for services; until supervisord reads it, the umask of its start applies
            *(["user=root"] if os.geteuid() == 0 else []),  # without it supervisord logs a warning
            "[unix_http_server]",
            f"file={_escape(self.socket)}",
            "chmod=0600",
            "[rpcinterface:supervisor]",
            "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
        ]
        for service in services:
            lines += self._render_service(service)
        return "\n".join([*lines, ""])

    def _render_service(self, service: Service) -> list[str]:
        command = [sys.executable, "-m", "stack.run_service"]
        command += ["--state", str(self._layout.state), "--env-file", str(self._layout.env_file), service.name]
        return [
            f"[program:{service.name}]",
            f"command={_escape(shlex.join(command))}",
            "autostart=false",
            "autorestart=true",
            "startsecs=3",
            "startretries=100000",  # with growing waits; an outage elsewhere must not stop a service for good
            f"stopsignal={service.stop_signal}",
            f"stopwaitsecs={service.stop_deadline_s}",
            "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={_escape(_escape(self._layout.log_file(service.name)))}",  # supervisord expands it twice
            "stdout_logfile_maxbytes=20MB",
            "stdout_logfile_backups=2",
        ]

    def states(self) -> dict[str, ProcessState]:
        """Return the state of every process by name; empty if supervisord is not running."""
        try:
            answer = self._call("getAllProcessInfo")
        except OSError:
            return {}
        assert isinstance(answer, list)
        return {
            info["name"]: ProcessState(
                info["name"], info["statename"], info["pid"], float(info["start"]), info["description"]
            )
            for info in answer
        }

    def alive(self) -> set[str]:
        """Return the names of the processes that start or run."""
        return {each.name for each in self.states().values() if each.state in ALIVE}

    def state(self, name: str) -> ProcessState:
        """Return the state of one process. Raises StackError if supervisord is not running or does not have it."""
        states = self.states()
        if name not in states:
            raise StackError(f"{name} is not under supervision now: run `make up`")
        return states[name]

    def start(self, name: str) -> None:
        """Start a process without waiting for it. Does nothing if it is running."""
        try:
            self._call("startProcess", name, False)
        except Fault as exc:
            if exc.faultCode != Faults.ALREADY_STARTED:
                raise StackError(f"{name} could not be started: {exc.faultString}") from exc

    def stop(self, names: Iterable[str]) -> None:
        """Stop processes in parallel and wait until they have ended; after its stop deadline each gets SIGKILL."""
        wanted = set(names)
        while True:
            active = [each for each in self.states().values() if each.name in wanted and each.state not in STOPPED]
            if not active:
                return
            for process in active:
                if process.state != "STOPPING":
                    self._stop(process.name)
            time.sleep(_POLL_S)

    def _stop(self, name: str) -> None:
        try:
            self._call("stopProcess", name, False)
        except Fault as exc:
            if exc.faultCode != Faults.NOT_RUNNING:  # it died just now and will be restarted: the caller retries
                raise StackError(f"{name} could not be stopped: {exc.faultString}") from exc

    def kill(self, name: str, signal: str) -> int:
        """Send a signal, such as KILL, to a running process, not to its group; returns its pid."""
        pid = self.state(name).pid
        try:
            self._call("signalProcess", name, signal)
        except Fault as exc:
            raise StackError(f"{name} could not be sent SIG{signal}: {exc.faultString}") from exc
        return pid

    def shut_down(self) -> None:
        """Stop supervisord and all its processes; returns when it has ended."""
        try:
            pid = self._call("getPID")
            assert isinstance(pid, int)
            daemon = os.pidfd_open(pid)
        except OSError:
            return
        try:
            self._call("shutdown")
            select.select([daemon], [], [], _SHUTDOWN_DEADLINE_S)  # readable once it has exited
        finally:
            os.close(daemon)

    def _call(self, method: str, *arguments: object) -> object:
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        try:
            return getattr(ServerProxy("http://127.0.0.1", transport=transport).supervisor, method)(*arguments)
        finally:
            transport.close()

    def _make_socket_folder(self) -> None:
        folder = self.socket.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise StackError(f"{folder} is not ours alone: remove it, or clone the project to a shorter path")


def _escape(value: object) -> str:
    return str(value).replace("%", "%%")
