"""The certificate of a published day: the terms of its balance, each with the query that counts it again."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import BalanceBroken, NothingBuilt, Retryable
from include.database.generation_store import measurement
from include.database.named import pipeline_of, query
from include.database.sessions import connect
from include.integrity.days.catch_up import SpeedLayerLag, catch_up
from include.integrity.days.day_checks import check_day
from include.integrity.days.gateways import (
    MissingStore,
    Unsent,
    missing_stores,
    missing_stores_term,
    note_stores,
    unsent,
)
from include.runtime.settings import Settings

log = logging.getLogger(__name__)

AskGateways = Callable[[Settings], Mapping[str, Unsent]]
CatchUp = Callable[[Settings], SpeedLayerLag]

# Term, its query, its meaning with names of the definition, see `note_of`. A query's last column is the term. The
# certificate has the terms in this order.
COUNTED = (
    (
        "recorded",
        "term_recorded",
        "{stream} keys of the day in the system of record; those sent as events are not in it",
    ),
    ("raw_distinct", "term_raw_distinct", "distinct {stream} keys in raw up to the cut, as the rebuild counted them"),
    ("rows", "term_rows", "rows of the published generation, counted now"),
    ("pending", "term_pending", "{stream} keys whose {table} was not known at the cut"),
    ("rejected", "term_rejected", "{stream} keys whose records break the contract"),
    ("deleted", "term_deleted", "{stream} keys deleted since; not in raw_distinct"),
    ("moved", "term_moved", "{stream} keys whose newest version is of another day; not in raw_distinct"),
    ("duplicates", "term_duplicates", "records in the output topic beyond the first of their {stream} version"),
    ("misplaced", "term_misplaced", "{stream} keys whose record is more than a day from its {day}; rows all the same"),
    ("corrections", "term_corrections", "differences that the publication corrected, duplicates among them"),
    (
        "unaccounted",
        "term_unaccounted",
        "{stream} keys that the system of record or the stream had, and raw does not speak of",
    ),
    ("unexplained", "term_unexplained", "differences that nobody can explain; a certified day has none"),
)
# Counted last, with the day locked: a batch of the stream that marks the day is counted, or commits after the
# certificate.
SINCE = (
    ("dirty", "term_dirty", "records that reached the day since its build; none when it was certified"),
    (
        "unread",
        "term_unread",
        "{stream} keys shown from records that no build can read any more; a certified day has none",
    ),
    ("unchecked", "term_unchecked", "1 while the day waits to be compared with others; not when it was certified"),
    (
        "unrecovered",
        "term_unrecovered",
        "failovers and restores of the database whose lost rows are not written back; a certified day has none",
    ),
)


class DayChanged(Retryable):
    """The day was published or undone while its terms were counted; a retry counts them again."""


@dataclass(frozen=True)
class Term:
    """One line of a certificate. `value` is a count or the hash, as text; `query` computes it again."""

    name: str
    value: str
    query: str
    note: str


@dataclass(frozen=True)
class Certificate:
    """The counted terms of a published day. `reason` says why the day is not certified; None if it is certified."""

    day: str
    generation_id: int
    reason: str | None
    terms: Sequence[Term]

    def count(self, name: str) -> int:
        """The value of a term that is a count."""
        return int(self.value(name))

    def value(self, name: str) -> str:
        """The value of a term. Raises KeyError."""
        return {term.name: term.value for term in self.terms}[name]

    @property
    def needs_only_rebuild(self) -> bool:
        """True if only newer records keep the day from being certified. The next night's rebuild includes them."""
        others = (
            "fallback_pending", "missing_stores", "behind", "unaccounted", "unexplained", "unread", "unrecovered",
        )  # fmt: skip
        return any(map(self.count, ("dirty", "unchecked"))) and not any(map(self.count, others))


def certify(
    settings: Settings, day: Day, ask_gateways: AskGateways = unsent, catch_up: CatchUp = catch_up
) -> Certificate:
    """Count the terms of the published day, save them as its certificate, and return it.

    The day is certified if all of these are true: the balance adds up; no gateway's store is missing, holds events or
    lost any; no difference is unexplained; every key that the system of record or the stream has is in raw; rows that
    a failover of the database lost are written back; no record accepted before the call reached the day after its
    build. For the last one, the table's topic is searched and the stream has caught up, so both have marked the day. A
    later record makes the certified day dirty.

    Can run twice: the new certificate replaces the earlier one, and the day's status follows it. Blocks on every
    gateway, up to a minute on a stream that is behind, and while the table's topic and the day's rows are read; the
    stream waits only while the certificate is saved. Raises DayNotOver; NothingBuilt if the day is not published;
    BalanceBroken if the terms do not add up or the rows differ from
    those built; DayChanged, GatewayUnavailable, BrokerUnavailable, TopicChanged and DatabaseUnavailable, which are
    Retryable.
    """
    day.require_over(SystemClock().now())
    # before the transaction, because both may block; events that a gateway sends after its answer are in the topics
    held = ask_gateways(settings)
    note_stores(settings, held)
    lag = catch_up(settings)
    check_day(settings, day.date)
    with connect(settings.database, "batch", "certify") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_balance", cursor), {"day": day.date})
        row = cursor.fetchone()
        if row is None or row[0] is None:
            raise NothingBuilt("the day is not published", day=day)
        generation_id, built_rows, built_hash, hashed = row
        missing = missing_stores(cursor, held)
        terms = [*_terms(cursor, day, generation_id, hashed, held, missing), _behind(lag, settings.pipeline)]
        cursor.execute(query("lock_shown_day", cursor), {"day": day.date})
        if cursor.fetchone()[0] != generation_id:
            raise DayChanged(day=day, generation=generation_id)
        terms += _counted_terms(cursor, SINCE, {"day": day.date})
        certificate = Certificate(str(day), generation_id, None, terms)
        content_hash = certificate.value("content_hash")
        if built_hash is None:  # of a release that hashed without the secret
            cursor.execute(query("save_hash", cursor), {"generation_id": generation_id, "content_hash": content_hash})
            built_hash = content_hash
        is_broken = not _adds_up(certificate) or (certificate.count("rows"), content_hash) != (built_rows, built_hash)
        reason = (
            "the balance does not add up, or rows were changed"
            if is_broken
            else _objection(certificate, held, missing, settings.pipeline.stream.name)
        )
        certificate = Certificate(str(day), generation_id, reason, terms)
        _save(cursor, day, certificate)
    if is_broken:
        raise BalanceBroken(
            day=day,
            raw_distinct=certificate.count("raw_distinct"),
            rows=built_rows,
            counted_rows=certificate.count("rows"),
            pending=certificate.count("pending"),
            rejected=certificate.count("rejected"),
            is_same_hash=content_hash == built_hash,
        )
    log.info("day %s: generation %d is %s", day, generation_id, f"not certified: {reason}" if reason else "certified")
    return certificate


def _terms(
    cursor: Cursor, day: Day, generation_id: int, hashed_columns: Sequence[str] | None, held: Mapping[str, Unsent],
    missing: Sequence[MissingStore],
) -> list[Term]:  # fmt: skip
    params = {"generation_id": generation_id, "day": day.date, "start": rfc3339(day.start), "end": rfc3339(day.end)}
    counted = _counted_terms(cursor, COUNTED, params)
    values = {term.name: term.value for term in counted}
    backlog = sum(each.total for each in held.values())
    accepted = Term(
        "accepted",
        str(int(values["raw_distinct"]) + backlog),
        _text(cursor, query("term_accepted", cursor), params),
        "raw_distinct + fallback_pending: every event accepted up to the cut is in raw, or in a gateway's store",
    )
    fallback = Term(
        "fallback_pending",
        str(backlog),
        "\n".join(f"GET {url}/fallback" for url in held) or "GET nothing: no gateway was asked",
        "backlog + refused + lost of the gateways' stores; of any day, so a certified day has none",
    )
    measure = measurement(cursor, generation_id, hashed_columns).as_string(cursor)
    hashed = _counted(cursor, "content_hash", measure, "hash of the rows, whatever their order; last column")
    stores = Term(
        "missing_stores",
        str(len(missing)),
        _text(cursor, *missing_stores_term(held, cursor)),
        "stores of gateways that answered before and do not now; of any day, so a certified day has none",
    )
    return [counted[0], accepted, fallback, stores, *counted[1:], hashed]


def _behind(lag: SpeedLayerLag, pipeline: Definition) -> Term:
    return Term(
        "behind",
        str(lag.behind),
        "pipeline stream catch-up --timeout 0",
        note_of(
            "records of {stream} and {output} that the stream had not taken; of any day, so a certified day has none",
            pipeline,
        ),
    )


def _text(cursor: Cursor, statement: str, parameters: Mapping[str, object]) -> str:
    """Return the statement with its literals filled in, for people to run."""
    return bytes(cursor.mogrify(statement, parameters)).decode().strip()


def _counted_terms(cursor: Cursor, terms: Sequence[tuple[str, str, str]], params: Mapping[str, object]) -> list[Term]:
    return [_counted(cursor, name, _text(cursor, query(file, cursor), params), note) for name, file, note in terms]


def _counted(cursor: Cursor, name: str, statement: str, note: str) -> Term:
    cursor.execute(statement)
    return Term(name, str(cursor.fetchone()[-1]), statement, note_of(note, pipeline_of(cursor)))


def note_of(note: str, pipeline: Definition) -> str:
    """Return the meaning of a term with the names of a pipeline's topics and of the field that gives the day."""
    return note.format(
        stream=pipeline.stream.name, table=pipeline.table.name, output=pipeline.output.name, day=pipeline.day_field
    )


def _adds_up(certificate: Certificate) -> bool:
    parts = certificate.count("rows") + certificate.count("pending") + certificate.count("rejected")
    return certificate.count("raw_distinct") == parts


def _objection(
    certificate: Certificate, held: Mapping[str, Unsent], missing: Sequence[MissingStore], stream: str
) -> str | None:
    reasons = []
    for url, each in held.items():
        if each.waiting:
            reasons.append(f"{each.waiting} events wait in the store of {url}: replay them, then rebuild")
        if each.set_aside:
            reasons.append(
                f"{each.set_aside} events are set aside in the store of {url}: send them again or give them up with "
                "`pipeline gateway replay`, then rebuild"
            )
        if each.lost:
            reasons.append(
                f"{each.lost} events were lost to damage of the store of {url}: look for them with "
                "`pipeline gateway reconcile`, then acknowledge them with `pipeline gateway replay`"
            )
    reasons += [f"{store}, is missing: see docs/runbooks/gateway-lost.md" for store in missing]
    if behind := certificate.count("behind"):
        reasons.append(f"the stream is {behind} records behind, which may be of the day: certify it again "
                       "when it has caught up")  # fmt: skip
    if unaccounted := certificate.count("unaccounted"):
        reasons.append(
            f"{unaccounted} {stream} keys that the system of record or the stream had are in no term, so raw may have "
            "lost them: see docs/runbooks/nightly_rebuild.md"
        )
    if unexplained := certificate.count("unexplained"):
        reasons.append(f"{unexplained} differences are unexplained: look at them in detail_correction")
    if dirty := certificate.count("dirty"):
        reasons.append(f"{dirty} records reached the day after it was built (see dirty_day): rebuild the day")
    if unread := certificate.count("unread"):
        reasons.append(
            f"{unread} {stream} keys are shown, or hidden, as the stream has them, and no rebuild can read their "
            "records: they are in an accepted gap of the archive, see docs/runbooks/archive.md"
        )
    if certificate.count("unchecked"):
        reasons.append(
            f"the day waits to be compared with the others that may show its {stream} keys: certify it again"
        )
    if unrecovered := certificate.count("unrecovered"):
        reasons.append(
            f"the database failed over, or was restored, and lost rows are not written back ({unrecovered} times): run "
            "`pipeline gateway reconcile`, then certify the day again; see docs/runbooks/database.md"
        )
    return "; ".join(reasons) or None


def _save(cursor: Cursor, day: Day, certificate: Certificate) -> None:
    params = {"day": day.date, "generation_id": certificate.generation_id}
    cursor.execute(query("delete_certificate", cursor), params)
    rows = [
        (day.date, certificate.generation_id, term.name, number, term.value, term.query, term.note)
        for number, term in enumerate(certificate.terms)
    ]
    execute_values(cursor, query("insert_certificate", cursor), rows)
    cursor.execute(query("save_objection", cursor), params | {"reason": certificate.reason})
    cursor.execute(query("certify_day", cursor), params | {"is_certified": certificate.reason is None})
