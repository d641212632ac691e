"""The local stack: python -m stack env|up|down|status|logs|clean|stop|start|kill|airflow|backup|restore.

`down`, `status`, `logs` and `clean` work without the virtual environment, which may be gone while the stack runs, and
`env` on a machine that only runs containers. So modules that need its packages are imported where they are used.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from include.contracts.errors import LOOK, PipelineError
from stack import env_file, leftovers
from stack.down import clean, down
from stack.layout import Layout, StackError, one_line_errors

_TABLE_WIDTH = 140


def main() -> int:
    """Run the command; returns 0 on success, 1 on failure or if a service is unhealthy, 130 after Ctrl-C."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # shows progress through a pipe too
    arguments = _parser().parse_args()
    os.umask(0o077)  # the stack's files are private, wherever its folders are
    layout = Layout.of(state=arguments.state, env_file=arguments.env_file)
    try:
        return one_line_errors(arguments.command)(_run)(arguments, layout)
    except ModuleNotFoundError as exc:
        print(f"{arguments.command}: there is no {exc.name} without the environment: run `make setup`", file=sys.stderr)
        return 1
    except PipelineError as exc:  # of a wrong definition, which modules read when they are imported
        print(f"{arguments.command}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        ways_on = (
            "; `make up` goes on from here, `make down` ends what has started" if arguments.command == "up" else ""
        )
        print(f"{arguments.command}: broken off{ways_on}", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, layout: Layout) -> int:
    match arguments.command:
        case "env":
            for note in env_file.complete(layout):
                print(note)
            print(f"{layout.env_file} is complete")
        case "up":
            from stack.control import up

            up(layout, tuple(name for name in arguments.only.split(",") if name), pipeline=arguments.pipeline)
        case "down":
            down(layout)
        case "clean":
            clean(layout, force=arguments.force)
        case "status":
            return _status(layout)
        case "logs":
            _logs(layout, arguments.names, arguments.lines, arguments.follow)
        case "airflow":
            from stack.run_service import run_airflow

            run_airflow(layout, arguments.words)
        case "backup":
            from stack.backup import backup

            _end_in_order()
            backup(layout, arguments.to)
        case "restore":
            from stack.backup import restore

            _end_in_order()
            restore(layout, arguments.source, arguments.force)
        case "stop":
            from stack.control import stop_service

            stop_service(arguments.name, layout)
        case "start":
            from stack.control import start_service

            start_service(arguments.name, layout)
        case "kill":
            from stack.control import kill_service

            print(f"pid {kill_service(arguments.name, layout, arguments.signal)} got SIG{arguments.signal}")
    return 0


def _end_in_order() -> None:
    """Let SIGTERM and SIGHUP end the process as an exception does, so that it stops and removes what it began."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))


def _status(layout: Layout) -> int:
    try:
        from rich.console import Console

        from stack import status
    except ModuleNotFoundError:
        services = leftovers.find_services(layout.state)
        running = "these services run:" if services else "no service runs"
        print(f"there is no environment, so health is not known (`make setup` makes one); {running}")
        for name, process in services.items():
            print(f"  {name:<24} pid {process.pid}")
        return LOOK
    statuses = status.collect(layout)
    console = Console()
    if not console.is_terminal:
        console.width = _TABLE_WIDTH  # a pipe has no width
    status.show(statuses, layout, console)
    return 0 if all(each.unhealthy_reason is None for each in statuses) else LOOK


def _logs(layout: Layout, names: list[str], lines: int, follow: bool) -> None:
    """Replace this process with `tail`. Does not return."""
    files = [layout.log_file(name) for name in names] or sorted(layout.logs.glob("*.log"))
    missing = [path for path in files if not path.exists()]
    if missing or not files:
        raise StackError(
            f"there is no {missing[0] if missing else 'log yet'}: run `make up` first, or see `make status`"
        )
    os.execvp("tail", ["tail", "-n", str(lines), *(["-F"] if follow else []), "--", *map(str, files)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stack", description=__doc__)
    parser.add_argument("--state", type=Path, help="folder for all data (default: .state)")
    parser.add_argument("--env-file", type=Path, help="ports and secrets (default: .env)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("env", help="create .env with ports and secrets, or add what it lacks; compose reads it too")
    start_all = commands.add_parser("up", help="start services, each after its dependencies are healthy")
    start_all.add_argument(
        "--only", default="", metavar="NAMES", help="these services, with commas, and their dependencies"
    )
    start_all.add_argument(
        "--pipeline", default="", metavar="NAME", help="also this one: it is added to PIPELINES in .env"
    )
    commands.add_parser("down", help="stop everything and leave no process behind")
    remove = commands.add_parser("clean", help="stop everything and remove the data")
    remove.add_argument("--force", action="store_true", help="also remove events that are in no topic, and the archive")
    commands.add_parser("status", help="show the services; exit code 3 if one is not healthy")
    logs = commands.add_parser("logs", help="the end of the logs")
    logs.add_argument("names", nargs="*", metavar="NAME")
    logs.add_argument("-n", "--lines", type=int, default=20)
    logs.add_argument("-f", "--follow", action="store_true")
    airflow = commands.add_parser("airflow", help="Airflow's own command line, with the stack's database and settings")
    airflow.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="such as: dags list")
    save = commands.add_parser("backup", help="back up the databases, the archive, the fallback store and .env")
    save.add_argument("to", type=Path, metavar="TO", help="a new folder")
    back = commands.add_parser("restore", help="restore a backup; the stack is down")
    back.add_argument("source", type=Path, metavar="FROM", help="the folder of a backup")
    back.add_argument("--force", action="store_true", help="replace the data of PostgreSQL, and .env")
    for name, text in (
        ("stop", "stop one service"),
        ("start", "start one service and wait until it is healthy"),
        ("kill", "send SIGKILL, or another signal, to one service; if it ends, it is restarted"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("name")
        if name == "kill":
            one.add_argument("--signal", default="KILL", choices=("KILL", "TERM", "HUP"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
