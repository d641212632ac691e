"""Tells the story of a pipeline on the running stack: `make demo`, or `make demo P=order_detail`.

Exit code 0 if all checks passed, else 1.
"""

import argparse
import sys
from collections.abc import Mapping

from demo.airflow_client import AirflowClient
from demo.records import GeneratedRecords, SiteRecords
from demo.story import LocalServices, Narrator, NotAsTold, PipelineStory, Story, show_addresses
from demo.warehouse import Warehouse
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.definition import SITE_NAME
from include.contracts.errors import PipelineError
from include.contracts.pipelines import SITE_PIPELINE
from include.gateway.client import GatewayClient
from include.runtime.settings import Settings
from stack.env_file import load_environment
from stack.layout import StackError


def main() -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("pipeline", nargs="?", default=SITE_NAME, help="default: %(default)s")
    pipeline = parser.parse_args().pipeline
    narrator = Narrator()
    try:
        environment = load_environment()
        settings = Settings.from_environment(environment, pipeline)
        _tell(settings, environment, narrator)
    except (NotAsTold, PipelineError, StackError) as exc:
        narrator.say(f"[bold red]✗ check failed:[/] {exc}")
        narrator.say("logs: make logs; services: make status")
        return 1
    narrator.say(f"\n   [bold green]All checks passed, in {narrator.elapsed_s:.0f} s.[/]")
    show_addresses(environment, settings, narrator, is_terminal=sys.stdout.isatty())
    return 0


def _tell(settings: Settings, environment: Mapping[str, str], narrator: Narrator) -> None:
    day = Day.of(SystemClock().now(), settings.timezone).before()
    warehouse, pipeline = Warehouse(settings), settings.pipeline
    services = LocalServices(settings.stream.checkpoint_dir)
    with GatewayClient(settings.gateway) as gateway:
        if pipeline is not SITE_PIPELINE:
            PipelineStory(
                settings, gateway, warehouse, records=GeneratedRecords(pipeline=pipeline, day=day), narrator=narrator,
                services=services, environment={**environment, "PIPELINE": pipeline.name},
            ).tell()  # fmt: skip
            return
        airflow_url = f"http://127.0.0.1:{environment['AIRFLOW_PORT']}"
        with AirflowClient(airflow_url, "operator", environment["AIRFLOW_OPERATOR_PASSWORD"]) as airflow:
            records = SiteRecords(day=day)
            Story(
                settings, gateway, warehouse, records=records, narrator=narrator, services=services, airflow=airflow
            ).tell()


if __name__ == "__main__":
    sys.exit(main())
