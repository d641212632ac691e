"""A headless Chromium that is logged in to Airflow, for tests of pages."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from demo.airflow_client import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator, Page

NO_CHROMIUM = "no Chromium on PATH; install it (Debian: apt install chromium)"
STATE_MS = 120_000  # a part that did not answer in time is asked again when the page renews its state, after 30 s
_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator["Browser"]:
    """The machine's Chromium. Skips the test if there is none."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(NO_CHROMIUM)
    from playwright.sync_api import sync_playwright

    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium refuses to run as root with one
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def logged_in(browser: "Browser", url: str, user: str, password: str, **options: Any) -> Iterator["Page"]:
    """Airflow's first page as the user sees it, in a session of its own. `options` are those of a browser context."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        page = context.new_page()
        page.goto(url)
        page.locator("input[name=username]").fill(user)
        page.locator("input[name=password]").fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="Integrity", exact=True).wait_for()
        yield page
    finally:
        context.close()


def integrity(page: "Page") -> "FrameLocator":
    """Open the Integrity page from Airflow's navigation; returns its frame."""
    page.get_by_role("link", name="Integrity", exact=True).click()
    frame = page.frame_locator("iframe")
    frame.get_by_role("heading", level=1).wait_for()
    return frame


def started_run(page: "Page | FrameLocator", dag_id: str) -> Run:
    """The run that the Integrity page says it has started."""
    link = page.get_by_role("status").get_by_role("link", name="Watch it")
    link.wait_for()
    run_id = httpx.URL(link.get_attribute("href") or "").path.rsplit("/", 1)[-1]
    return Run(dag_id, run_id, "queued")


def violations(page: "Page", context: Mapping[str, Any] | None = None) -> list[str]:
    """Return the findings of axe in the page and its frames, each with its rule and element."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=context).response["violations"]
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]
