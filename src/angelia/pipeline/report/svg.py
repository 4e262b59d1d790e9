"""Draws charts as SVG inside the page: text stays text, and colours are the page's, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Each of these colours becomes a variable of the page's style. The values are those of the light style.
COLOURS = {
    "text": "#1b2330",
    "muted": "#56606f",
    "line": "#7d8796",
    "grid": "#d9dde3",
    "accent": "#0b6b72",
    "series-1": "#0b5cad",
    "series-2": "#c65100",
    "series-3": "#2f9e7e",
    "series-4": "#7a2e73",
}
_WIDE, _NARROW = 9.6, 3.5  # inches
_HEIGHT = 2.5
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "text.color": COLOURS["text"],
    "xtick.color": COLOURS["line"],
    "ytick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "lines.linewidth": 1.6,
    "path.simplify": True,
}
_IDS = re.compile(r'\bid="([^"]+)"')
_USES = re.compile(r'(url\(#|href="#)([^")]+)')
_DROPPED = (
    re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL),
    re.compile(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>\s*", re.DOTALL),
    re.compile(r"<!--.*?-->\s*", re.DOTALL),
)
_FONT = re.compile(r"font: ([0-9.]+)px [^;\"]+")


def drawn(name: str, draw: Callable[[Axes, bool], None], height: float = _HEIGHT) -> str:
    """A drawing in two widths, of which the page shows the one that fits."""
    wide = _svg(f"{name}-w", (_WIDE, height), lambda axes: draw(axes, False))
    narrow = _svg(f"{name}-n", (_NARROW, 0.9 * height), lambda axes: draw(axes, True))
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _svg(name: str, inches: tuple[float, float], draw: Callable[[Axes], None]) -> str:
    written = io.StringIO()
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=inches, layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inlined(written.getvalue(), name)


def _inlined(text: str, name: str) -> str:
    """The SVG without its XML document, with unique ids, and with the page's colours and fonts."""
    text = text[text.index("<svg") :]
    for dropped in _DROPPED:
        text = dropped.sub("", text)
    used = {found[2] for found in _USES.finditer(text)}
    text = _IDS.sub(lambda found: f'id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = _USES.sub(lambda found: f"{found[1]}{name}-{found[2]}", text)
    text = _FONT.sub(lambda found: f"font-size: {found[1]}px", text)
    for colour, value in COLOURS.items():
        text = text.replace(value, f"var(--{colour})")
    head, _, rest = text.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    return f'{head} aria-hidden="true" focusable="false">{rest}'.strip()
