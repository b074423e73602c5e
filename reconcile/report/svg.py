"""Drawings as SVG text that is the same to the byte for the same numbers, and that adapts to the width it is given.

x runs from 0 to 100 percent of the width, y in pixels from the top, so text keeps its size on a phone. Colours come by
CSS class (see `style`); nothing is drawn with inline styles, which a page's content policy forbids.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Literal

from reconcile.report.style import figure_rules, variables
from reconcile.report.texts import visible

Anchor = Literal["start", "middle", "end"]

_FILE_WIDTH, _MARGIN = 760, 24


class Drawing:
    """Shapes, in the order they are put down. `unit` is that of x: "%" or, for a fixed grid, "px"."""

    def __init__(self, height: float, *, unit: Literal["%", "px"] = "%", width: float | None = None) -> None:
        self.height = height
        self.width = width
        self._unit = "%" if unit == "%" else ""
        self._shapes: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        """A straight line."""
        ends = f'x1="{self._x(x1)}" y1="{number(y1)}" x2="{self._x(x2)}" y2="{number(y2)}"'
        self._shapes.append(f'<line {ends} class="{css}"/>')

    def rect(self, x: float, y: float, width: float, height: float, css: str, title: str = "") -> None:
        """An upright box; `title` is what a pointer resting on it shows."""
        place = f'x="{self._x(x)}" y="{number(y)}" width="{self._x(width)}" height="{number(height)}"'
        self._shapes.append(_closed(f'rect {place} class="{css}"', "rect", title))

    def mark(self, x: float, y: float, shape: str, radius: float, css: str, title: str = "") -> None:
        """A "circle", "square" or "diamond" around a point."""
        self._shapes.append(
            f'<svg x="{self._x(x)}" y="{number(y)}" overflow="visible">{_marker(shape, radius, css, title)}</svg>'
        )

    def text(self, x: float, y: float, text: str, css: str = "", anchor: Anchor = "start", dx: float = 0) -> None:
        """One line of text, its baseline at y."""
        shift = f' dx="{number(dx)}"' if dx else ""
        name = f' class="{css}"' if css else ""
        self._shapes.append(
            f'<text x="{self._x(x)}" y="{number(y)}"{shift} text-anchor="{anchor}"{name}>{escape(visible(text))}</text>'
        )

    def slanted(self, x: float, y: float, text: str, css: str) -> None:
        """Text that rises from a point: column heads of a narrow grid, on a drawing in pixels."""
        place = f"translate({number(x)} {number(y)}) rotate(-45)"
        self._shapes.append(f'<text transform="{place}" class="{css}">{escape(visible(text))}</text>')

    def body(self) -> str:
        """The shapes alone."""
        return "".join(self._shapes)

    def svg(self, *, label: str, css: str = "") -> str:
        """An element for a page: as wide as its place, `height` pixels high."""
        width = "100%" if self.width is None else number(self.width)
        return (
            f'<svg class="fig {css}" width="{width}" height="{number(self.height)}" role="img" '
            f'aria-label="{escape(visible(label))}" xmlns="http://www.w3.org/2000/svg">{self.body()}</svg>'
        )

    def _x(self, value: float) -> str:
        return f"{number(value)}{self._unit}"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing with its words. `narrow` replaces `drawing` on a phone where it is given; `square` keeps it small."""

    name: str
    title: str
    caption: str
    drawing: Drawing
    narrow: Drawing | None = None
    square: bool = False

    @property
    def label(self) -> str:
        """What a screen reader says."""
        return f"{self.title}. {self.caption}"


def standalone(figure: Figure) -> str:
    """A figure as an SVG file of its own, with title, caption and both grounds' colours."""
    width = figure.drawing.width or (520 if figure.square else _FILE_WIDTH)
    columns = int(width / 6.4)
    caption = textwrap.wrap(visible(figure.caption), columns)
    titles = textwrap.wrap(visible(figure.title), int(width / 10))
    top = _MARGIN + 8 + 20 * len(titles)
    height = top + figure.drawing.height + 20 + 17 * len(caption) + _MARGIN / 2
    total = width + 2 * _MARGIN
    own = ".back{fill:var(--surface);stroke:none}.fig text.head{font-size:16px;font-weight:600}"
    styles = (
        f"svg{{{variables('light')}}}@media(prefers-color-scheme:dark){{svg{{{variables('dark')}}}}}{figure_rules()}"
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" width="{number(total)}" height="{number(height)}" '
        f'viewBox="0 0 {number(total)} {number(height)}" role="img">',
        f"<title>{escape(visible(figure.title))}</title><desc>{escape(visible(figure.caption))}</desc>",
        f"<style>{styles}{own}</style>",
        f'<rect width="{number(total)}" height="{number(height)}" class="back"/>',
        *_lines(titles, y=_MARGIN + 8, step=20, css="head"),
        f'<svg x="{_MARGIN}" y="{number(top)}" width="{number(width)}" height="{number(figure.drawing.height)}" '
        f'overflow="visible">{figure.drawing.body()}</svg>',
        *_lines(caption, y=top + figure.drawing.height + 20, step=17, css="small muted"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _lines(texts: Iterable[str], *, y: float, step: float, css: str) -> list[str]:
    return [
        f'<text x="{_MARGIN}" y="{number(y + step * place)}" class="{css}">{escape(text)}</text>'
        for place, text in enumerate(texts)
    ]


def number(value: float) -> str:
    """A coordinate to a hundredth, without needless zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values to places: `low` to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values inside the scale, at most so many."""
        span = self.high - self.low
        power = 10.0
        while power > span:
            power /= 10
        steps = [power * factor for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 5)]
        step = next((s for s in steps if span / s <= most), span)
        first = int(-(-self.low // step))
        count = int(self.high // step) - first + 1
        return [round((first + place) * step, 10) for place in range(count)]


def padded(values: Iterable[float], *, start: float, end: float, least: float = 0.02) -> Scale:
    """A scale that holds all values with a little air."""
    found = list(values)
    low, high = min(found), max(found)
    air = max((high - low) * 0.06, least / 2)
    return Scale(low=low - air, high=high + air, start=start, end=end)


def _marker(shape: str, radius: float, css: str, title: str) -> str:
    size = number(radius)
    if shape == "circle":
        return _closed(f'circle r="{size}" class="{css}"', "circle", title)
    if shape == "square":
        edge = number(-radius * 0.9)
        side = number(radius * 1.8)
        return _closed(f'rect x="{edge}" y="{edge}" width="{side}" height="{side}" class="{css}"', "rect", title)
    assert shape == "diamond", shape
    reach = number(radius * 1.25)
    return _closed(f'path d="M0-{reach} {reach} 0 0 {reach}-{reach} 0Z" class="{css}"', "path", title)


def _closed(opening: str, name: str, title: str) -> str:
    return f"<{opening}><title>{escape(visible(title))}</title></{name}>" if title else f"<{opening}/>"
