"""The channels of alerts, as notifiers of Airflow: log, webhook and mail.

Texts are passed to `notify` as they are. Airflow would render them as templates, and they hold data.
"""

import html
import logging
from collections.abc import Mapping
from typing import Any

import httpx
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import BaseNotifier, Context
from airflow.sdk.configuration import conf

from include.contracts.errors import Retryable
from include.integrity.watch.alerts import Notice, Send
from include.runtime.settings import AlertSettings

log = logging.getLogger(__name__)


def address_of(path: str) -> str:
    """Return the URL of a page; its path alone if Airflow does not know its own address (`[api] base_url`)."""
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/{path}"


WEBHOOK_TIMEOUT_S = 10.0


class WebhookFailed(Retryable):
    """The webhook did not take the notice."""


class LogNotifier(BaseNotifier):
    """Writes the notice to the task's log."""

    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice

    def notify(self, context: Context) -> None:
        """Log it: at the level of its severity, or as information when it is over."""
        level = {"critical": logging.ERROR, "warning": logging.WARNING}[self.notice.finding.severity]
        facts = "; ".join(f"{name}: {text}" for name, text in facts_of(self.notice).items())
        log.log(level if self.notice.event == "opened" else logging.INFO, "%s; %s", self.notice.title, facts)


class WebhookNotifier(BaseNotifier):
    """Posts the notice as a JSON object."""

    def __init__(self, url: str, notice: Notice) -> None:
        super().__init__()
        self.url = url
        self.notice = notice

    def notify(self, context: Context) -> None:
        """Post it. Blocks for 10 s at each step at most; raises WebhookFailed unless the answer is 2xx."""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each address, and this one is a secret
        try:
            answer = httpx.post(self.url, json=body_of(self.notice), timeout=WEBHOOK_TIMEOUT_S)
        except httpx.HTTPError as exc:
            raise WebhookFailed(reason=type(exc).__name__) from None  # its message may have the address, a secret
        if not answer.is_success:
            raise WebhookFailed(status=answer.status_code)


def facts_of(notice: Notice) -> dict[str, str]:
    """Return the facts of a notice, with the address at which its runbook opens."""
    return {**notice.facts, "runbook": address_of(f"runbooks/{notice.finding.runbook}")}


def body_of(notice: Notice) -> dict[str, Any]:
    """Return the JSON object of a notice. `key` is the same for the begin and the end of an alert."""
    finding = notice.finding
    return {
        "event": notice.event,
        "key": f"{notice.pipeline}/{finding.name}/{finding.subject}",
        "pipeline": notice.pipeline,
        "name": finding.name,
        "subject": finding.subject,
        "title": notice.title,
        "text": finding.message,
        **{name.replace(" ", "_"): text for name, text in facts_of(notice).items() if name != "message"},
    }


def mail_of(notice: Notice, recipients: tuple[str, ...]) -> SmtpNotifier:
    """Return the mail of a notice, over the connection smtp_default, which also has the sender."""
    rows = "".join(
        f"<tr><th align='left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts_of(notice).items()
    )
    text = f"<p>{html.escape(notice.title)}</p><table>{rows}</table>"
    return SmtpNotifier(list(recipients), subject=notice.title, html_content=text, smtp_conn_id="smtp_default")


def channels_of(settings: AlertSettings, context: Context) -> Mapping[str, Send]:
    """Return the channels that the settings name: log always, webhook and mail with an address."""
    channels: dict[str, Send] = {"log": lambda notice: LogNotifier(notice).notify(context)}
    if settings.webhook_url:
        channels["webhook"] = lambda notice: WebhookNotifier(settings.webhook_url, notice).notify(context)
    if settings.mail_to:
        channels["mail"] = lambda notice: mail_of(notice, settings.mail_to).notify(context)
    return channels
