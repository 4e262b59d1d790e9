"""Numbers and untrusted text of the report: every number has its unit, all text is escaped."""

from __future__ import annotations

import html
import unicodedata
from datetime import datetime

_LONGEST = 80


def foreign(text: str) -> str:
    """Untrusted text as HTML: escaped, isolated, and with invisible and bidirectional characters shown."""
    shown = "".join(_shown(one) for one in text[:_LONGEST])
    cut = "…" if len(text) > _LONGEST else ""
    return f'<bdi class="foreign">{html.escape(shown)}{cut}</bdi>'


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} PB"


def duration(micros: float | None) -> str:
    """Microseconds."""
    if micros is None:
        return "-"
    if micros < 1000:
        return f"{micros:.0f} µs"
    if micros < 1_000_000:
        return f"{micros / 1000:.3g} ms"
    if micros < 100_000_000:
        return f"{micros / 1_000_000:.3g} s"
    return f"{micros / 60_000_000:,.1f} min"


def time(moment: datetime) -> str:
    """A time in UTC."""
    return f"{moment:%Y-%m-%d %H:%M}Z"


def share(part: float, whole: float) -> str:
    """A part of a whole, in percent."""
    return f"{100 * part / whole:.2f} %" if whole else "-"


def _shown(one: str) -> str:
    # Categories C: control, format (bidi among them), surrogate, private use and unassigned.
    return f"\\u{{{ord(one):x}}}" if unicodedata.category(one).startswith("C") else one
