"""The report: one page of HTML that needs no other file, with a chart for each question and a table beside it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from html import escape
from pathlib import Path

from angelia.pipeline.analytics.histogram import SHARES
from angelia.pipeline.lake import commit, simulated
from angelia.pipeline.report import charts, formatting, log_sections, queue_sections, room_sections
from angelia.pipeline.report.figures import OUTCOMES, TIERS, AgentFigures, Contents, read
from angelia.pipeline.report.markup import chart, html_table
from angelia.settings import Settings
from angelia.stores.objects import Objects

_STYLE = Path(__file__).with_name("style.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(objects: Objects, settings: Settings, now: datetime) -> str:
    """The page as HTML, of everything that was computed until now."""
    contents = read(objects, settings)
    sections = "\n".join(_sections(contents))
    first, last = contents.covered[0], contents.covered[-1]
    subject = "Simulated messages" if commit.is_simulated(objects) else "Messages"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="referrer" content="no-referrer">
<title>{subject}, {first} to {last}</title>
<style>
{_STYLE.read_text("utf-8")}</style>
</head>
<body>
<header>
{_banner(objects, settings)}
<h1>{subject}, <time datetime="{first}">{first}</time> to <time datetime="{last}">{last}</time></h1>
<p class="muted">{contents.days_with_messages} days with messages, UTC.
Computed {_time(contents.computed_at)}, written {_time(now)}.</p>
{_totals(contents)}
</header>
<main>
{sections}
</main>
<footer><p>Percentiles come from histograms with buckets of 1 %: they are at most 0.5 % off.
A message belongs to the day on which it was sent.</p></footer>
</body>
</html>
"""


def _banner(objects: Objects, settings: Settings) -> str:
    """A banner above everything else, if messages are simulated."""
    if commit.is_simulated(objects):
        said = "<strong>Simulated.</strong> None of these messages was ever sent: they are of a fleet that never was."
    elif simulated.mixed(objects):
        command = escape(simulated.removal(objects, settings))
        said = (
            "<strong>Not to be trusted.</strong> Real and simulated messages were counted together;"
            f" <code>{command}</code> takes the simulated ones out."
        )
    else:
        return ""
    return f'<p class="banner" role="note">{said}</p>'


def _totals(contents: Contents) -> str:
    p50, _, p99 = contents.overall
    figures: dict[str, str] = {}
    if contents.days:
        figures |= {
            "messages": f"{contents.sent:,}",
            "delivered": formatting.share(contents.total("delivered"), contents.sent),
            "half delivered within": formatting.duration(p50),
            "99 % delivered within": formatting.duration(p99),
            "wire bytes": formatting.size(sum(day.wire_bytes for day in contents.days)),
        }
    if contents.rooms.days:
        figures["messages in rooms"] = f"{contents.rooms.messages:,}"
    if contents.queues.days:
        figures["messages in queues"] = f"{contents.queues.total('pushed'):,}"
    if contents.logs.groups:
        figures["messages in group logs"] = f"{contents.logs.total('messages'):,}"
    entries = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    return f'<dl class="totals">{entries}</dl>'


def _sections(contents: Contents) -> Iterator[str]:
    if contents.days:
        yield from _mail_sections(contents)
    yield from room_sections.sections(contents.rooms)
    yield from queue_sections.sections(contents.queues)
    yield from log_sections.sections(contents.logs)
    if contents.storage:
        height = 1.3 if contents.measured_once else 2.5
        yield chart(contents, charts.storage, _storage_title, _storage_table, height)
    if contents.rotations:
        yield chart(contents, charts.rotations, _rotations_title, _rotations_table)
    else:
        yield '<section><h2>No key was rotated</h2><p class="muted">Rotations are counted in the ledger.</p></section>'
    if contents.days:
        yield _agents(contents)


def _mail_sections(contents: Contents) -> Iterator[str]:
    yield chart(contents, charts.volume, _volume_title, _volume_table)
    yield chart(contents, charts.latency, _latency_title, _latency_table)
    yield _priorities(contents)
    yield chart(contents, charts.losses, _losses_title, _losses_table)
    yield chart(contents, charts.buckets, _buckets_title, _buckets_table, 1.8)


def _volume_title(contents: Contents) -> str:
    most = max(contents.days, key=lambda day: day.sent)
    came = formatting.share(contents.total("delivered"), contents.sent)
    return (
        f"{contents.sent:,} messages in {len(contents.days)} days, {came} of them delivered;"
        f" the most on {most.day}: {most.sent:,}"
    )


def _volume_table(contents: Contents) -> str:
    rows = ([f"{day.day}", f"{day.sent:,}", *(f"{day.outcomes[name]:,}" for name in OUTCOMES)] for day in contents.days)
    return html_table("Messages a day", ["day", "sent", *OUTCOMES], rows)


def _latency_title(contents: Contents) -> str:
    p50, p95, p99 = (formatting.duration(one) for one in contents.overall)
    return f"Half of the messages were delivered within {p50}, 95 % within {p95}, 99 % within {p99}"


def _latency_table(contents: Contents) -> str:
    rows = ([f"{day.day}", *map(formatting.duration, day.times)] for day in contents.days)
    return html_table("Time from accepted to delivered", ["day", *SHARES], rows)


def _priorities(contents: Contents) -> str:
    rows = [
        [name, f"{count:,}", *map(formatting.duration, times)] for name, (count, times) in contents.by_priority.items()
    ]
    said = ", ".join(f"{name} {formatting.duration(times[-1])}" for name, (_, times) in contents.by_priority.items())
    title = f"99 % delivered, by priority: within {said}" if said else "Nothing was delivered"
    table = html_table("Time to delivery", ["priority", "delivered", *SHARES], rows)
    return f"<section><h2>{title}</h2>{table}</section>"


def _losses_title(contents: Contents) -> str:
    failed, expired = contents.total("failed"), contents.total("expired")
    return (
        f"{formatting.share(failed, contents.sent)} of the messages failed ({failed:,}),"
        f" {formatting.share(expired, contents.sent)} expired ({expired:,})"
    )


def _losses_table(contents: Contents) -> str:
    rows = (
        [f"{day.day}", *(formatting.share(day.outcomes[name], day.sent) for name in ("failed", "expired"))]
        for day in contents.days
    )
    return html_table("Share of a day's messages", ["day", "failed", "expired"], rows)


def _buckets_title(contents: Contents) -> str:
    total, most = sum(contents.buckets), max(contents.buckets)
    peak = most * len(contents.buckets) / total if total else 0
    fullest = contents.buckets.index(most)
    return f"The fullest of the 256 buckets, number {fullest}, has {peak:.1f} times the mean; stronger is fuller"


def _buckets_table(contents: Contents) -> str:
    """The ten fullest buckets."""
    fullest = sorted(range(len(contents.buckets)), key=lambda one: -contents.buckets[one])[:10]
    total = sum(contents.buckets)
    rows = ([f"{one}", f"{contents.buckets[one]:,}", formatting.share(contents.buckets[one], total)] for one in fullest)
    spread = (
        [f"{day.day}", *("-" if one is None else f"{one:.2f}" for one in (day.peak, day.gini))] for day in contents.days
    )
    return html_table("The ten fullest buckets", ["bucket", "messages", "share"], rows) + html_table(
        "Fullest bucket against the mean, and Gini's coefficient", ["day", "peak", "Gini"], spread
    )


def _storage_title(contents: Contents) -> str:
    times = list(contents.storage)
    last = contents.storage[times[-1]]
    sizes = (f"{tier} {formatting.size(last[tier])}{_growth(contents, tier)}" for tier in TIERS if tier in last)
    return f"Stored on {times[-1]:%Y-%m-%d}: {', '.join(sizes)}"


def _growth(contents: Contents, tier: str) -> str:
    """How fast a tier grows, over the measurements that have it."""
    known = {moment: tiers[tier] for moment, tiers in contents.storage.items() if tier in tiers}
    first, last = min(known), max(known)
    days = (last - first) / timedelta(days=1)
    if days < 1:
        return ""
    growth = (known[last] - known[first]) / days
    return f" ({'+' if growth >= 0 else '−'}{formatting.size(abs(growth))} a day)"


def _storage_table(contents: Contents) -> str:
    rows = (
        [formatting.time(moment), *(formatting.size(tiers[tier]) if tier in tiers else "-" for tier in TIERS)]
        for moment, tiers in contents.storage.items()
    )
    return html_table("Size of each tier", ["measured", *TIERS], rows)


def _rotations_title(contents: Contents) -> str:
    total = sum(row["rotations"] for row in contents.rotations)
    waiting = sum(row["keys"] for row in contents.grace)
    oldest = max((row["oldest_seconds"] for row in contents.grace), default=0)
    grace = (
        f"; {waiting:,} old ones are in their grace period, the oldest for {oldest / 86_400:.1f} days"
        if waiting
        else ""
    )
    return f"{total:,} keys were rotated or revoked{grace}"


def _rotations_table(contents: Contents) -> str:
    rows = (
        [f"{row['day']}", escape(row["reason"].replace("_", " ")), escape(row["key_type"]), f"{row['rotations']:,}"]
        for row in contents.rotations
    )
    return html_table("Keys by day, reason and type", ["day", "reason", "type", "keys"], rows)


def _agents(contents: Contents) -> str:
    senders = [[*_agent(one, contents.sent), f"{one.failed:,}"] for one in contents.senders]
    recipients = [_agent(one, contents.sent) for one in contents.recipients]
    top = contents.senders[:1]
    title = (
        f"The busiest sender sent {formatting.share(top[0].messages, contents.sent)} of all messages"
        if top
        else "Agents"
    )
    columns = ["messages", "share", "bytes"]
    return (
        f'<section><h2>{title}</h2><div class="pair">'
        + html_table("Who sent most", ["sender", *columns, "failed"], senders)
        + html_table("Who was sent most", ["recipient", *columns], recipients)
        + "</div></section>"
    )


def _agent(one: AgentFigures, sent: int) -> list[str]:
    return [
        formatting.foreign(one.handle),
        f"{one.messages:,}",
        formatting.share(one.messages, sent),
        formatting.size(one.wire_bytes),
    ]


def _time(moment: datetime) -> str:
    return f'<time datetime="{moment.isoformat()}">{formatting.time(moment)}</time>'
