"""The report is one page that needs nothing else, says what was computed, and takes no text for anything but text."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from angelia.errors import NotFound
from angelia.pipeline import report
from angelia.pipeline.lake import small_tables
from angelia.pipeline.lake.tables import (
    AGENTS,
    BUCKETS,
    DAYS,
    HOURS,
    KEY_DAYS,
    KEY_GRACE,
    LATENCIES,
    QUEUE_DAYS,
    QUEUE_HOURS,
    ROOM_DAYS,
    STORAGE,
    TOP_QUEUES,
    TOP_ROOMS,
    Table,
)
from angelia.pipeline.report import formatting
from angelia.pipeline.report.charts import latency, storage
from angelia.pipeline.report.figures import read
from angelia.pipeline.runs import JobRun
from angelia.runs.model import RunState
from angelia.settings import Settings
from angelia.stores.objects import Objects

NOW = datetime(2026, 11, 16, 9, tzinfo=UTC)
DAY = date(2026, 11, 10)
HOSTILE = "<script>alert(1)</script>\u202eevil\x1b[31m"


class Page(HTMLParser):
    """Elements, ids and what is asked of elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value or "")


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(str(tmp_path / "lake"))


def put(objects: Objects, table: Table, *given: dict[str, Any]) -> None:
    run = JobRun(
        run_id=str(uuid.uuid4()), job="analytics", app_id="analytics", version=1, lo=None, hi=None, cutoff=None,
        state=RunState.PLANNED, row_count=None, id_hash_sum=None, started_at=NOW,
    )  # fmt: skip
    small_tables.put(objects, table, pa.Table.from_pylist(list(given), table.schema), run)


def fill(objects: Objects, day: date = DAY, handle: str = "alice") -> None:
    put(objects, HOURS, {"day": day, "hour": 9, "priority": 1, "sent": 100, "delivered": 90, "expired": 3, "failed": 5,
                         "pending": 2, "attempts": 130, "wire_bytes": 600_000})  # fmt: skip
    put(objects, LATENCIES, {"day": day, "priority": 1, "buckets": [1000, 1100], "counts": [80, 10],
                             "p50_ms": 21.065, "p95_ms": 56.978, "p99_ms": 56.978})  # fmt: skip
    put(objects, AGENTS, {"day": day, "agent": handle, "sent": 100, "sent_bytes": 600_000, "delivered": 90,
                          "expired": 3, "failed": 5, "received": 0, "received_bytes": 0})  # fmt: skip
    put(objects, BUCKETS, {"day": day, "bucket": 17, "receipts": 100, "wire_bytes": 600_000})
    put(objects, DAYS, {"day": day, "fingerprint": "x", "computed_at": NOW, "receipts": 100, "senders": 1,
                        "recipients": 1, "bucket_peak": 256.0, "bucket_gini": 0.99})  # fmt: skip


def test_before_anything_was_computed_the_next_command_is_named(objects: Objects) -> None:
    with pytest.raises(NotFound) as refusal:
        report.page(objects, Settings(lake=objects.root), NOW)
    assert refusal.value.hint == "angelia pipeline run analytics"


def test_the_page_says_the_period_the_totals_and_when_it_was_computed(objects: Objects) -> None:
    fill(objects)
    fill(objects, DAY + timedelta(days=1))
    text = report.page(objects, Settings(), NOW)
    for said in ("2026-11-10", "2026-11-11", "2026-11-16 09:00Z", ">200<", "90.00 %",
                 "5.00 % of the messages failed (10)", "delivered within 21.1 ms",
                 "number 17, has 256.0 times the mean", "1.2 MB"):  # fmt: skip
        assert said in text, said


def test_the_page_asks_nobody_for_anything_and_runs_nothing(objects: Objects) -> None:
    fill(objects)
    text = report.page(objects, Settings(), NOW)
    page = Page(text)
    assert not {"script", "link", "iframe", "img", "image", "object"} & set(page.tags)
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"url\((?!#)|@import", text)
    assert len(page.ids) == len(set(page.ids))


def test_every_chart_has_a_name_and_a_table_beside_it(objects: Objects) -> None:
    fill(objects)
    put(
        objects,
        STORAGE,
        {"day": NOW.date(), "measured_at": NOW, "tier": "ledger", "name": "agents", "bytes": 5_000_000},
    )
    put(objects, KEY_DAYS, {"day": DAY, "reason": "on_demand", "key_type": "xwing", "rotations": 4, "agents": 2})
    put(objects, KEY_GRACE, {"day": NOW.date(), "measured_at": NOW, "key_type": "xwing", "keys": 3,
                             "oldest_seconds": 86_400, "mean_seconds": 10})  # fmt: skip
    text = report.page(objects, Settings(), NOW)
    named = re.findall(r'role="img" aria-labelledby="(\w+)"', text)
    assert named == ["volume", "latency", "losses", "buckets", "storage", "rotations"]
    for name in named:
        section = re.search(rf'<section><h2 id="{name}">(.+?)</h2>.*?</section>', text, re.DOTALL)
        assert section is not None
        assert section[0].count("<table>") >= 1
    assert "ledger 5 MB" in text
    assert "4 keys were rotated or revoked; 3 old ones are in their grace period, the oldest for 1.0 days" in text


def measured(objects: Objects, days: int, **tiers: int) -> None:
    moment = NOW + timedelta(days=days)
    of_all = {"day": moment.date(), "measured_at": moment, "name": "a"}
    put(objects, STORAGE, *({**of_all, "tier": tier, "bytes": size} for tier, size in tiers.items()))


def test_a_tier_that_was_not_measured_once_grows_as_fast_as_its_other_measurements_say(objects: Objects) -> None:
    fill(objects)
    measured(objects, 0, archive=1_000_000)
    measured(objects, 1, archive=2_000_000, hot=9_000_000)
    measured(objects, 2, archive=5_000_000)
    measured(objects, 4, archive=5_000_000, hot=3_000_000)
    assert "hot 3 MB (−2 MB a day), archive 5 MB (+1 MB a day)" in report.page(objects, Settings(), NOW)


def test_a_tier_that_was_not_measured_is_a_gap_and_what_stands_alone_is_a_point(objects: Objects) -> None:
    from matplotlib.figure import Figure

    fill(objects)
    for day in range(3):
        measured(objects, day, **({"hot": 5, "archive": 6} if day != 1 else {"archive": 7}))
    axes = Figure().add_subplot()
    storage(read(objects, Settings()), axes, False)
    lines = {tuple(value == value for value in line.get_ydata()): line.get_markevery() for line in axes.get_lines()}
    assert lines == {(True, False, True): [0, 2], (False,) * 3: [], (True,) * 3: []}


def test_keys_that_were_in_grace_once_are_not_reported_when_the_newest_measurement_found_none(objects: Objects) -> None:
    fill(objects)
    grace = {"day": NOW.date(), "measured_at": NOW, "key_type": "xwing", "keys": 3, "oldest_seconds": 9}
    put(objects, KEY_GRACE, {**grace, "mean_seconds": 9})
    measured(objects, 0, ledger=1)
    assert [row["keys"] for row in read(objects, Settings()).grace] == [3]
    measured(objects, 1, ledger=1)
    assert read(objects, Settings()).grace == []


def test_the_page_says_how_late_messages_of_each_priority_came(objects: Objects) -> None:
    fill(objects)
    put(objects, LATENCIES, {"day": DAY, "priority": 3, "buckets": [900], "counts": [4],
                             "p50_ms": 7.788, "p95_ms": 7.788, "p99_ms": 7.788})  # fmt: skip
    text = report.page(objects, Settings(), NOW)
    assert "99 % delivered, by priority: within critical 7.79 ms, normal 57 ms" in text
    assert '<th scope="row">normal</th><td>90</td><td>21.1 ms</td><td>57 ms</td><td>57 ms</td>' in text


def test_the_busiest_agents_are_those_of_all_days_together(objects: Objects) -> None:
    fill(objects)
    for offset in range(2):
        put(
            objects,
            AGENTS,
            *(
                {"day": DAY + timedelta(days=offset), "agent": f"a{number:02}", "sent": 50 + number // 2, "received": 0}
                | dict.fromkeys(("sent_bytes", "delivered", "expired", "failed", "received_bytes"), 1)
                for number in range(12)
            ),
        )
    found = [(one.handle, one.messages, one.failed) for one in read(objects, Settings()).senders]
    assert found[:3] == [("a10", 110, 2), ("a11", 110, 2), ("a08", 108, 2)]
    assert found[-1] == ("a03", 102, 2)
    assert len(found) == 10


def test_hostile_handles_are_text(objects: Objects) -> None:
    fill(objects, handle=HOSTILE)
    text = report.page(objects, Settings(), NOW)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}evil\\u{1b}[31m" in text
    assert not {"\u202e", "\x1b"} & set(text)


def test_a_very_long_handle_is_cut() -> None:
    assert formatting.foreign("a" * 255) == f'<bdi class="foreign">{"a" * 80}…</bdi>'


def test_a_day_that_there_is_nothing_of_is_a_gap_and_not_a_zero(objects: Objects) -> None:
    from matplotlib.figure import Figure

    fill(objects)
    fill(objects, DAY + timedelta(days=2))
    contents = read(objects, Settings())
    assert len(contents.period) == 3
    axes = Figure().add_subplot()
    latency(contents, axes, False)
    lines = [list(line.get_ydata()) for line in axes.get_lines()]
    assert [[value == value for value in line] for line in lines] == [[True, False, True]] * 3


def talk(objects: Objects, day: date, messages: int, replies: int, name: str = "talk") -> None:
    put(objects, ROOM_DAYS, {"day": day, "computed_at": NOW, "messages": messages, "private_messages": 3,
                             "replies": replies, "agents": 7, "rooms": 2, "depth_mean": 1.5 if replies else None,
                             "depth_max": 4 if replies else None, "rooms_made": 1})  # fmt: skip
    put(objects, TOP_ROOMS, {"day": day, "room_id": "private", "room_name": None, "messages": 3, "replies": 0,
                             "agents": 2}, {"day": day, "room_id": "r1", "room_name": name, "messages": messages - 3,
                                            "replies": replies, "agents": 5})  # fmt: skip


def test_a_page_about_rooms_alone_says_what_was_posted_and_how_it_grew(objects: Objects) -> None:
    talk(objects, DAY, 40, 10)
    talk(objects, DAY + timedelta(days=1), 50, 0)
    text = report.page(objects, Settings(), NOW)
    for said in ("90 messages in rooms in 2 days, 11.11 % of them replies; the most on 2026-11-11: 50",
                 "<td>50</td><td>+25 %</td>", "<td>40</td><td>-</td>",
                 "Up to 7 agents a day posted in rooms; 2 rooms were made",
                 "A reply is nested 1.5 deep on average, and 4 deep at most",
                 "The busiest public room has 93.33 % of the messages in rooms",
                 '<th scope="row">private</th><td>6</td><td>6.67 %</td>'):  # fmt: skip
        assert said in text, said
    assert re.findall(r'role="img" aria-labelledby="(\w+)"', text) == ["room_messages", "room_agents", "reply_depth"]
    assert "The fullest of the 256 buckets" not in text


def test_a_day_on_which_rooms_were_only_made_is_none_with_messages(objects: Objects) -> None:
    talk(objects, DAY, 40, 10)
    made = {"messages": 0, "private_messages": 0, "replies": 0, "agents": 0, "rooms": 0, "depth_mean": None}
    put(objects, ROOM_DAYS, {"day": DAY + timedelta(days=1), "computed_at": NOW, **made, "depth_max": None,
                             "rooms_made": 1})  # fmt: skip
    text = report.page(objects, Settings(), NOW)
    assert ("1 days with messages, UTC" in text, "40 messages in rooms in 1 days" in text) == (True, True)


def test_rooms_stand_beside_mail_and_their_names_are_text(objects: Objects) -> None:
    fill(objects)
    talk(objects, DAY, 5, 0, HOSTILE)
    text = report.page(objects, Settings(), NOW)
    assert ("<script" in text, "alert(1)" in text, "5 messages in rooms in 1 days" in text) == (False, True, True)
    named = re.findall(r'role="img" aria-labelledby="(\w+)"', text)
    assert named == ["volume", "latency", "losses", "buckets", "room_messages", "room_agents"]


def queued(objects: Objects, day: date, pushed: int, evicted: int, name: str = "orders") -> None:
    waits, late = [0, 0, pushed, *[0] * 8], [*[0] * 8, evicted, 0, 0]
    hour = {"day": day, "hour": 9, "queues": 2, "pushed": pushed, "pushed_bytes": 300, "popped": pushed, "failed": 1,
            "completed": pushed - 2, "dead": 1, "evicted": evicted, "wait_max_ms": 250, "waits": waits,
            "evicted_waits": late, "evicted_p99_ms": 3e6 if evicted else None, "stored": 10,
            "encrypted": 4}  # fmt: skip
    put(objects, QUEUE_HOURS, hour, {**hour, "hour": 10, "pushed": 0})
    put(objects, QUEUE_DAYS, {"day": day, "computed_at": NOW, "events": 9, "queues": 2, "all_queues": 5,
                              "encrypted_queues": 1, "removed_expired": 7, "removed_completed": 3,
                              "removed_dead_letters": 0, "removed_partitions": 0,
                              "reclaimed_bytes": 4_000})  # fmt: skip
    top = {"day": day, "popped": 9, "completed": 9, "failed": 1, "dead": 1, "evicted": evicted, "stored": 9,
           "encrypted": 0}  # fmt: skip
    put(objects, TOP_QUEUES, {**top, "queue_no": 1, "queue": name, "pushed": pushed - 5},
        {**top, "queue_no": 2, "queue": None, "pushed": 5})  # fmt: skip


def test_a_page_about_queues_says_what_was_pushed_waited_was_lost_removed_and_encrypted(objects: Objects) -> None:
    queued(objects, DAY, 40, 2)
    queued(objects, DAY + timedelta(days=2), 60, 0, HOSTILE)
    text = report.page(objects, Settings(), NOW)
    for said in ("100 messages were pushed to queues in 2 days, and 192 completed; the most on 2026-11-12: 60",
                 "<th scope=\"row\">2026-11-12 09:00</th><td>60</td><td>60</td><td>0</td>",
                 "Half of the messages of queues were delivered within 150 ms, 95 % within 240 ms, 99 % within 248 ms",
                 "Time from push to eviction", "50.0 min",
                 "4 messages became dead letters (4.00 % of those pushed), 4 were evicted (4.00 %)",
                 "Retention removed 20 messages and dead letters of queues, about 8 kB",
                 "1 of 5 queues encrypt their messages; 40.00 % of the messages are encrypted",
                 "The busiest queue has 90.00 % of the messages", '<th scope="row">deleted</th><td>10</td>',
                 "<dt>messages in queues</dt><dd>100</dd>"):  # fmt: skip
        assert said in text, said
    named = re.findall(r'role="img" aria-labelledby="(\w+)"', text)
    assert named == ["queue_messages", "queue_waits", "queue_losses", "queue_storage", "queue_encryption"]
    assert ("<script" in text, "alert(1)" in text) == (False, True)


def test_the_report_is_made_without_spark() -> None:
    script = "import sys; from angelia.pipeline import report; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
