"""Makes the pictures of the Integrity page in docs/images: `python -m tests.support.screenshots`.

It starts an Airflow of its own with ninety made-up days, which takes a minute or two. With `--url` it takes pictures of
a running stack instead: `--day` and `--find` then name a day and a record of it, and the password is the one in `.env`.
The pages name a language in Korean letters, which need a font of this machine, such as Debian's fonts-nanum.
"""

import argparse
import datetime as dt
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from include.contracts.day import Day
from stack.env_file import load_environment
from tests.support.browser import chromium, integrity, logged_in
from tests.support.made_up_days import HERO_KEY, keep_stream_alive, make_up_days
from tests.support.pipeline_processes import ROOT, batch_side

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = ROOT / "docs" / "images"
USER = "operator"
SIZE = {"width": 1360, "height": 960}
LARGEST_BYTES = 200_000


def main() -> int:
    """Take the pictures; returns 1 if one is larger than 200 KB."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.url:
        password = load_environment()[f"AIRFLOW_{USER.upper()}_PASSWORD"]
        with chromium() as browser:
            return take(browser, arguments.url, password, arguments.day, arguments.find, arguments.out)
    with tempfile.TemporaryDirectory() as folder, batch_side(Path(folder)) as pipeline:
        settings = pipeline.settings
        day = make_up_days(settings, Day.of(dt.datetime.now(dt.UTC), settings.timezone))
        with pipeline.airflow(USER) as operator:
            operator.wait_for_dag("reprocess_days")
        with keep_stream_alive(settings), chromium() as browser:
            password = pipeline.variables[f"AIRFLOW_{USER.upper()}_PASSWORD"]
            return take(browser, pipeline.airflow_url, password, str(day), str(HERO_KEY), arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running Airflow; default: one is started")
    parser.add_argument("--day", help="a day to show, with --url")
    parser.add_argument("--find", metavar="KEY", help="a record to find, with --url")
    parser.add_argument("--out", type=Path, default=IMAGES, help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.url and not (arguments.day and arguments.find):
        parser.error("--url needs --day and --find")
    return arguments


def take(browser: "Browser", url: str, password: str, day: str, find: str, out: Path) -> int:
    """Take the pictures of an Airflow; returns 1 if one is larger than 200 KB."""
    with logged_in(browser, url, USER, password, viewport=SIZE) as page:
        frame = integrity(page)
        frame.locator("#days tbody tr").first.wait_for()
        _save(page, out / "overview.png")
        frame.get_by_role("link", name=day, exact=True).click()
        frame.get_by_role("heading", level=1, name=day).wait_for()
        _save(page, out / "day.png")
        frame.get_by_role("link", name="Find a record").click()
        frame.get_by_label("Id, or event id").fill(find)
        page.keyboard.press("Enter")
        frame.locator(".verdict").wait_for()
        _save(page, out / "find.png")
    large = [file.name for file in sorted(out.glob("*.png")) if file.stat().st_size > LARGEST_BYTES]
    if large:
        print(f"{', '.join(large)}: larger than {LARGEST_BYTES:,} bytes; take them at a smaller size", file=sys.stderr)
    return 1 if large else 0


def _save(page: "Page", file: Path) -> None:
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)
    print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
