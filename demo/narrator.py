"""Output of the demo: chapters, facts, progress, addresses, and checks that end it if a step fails.

Passwords are shown on a terminal only.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from include.runtime.settings import Settings

Found = TypeVar("Found")

POLL_S = 0.2
_WIDTH = 120


class NotAsTold(Exception):
    """A step of the story did not come out as it should."""


class Narrator:
    """Prints the story on one console."""

    def __init__(self) -> None:
        console = Console()
        self._console = console if console.is_terminal else Console(width=_WIDTH)
        self._begun = time.monotonic()
        self._chapter = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._begun

    def chapter(self, title: str) -> None:
        """Begin the next step."""
        self._chapter += 1
        self._console.print(f"\n[bold cyan]{self._chapter}. {title}[/]  [dim]({self.elapsed_s:.0f} s)[/]")

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(f"   {text}", highlight=False)

    def table(self, headings: Iterable[str], rows: Iterable[Iterable[Any]], fold: bool = True) -> None:
        """Print a table. Unless `fold`, cells are not wrapped, so that they can be copied from narrow terminals too."""
        table = Table(box=None, padding=(0, 2, 0, 1), header_style="dim")
        for heading in headings:
            table.add_column(heading, overflow="fold", no_wrap=not fold)
        for row in rows:
            table.add_row(*["" if value is None else str(value) for value in row])
        console = self._console if fold else Console(width=max(self._console.width, _WIDTH))
        console.print(table)

    def check(self, fact: bool, told: str) -> None:
        """Print `told` if `fact` is true, else raise NotAsTold."""
        if not fact:
            raise NotAsTold(told)
        self._console.print(f"   [green]✓[/] {told}", highlight=False)

    def until(
        self,
        what: str,
        look: Callable[[], Found],
        is_done: Callable[[Found], bool],
        timeout_s: float,
        progress: Callable[[Found], str] | None = None,
    ) -> tuple[Found, float]:
        """Poll `look` until it is done; returns the last value and the seconds. Raises NotAsTold after the timeout."""
        begun = time.monotonic()
        told = ""
        while True:
            seen = look()
            took = time.monotonic() - begun
            if is_done(seen):
                return seen, took
            if took > timeout_s:
                raise NotAsTold(f"{what}: not after {timeout_s:.0f} s; last seen: {seen}")
            text = progress(seen) if progress else ""
            if text != told:
                told = text
                self.say(f"[dim]{text}[/]")
            time.sleep(POLL_S)


def show_addresses(environment: Mapping[str, str], settings: Settings, narrator: Narrator, is_terminal: bool) -> None:
    """Print the table of URLs. Without a terminal it has the names of the passwords in `.env` instead of passwords."""

    def secret(name: str) -> str:
        return environment[name] if is_terminal else f"{name} in .env"

    airflow = f"http://127.0.0.1:{environment['AIRFLOW_PORT']}"
    database = f"{settings.database.host}:{settings.database.port}/{settings.database.name}"
    rows = [
        ("Airflow", airflow, "admin", secret("AIRFLOW_ADMIN_PASSWORD")),
        ("", "", "operator", secret("AIRFLOW_OPERATOR_PASSWORD")),
        ("", "", "viewer", secret("AIRFLOW_VIEWER_PASSWORD")),
        ("Gateway", environment["GATEWAY_URL"], "Bearer token", secret("GATEWAY_TOKEN")),
        ("  its fallback store", f"{environment['GATEWAY_URL']}/fallback", "Bearer token",
         secret("GATEWAY_ADMIN_TOKEN")),
        ("PostgreSQL, for analysts", f"postgresql://{database}", "analyst", secret("DB_ANALYST_PASSWORD")),
        ("Kafka", environment["KAFKA_BOOTSTRAP_SERVERS"], "", ""),
        ("Stream, metrics", f"http://127.0.0.1:{settings.stream.metrics_port}/metrics", "", ""),
    ]  # fmt: skip
    narrator.say("")
    narrator.table(("what", "where", "user", "password"), rows, fold=False)
    narrator.say("the stack keeps running: make status shows it, make down stops it")
