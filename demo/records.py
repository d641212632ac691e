"""Events of the demo: the reference volume, the same for the same seed, and records of a story, new for each run.

Those of a story are a site's members and boards, or are made from the types in the definition of any pipeline.
"""

import datetime as dt
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from include.contracts.clock import rfc3339
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.fields import Field
from include.contracts.topics import Topic

MEMBERS = 442_128
BOARDS = 447_017
FIRST_ID = 1_000_000_000  # the system of record assigns lower ids
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SPAN_S = 730 * 24 * 3600
BODY_BYTES = (300, 600)
BODIES = 20_000

SENTENCES = (
    "서울에는 어제부터 비가 내리고 있습니다.",
    "이 제품을 한 달 동안 사용해 본 후기를 남깁니다.",
    "다음 주 모임 장소를 아직 정하지 못했습니다.",
    "배송이 예정보다 하루 늦게 도착했네요.",
    "스트리밍과 배치의 결과가 다를 때는 어떻게 하시나요?",
    "주말에 다녀온 산책길이 정말 아름다웠습니다.",
    "비밀번호를 잊어버렸을 때의 절차가 궁금합니다.",
    "The bakery on the corner opens an hour earlier now.",
    "I followed the guide and it worked on the second try.",
    "Could someone explain what the last update changed?",
    "We moved the meeting to Thursday because of the holiday.",
    "After three months of use the battery still holds well.",
)
TITLES = (
    "질문이 있어요",
    "사용 후기",
    "모임 안내",
    "나눔합니다",
    "A short question",
    "Notes from the trip",
    "Lost and found",
)
CITIES = (
    "서울특별시",
    "부산광역시",
    "대구광역시",
    "인천광역시",
    "광주광역시",
    "대전광역시",
    "수원시",
    "제주시",
    "전주시",
    "포항시",
)
FIRST_WORDS = ("조용한", "빠른", "따뜻한", "용감한", "bright", "quiet", "lucky")
SECOND_WORDS = ("고래", "별빛", "단풍", "나그네", "falcon", "maple", "harbor")

POSTS = (
    ("오늘의 점심 추천", "회사 근처에서 김치찌개가 맛있는 집을 찾았습니다. 줄이 길지만 기다릴 만해요."),
    ("Weekend hike", "We met at the station at seven and walked up to the old fortress; the view was worth it."),
    ("카프카 질문 있습니다", "컨슈머 오프셋은 언제 커밋하는 것이 안전한가요? 작업이 끝난 뒤라고 들었습니다."),
    ("Looking for a book", "Has anyone read the one about logs? I want to borrow it for a week."),
)
NICKNAMES = ("행복한고양이", "swift panda", "푸른바다", "lazy river")

_HOUR = 9  # of the stream's records


def members(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `count` members with ids from FIRST_ID, one version each."""
    chance = random.Random(f"member {seed}")
    for number in range(count):
        created = chance.randrange(SPAN_S)
        yield {
            "id": FIRST_ID + number,
            "nickname": f"{chance.choice(FIRST_WORDS)} {chance.choice(SECOND_WORDS)} {number}",
            "city": chance.choice(CITIES),
            "phone": f"010-{chance.randrange(10_000):04}-{chance.randrange(10_000):04}",
            "email": f"member{number}@example.com",
            "createdAt": _at(created),
            "modifiedAt": _at(created + chance.randrange(SPAN_S - created + 1)),
        }


def boards(count: int, member_count: int, seed: int, created_on: dt.datetime | None = None) -> Iterator[dict[str, Any]]:
    """Yield `count` boards with ids from FIRST_ID by random members; all within the day that starts at `created_on`."""
    chance = random.Random(f"board {seed}")
    bodies = [_body(chance) for _ in range(BODIES)]
    day_s = None if created_on is None else int((created_on - EPOCH).total_seconds())
    for number in range(count):
        created = chance.randrange(SPAN_S) if day_s is None else day_s + chance.randrange(24 * 3600)
        yield {
            "id": FIRST_ID + number,
            "memberId": FIRST_ID + chance.randrange(member_count),
            "title": f"{chance.choice(TITLES)} #{number}",
            "body": f"{chance.choice(bodies)} [{number}]",
            "createdAt": _at(created),
            "modifiedAt": _at(created + chance.randrange(3600)),
        }


def _body(chance: random.Random) -> str:
    """Return whole sentences, of 300 to 600 bytes of UTF-8 together with the running number."""
    wanted, text = chance.randrange(BODY_BYTES[0], BODY_BYTES[1] - 110), ""
    while len(text.encode()) < wanted:
        text += chance.choice(SENTENCES) + " "
    return text.rstrip()


def _at(seconds: int) -> str:
    return rfc3339(EPOCH + dt.timedelta(seconds=seconds))


@dataclass(frozen=True, kw_only=True)
class Records(ABC):
    """Makes the values of one run of a story. Records have numbers from 0, and keys that no other run has.

    `day` is the day of all records, which will be rebuilt. `first_key` is the present millisecond.
    """

    day: Day
    first_key: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def key(self, number: int) -> int:
        """Return the key of the stream's or the table's record with that number."""
        return self.first_key + number

    def at(self, hour: float) -> str:
        """Return a time of the day, as text."""
        return rfc3339(self.day.start + dt.timedelta(hours=hour))

    @abstractmethod
    def stream_value(self, number: int, of: int) -> dict[str, Any]:
        """Return a record of the stream, joined by the table's record of the number `of`."""

    @abstractmethod
    def table_value(self, number: int, hour: int = 1) -> dict[str, Any]:
        """Return the version of a table's record of that hour. Its fields differ from those of other hours."""


@dataclass(frozen=True, kw_only=True)
class SiteRecords(Records):
    """Members and boards, in Korean and English."""

    def table_value(self, number: int, hour: int = 1) -> dict[str, Any]:
        """Return the value of a member, created on the day and modified at the hour."""
        return {
            "id": self.key(number),
            "nickname": f"{NICKNAMES[number % len(NICKNAMES)]} {number}",
            "city": CITIES[number % len(CITIES)],
            "phone": f"010-{number % 10_000:04}-{(number * 7) % 10_000:04}",
            "email": f"member{number}@example.com",
            "createdAt": self.at(0.5),
            "modifiedAt": self.at(hour),
        }

    def stream_value(self, number: int, of: int) -> dict[str, Any]:
        """Return the value of a board of the day by the member of the number `of`."""
        title, body = POSTS[number % len(POSTS)]
        return {
            "id": self.key(number),
            "memberId": self.key(of),
            "title": f"{title} #{number}",
            "body": body,
            "createdAt": self.at(9),
            "modifiedAt": self.at(9),
        }


@dataclass(frozen=True, kw_only=True)
class GeneratedRecords(Records):
    """Values of the types in the definition of any pipeline."""

    pipeline: Definition

    def stream_value(self, number: int, of: int) -> dict[str, Any]:
        """Return a record of the stream, joined by the table's record of the number `of`."""
        value = self._value(self.pipeline.stream, number, _HOUR)
        return value | {self.pipeline.join_field: self.key(of), self.pipeline.day_field: self.at(_HOUR)}

    def table_value(self, number: int, hour: int = 1) -> dict[str, Any]:
        """Return the version of a table's record of that hour. Its fields differ from those of other hours."""
        return self._value(self.pipeline.table, number, hour)

    def row(self, number: int, of: int, hour: int) -> dict[str, Any]:
        """Return the row of a record, as PostgreSQL returns it, joined with that hour's version of the table's record.

        It has no personal columns, which analysts see masked.
        """
        values = {"stream": self.stream_value(number, of), "table": self.table_value(of, hour)}
        columns = {self.pipeline.column_name(column): column for column in self.pipeline.columns}
        return {
            name: _as_row(self.pipeline.output.field(column.output), values[column.side][column.source])
            for name, column in columns.items()
            if name not in self.pipeline.personal_columns
        }

    def _value(self, topic: Topic, number: int, hour: int) -> dict[str, Any]:
        value = {field.name: self._field(field, 24 * number + hour) for field in topic.fields}
        return value | {topic.key_field: self.key(number), topic.version_field: self.at(hour)}

    def _field(self, field: Field, seed: int) -> Any:
        match field.type:
            case "long":
                return seed
            case "string":
                return f"{seed} {field.name}"[: field.max_length]
            case "boolean":
                return seed % 2 == 0
            case "decimal":
                digits = str(seed)[-(field.precision or 0) :]
                return str(Decimal(digits).scaleb(-(field.scale or 0)))
            case "date":
                return str(self.day.date + dt.timedelta(days=seed % 365))
            case "timestamp":
                return self.at(seed % 24)


def _as_row(field: Field, value: Any) -> Any:
    match field.type:
        case "decimal":
            return Decimal(value)
        case "date":
            return dt.date.fromisoformat(value)
        case "timestamp":
            return dt.datetime.fromisoformat(value)
        case _:
            return value
