"""The steps of a rebuild from a shell: `python -m include.integrity {settle,verify,publish,certify} --day D`."""

import argparse
import dataclasses
import json
import logging
import sys

from include.contracts.day import Day, DayFormatError
from include.errors import PipelineError
from include.integrity.settled import wait_until_settled
from include.integrity.steps import certify, publish, verify
from include.settings import Settings

log = logging.getLogger("integrity")


def main() -> int:
    """One step, its result as JSON on standard output; exit code 1 with one line when it cannot be done."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    parser = argparse.ArgumentParser(prog="python -m include.integrity", description=__doc__)
    parser.add_argument("step", choices=["settle", "verify", "publish", "certify"])
    parser.add_argument("--day", help="YYYY-MM-DD, in the pipeline's time zone (all steps but settle)")
    parser.add_argument("--run-id", help="the run that built the generation; default: the newest built one")
    arguments = parser.parse_args()
    if arguments.step != "settle" and not arguments.day:
        parser.error(f"{arguments.step} needs --day")
    try:
        result = _run(Settings.from_environment(), arguments.step, arguments.day, arguments.run_id)
    except (PipelineError, DayFormatError) as exc:
        log.error("%s: %s", type(exc).__name__, exc)
        return 1
    print(json.dumps(result, default=str))
    return 0


def _run(settings: Settings, step: str, day_text: str, run_id: str | None) -> object:
    if step == "settle":
        return dataclasses.asdict(wait_until_settled(settings))
    day = Day.parse(day_text, settings.timezone)
    if step == "verify":
        return dataclasses.asdict(verify(settings, day, run_id))
    if step == "publish":
        return {"generation_id": publish(settings, day, run_id)}
    return dataclasses.asdict(certify(settings, day))


if __name__ == "__main__":
    sys.exit(main())
