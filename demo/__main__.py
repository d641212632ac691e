"""Tells the story on the running stack: `make demo`. Exit code 0 when everything came out as told, else 1."""

import sys

from demo.addresses import show_addresses
from demo.airflow_client import AirflowClient
from demo.narrator import Narrator, NotAsTold
from demo.site import Site
from demo.story import Story
from demo.warehouse import Warehouse
from include.clock import SystemClock
from include.contracts.day import Day
from include.errors import PipelineError
from include.gateway.client import GatewayClient
from include.settings import Settings
from stack.environment import load_environment
from stack.errors import StackError


def main() -> int:
    """Run the demo; returns the exit code."""
    narrator = Narrator()
    try:
        environment = load_environment()
        settings = Settings.from_environment(environment)
        day = Day.of(SystemClock().now(), settings.timezone).before()
        airflow_url = f"http://127.0.0.1:{environment['AIRFLOW_PORT']}"
        with (
            GatewayClient(settings.gateway) as gateway,
            AirflowClient(airflow_url, "operator", environment["AIRFLOW_OPERATOR_PASSWORD"]) as airflow,
        ):
            Story(settings, gateway, Warehouse(settings), airflow, Site.opened_now(day), narrator).tell()
    except (NotAsTold, PipelineError, StackError) as exc:
        narrator.say(f"[bold red]✗ not as told:[/] {exc}")
        narrator.say("the logs: make logs; what runs: make status")
        return 1
    narrator.say(f"\n   [bold green]The story came out as told, in {narrator.elapsed_s:.0f} s.[/]")
    show_addresses(environment, narrator, is_terminal=sys.stdout.isatty())
    return 0


if __name__ == "__main__":
    sys.exit(main())
