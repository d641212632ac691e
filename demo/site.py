"""Makes the demo's events, in Korean and English, with different ids for each run."""

import datetime as dt
import time
from dataclasses import dataclass
from typing import Any

from include.contracts.clock import rfc3339
from include.contracts.day import Day

POSTS = (
    ("오늘의 점심 추천", "회사 근처에서 김치찌개가 맛있는 집을 찾았습니다. 줄이 길지만 기다릴 만해요."),
    ("Weekend hike", "We met at the station at seven and walked up to the old fortress; the view was worth it."),
    ("카프카 질문 있습니다", "컨슈머 오프셋은 언제 커밋하는 것이 안전한가요? 작업이 끝난 뒤라고 들었습니다."),
    ("Looking for a book", "Has anyone read the one about logs? I want to borrow it for a week."),
)
NICKNAMES = ("행복한고양이", "swift panda", "푸른바다", "lazy river")
CITIES = ("서울특별시", "부산광역시", "제주시", "Incheon")


@dataclass(frozen=True)
class Site:
    """Makes values for one run of the demo; `day` is the day that will be rebuilt."""

    day: Day
    first_id: int

    @classmethod
    def opened_now(cls, day: Day) -> "Site":
        """Return a site whose ids start at the present millisecond, so that runs on the same stack do not share ids."""
        return cls(day, time.time_ns() // 1_000_000)

    def key(self, number: int) -> int:
        """Return the id of the member or board with that number, from 0."""
        return self.first_id + number

    def at(self, hour: float) -> str:
        """Return a time of the day, as text."""
        return rfc3339(self.day.start + dt.timedelta(hours=hour))

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
