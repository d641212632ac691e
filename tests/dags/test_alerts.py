"""Notices arrive: in the log, at a real HTTP server and at a real mail server."""

import datetime as dt
import email
import email.policy

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message

from include.integrity.watch.alerts import Finding, Notice
from include.runtime.settings import AlertSettings
from stack.machine import unused
from tests.support.webhook import Webhook

pytestmark = pytest.mark.usefixtures("dag_bag")  # Airflow reads its environment when it is imported

SINCE = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)
FINDING = Finding(
    "day_held", "critical", "held for 9 days <b>{{ 7 * 7 }}</b>: lift it", "undo", "2026-11-20\r\nBcc: x@y"
)
OPENED = Notice("board_detail", "opened", FINDING, SINCE)
CLOSED = Notice("board_detail", "closed", FINDING, SINCE, SINCE + dt.timedelta(hours=1))


@pytest.fixture(autouse=True)
def address(monkeypatch):
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/")


class Mailbox(Message):
    """Keeps each mail."""

    def __init__(self):
        super().__init__()
        self.mails = []

    def prepare_message(self, session, envelope):
        return email.message_from_bytes(envelope.content, policy=email.policy.default), envelope.rcpt_tos

    def handle_message(self, message):
        self.mails.append(message)


@pytest.fixture
def webhook():
    server = Webhook()
    yield server
    server.close()


@pytest.fixture
def mailbox(monkeypatch):
    box, (port,) = Mailbox(), unused(1)
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    extra = "from_email=pipeline%40example.com&disable_ssl=true&disable_tls=true&timeout=10&retry_limit=0"
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", f"smtp://127.0.0.1:{port}/?{extra}")
    yield box
    if server.loop.is_running():
        server.stop()


def send(channel, notice, **settings):
    from include.airflow_support.alerts import channels_of

    channels_of(AlertSettings(**settings), {})[channel](notice)


def test_the_log_is_always_a_channel_and_others_by_their_addresses():
    from include.airflow_support.alerts import channels_of

    assert list(channels_of(AlertSettings(), {})) == ["log"]
    assert list(channels_of(AlertSettings("http://h/", ("a@b",)), {})) == ["log", "webhook", "mail"]


def test_the_log_says_what_since_when_how_bad_and_the_runbook(caplog):
    caplog.set_level("INFO")
    send("log", OPENED)
    send("log", CLOSED)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert caplog.messages[0] == (
        "[critical] board_detail: day_held 2026-11-20 Bcc: x@y; message: held for 9 days <b>{{ 7 * 7 }}</b>: lift it; "
        "severity: critical; since: 2026-11-20T03:00:00.000Z; runbook: https://airflow.example/runbooks/undo"
    )
    assert caplog.messages[1].startswith("[over] board_detail: day_held")


class TestWebhook:
    def test_posts_one_json_object_whose_key_is_the_same_at_the_end(self, webhook):
        for notice in (OPENED, CLOSED):
            send("webhook", notice, webhook_url=webhook.url)

        (path, kind, opened), (_, _, closed) = webhook.calls
        assert (path, kind) == ("/hooks/secret", "application/json")
        assert opened == {
            "event": "opened",
            "key": "board_detail/day_held/2026-11-20\r\nBcc: x@y",
            "pipeline": "board_detail",
            "name": "day_held",
            "subject": "2026-11-20\r\nBcc: x@y",
            "title": "[critical] board_detail: day_held 2026-11-20 Bcc: x@y",
            "text": "held for 9 days <b>{{ 7 * 7 }}</b>: lift it",
            "severity": "critical",
            "since": "2026-11-20T03:00:00.000Z",
            "runbook": "https://airflow.example/runbooks/undo",
        }
        assert (closed["event"], closed["key"]) == ("closed", opened["key"])
        assert closed["over_since"] == "2026-11-20T04:00:00.000Z"

    @pytest.mark.parametrize("status", [302, 400, 500])
    def test_an_answer_that_is_no_success_is_a_failure(self, webhook, status):
        from include.airflow_support.alerts import WebhookFailed

        webhook.status = status
        with pytest.raises(WebhookFailed, match=f"status={status}"):
            send("webhook", OPENED, webhook_url=webhook.url)

    def test_its_address_is_neither_logged_nor_in_an_error(self, webhook, caplog):
        from include.airflow_support.alerts import WebhookFailed

        caplog.set_level("DEBUG")
        send("webhook", OPENED, webhook_url=webhook.url)
        webhook.close()
        with pytest.raises(WebhookFailed, match="reason=ConnectError") as failure:
            send("webhook", OPENED, webhook_url=webhook.url)
        assert len(webhook.calls) == 1
        for text in (caplog.text, str(failure.value)):
            assert "secret" not in text


class TestMail:
    def test_arrives_at_each_recipient_with_data_as_text(self, mailbox):
        send("mail", OPENED, mail_to=("a@example.com", "b@example.com"))

        ((mail, recipients),) = mailbox.mails
        assert recipients == ["a@example.com", "b@example.com"]
        assert mail["Subject"] == "[critical] board_detail: day_held 2026-11-20 Bcc: x@y"
        assert mail["From"] == "pipeline@example.com"
        assert mail["Bcc"] is None
        text = mail.get_body(("html",)).get_content()
        assert "held for 9 days &lt;b&gt;{{ 7 * 7 }}&lt;/b&gt;: lift it" in text
        assert "2026-11-20T03:00:00.000Z" in text
        assert "https://airflow.example/runbooks/undo" in text

    def test_a_server_that_is_down_is_a_failure(self, monkeypatch):
        (port,) = unused(1)
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", f"smtp://127.0.0.1:{port}/?from_email=a%40b&disable_ssl=true")
        with pytest.raises(ConnectionRefusedError):
            send("mail", OPENED, mail_to=("a@example.com",))
