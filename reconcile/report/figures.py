"""The figures of a report, drawn from plain numbers; captions say n and the protocol.

Each function takes what it draws and returns a `Figure`; `ledger_figures` has the mapping from ledgers to these.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reconcile.report.numbers import count, difference, percent, score
from reconcile.report.style import HEAT
from reconcile.report.svg import Anchor, Drawing, Figure, Scale, padded

Bounds = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class ScoreLine:
    """One side's score with its interval, where there is one."""

    name: str
    value: float
    bounds: Bounds | None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One component of a waterfall: its share of the gap, net and gross, and what stands beside its name."""

    name: str
    label: str
    net: float
    up: float
    down: float
    note: str


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """One sub-task's gap with its interval over n items."""

    label: str
    num_items: int
    gap: float
    bounds: Bounds | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How many items ended so; `name` chooses the colour."""

    name: str
    label: str
    num_items: int


def scores_figure(lines: Sequence[ScoreLine], *, chance: float | None, caption: str) -> Figure:
    """Both scores on one axis from 0 to 1, with intervals and the chance level."""
    drawing = Drawing(62 + 46 * len(lines))
    scale = Scale(low=0.0, high=1.0, start=2, end=98)
    bottom = 30 + 46 * len(lines)
    _axis(drawing, scale, top=16, bottom=bottom, ticks=(0, 0.2, 0.4, 0.6, 0.8, 1.0))
    if chance is not None:
        drawing.line(scale(chance), 16, scale(chance), bottom, "dash")
        anchor: Anchor = "end" if chance > 0.8 else "start"
        drawing.text(scale(chance), 12, f"chance {score(chance)}", "small muted", anchor, dx=0)
    for place, line in enumerate(lines):
        y = 50 + 46 * place
        drawing.text(2, y - 14, line.name, "strong")
        shown = score(line.value) + ("" if line.bounds is None else f"  [{line.bounds[0]:.4f}, {line.bounds[1]:.4f}]")
        drawing.text(98, y - 14, shown, "num", "end")
        if line.bounds is not None:
            drawing.line(scale(line.bounds[0]), y, scale(line.bounds[1]), y, "whisker")
            for end in line.bounds:
                drawing.line(scale(end), y - 5, scale(end), y + 5, "whisker")
        drawing.mark(scale(line.value), y, "circle" if place == 0 else "diamond", 6, "ink" if place == 0 else "hollow")
    drawing.text(50, bottom + 32, "score: share of items right", "small muted", "middle")
    return Figure(name="scores", title="Both scores", caption=caption, drawing=drawing)


_ROW = 36


def waterfall_figure(
    start: tuple[str, float], end: tuple[str, float], steps: Sequence[Step], *, caption: str, unit: str, places: int = 4
) -> Figure:
    """From one side's value to the other's, component by component: net solid, gross pale behind it."""
    rows = _ROW
    drawing = Drawing(rows * (len(steps) + 2) + 34)
    levels, ends = [start[1]], []
    for step in steps:
        ends += [levels[-1] - step.up, levels[-1] - step.down]
        levels.append(levels[-1] - step.net)
    scale = padded([*levels, *ends, end[1]], start=1, end=99, least=0.02)
    bottom = rows * (len(steps) + 2) + 2
    _axis(drawing, scale, top=24, bottom=bottom, ticks=scale.ticks())
    for place, step in enumerate(steps):
        _step_shapes(drawing, scale, rows * (place + 1), step, levels[place], levels[place + 1])
    drawing.line(scale(levels[-1]), rows * len(steps) + 20, scale(levels[-1]), bottom, "axis")
    _end_row(drawing, scale, 0, start, "circle", places)
    for place, step in enumerate(steps):
        y = rows * (place + 1) + 14
        drawing.text(0, y, step.label, "strong")
        drawing.text(100, y, _signed(step.net, places), "num strong", "end")
        drawing.text(78, y, step.note, "small muted num", "end")
    _end_row(drawing, scale, len(steps) + 1, end, "diamond", places)
    drawing.text(50, bottom + 31, unit, "small muted", "middle")
    return Figure(name="waterfall", title="What the gap is made of", caption=caption, drawing=drawing)


def _step_shapes(drawing: Drawing, scale: Scale, y: float, step: Step, before: float, after: float) -> None:
    """A component's bars, and the line that its level hangs from."""
    css = f"c-{step.name.replace('_', '-')}"
    title = ", ".join(text for text in (f"{step.label}: net {step.net:+.4f}", step.note) if text)
    drawing.line(scale(before), y - 3, scale(before), y + _ROW - 3, "axis")
    if step.up or step.down:
        left, right = scale(before - step.up), scale(before - step.down)
        drawing.rect(left, y + 19, right - left, 14, f"{css} gross", title)
    if step.net:
        low, high = sorted((scale(before), scale(after)))
        drawing.rect(low, y + 21, max(high - low, 0.4), 10, f"{css} net", title)


def _end_row(drawing: Drawing, scale: Scale, place: int, side: tuple[str, float], shape: str, places: int) -> None:
    y = _ROW * place
    drawing.text(0, y + 14, side[0], "strong")
    drawing.text(100, y + 14, f"{side[1]:.{places}f}", "num strong", "end")
    drawing.mark(scale(side[1]), y + 27, shape, 6, "ink" if shape == "circle" else "hollow")


def _signed(value: float, places: int) -> str:
    if value == 0:
        return "0"
    return f"{value:+.{places}f}" if abs(value) >= 0.5 * 10**-places else f"{value:+.0e}"


def forest_figure(rows: Sequence[ForestRow], *, overall: float, caption: str) -> Figure:
    """The gap of every sub-task with its own interval, largest first, and the gap over all items as a line."""
    ordered = sorted(rows, key=lambda row: (-row.gap, row.label))
    values = [0.0, overall, *(row.gap for row in rows), *(end for row in rows for end in row.bounds or ())]
    return Figure(
        name="forest",
        title="The gap by sub-task",
        caption=caption,
        drawing=_forest(ordered, values, overall, step=22, label=29.0, start=31.0),
        narrow=_forest(ordered, values, overall, step=38, label=None, start=2.0),
    )


def _forest(
    rows: Sequence[ForestRow], values: Sequence[float], overall: float, *, step: int, label: float | None, start: float
) -> Drawing:
    drawing = Drawing(step * len(rows) + 58)
    scale = padded(values, start=start, end=86 if label is not None else 98)
    bottom = step * len(rows) + 18
    _axis(drawing, scale, top=14, bottom=bottom, ticks=scale.ticks(9 if label is not None else 5), signed=True)
    drawing.line(scale(0), 14, scale(0), bottom, "axis")
    drawing.line(scale(overall), 14, scale(overall), bottom, "dash")
    drawing.text(scale(overall), 10, f"all items {difference(overall)}", "small muted", "middle")
    for place, row in enumerate(rows):
        y = 18 + step * place + step / 2
        numbers = f"{difference(row.gap)}  (n = {row.num_items})"
        if label is not None:
            drawing.text(label, y + 4, row.label, "small", "end")
            drawing.text(100, y + 4, numbers, "small num", "end")
        else:
            drawing.text(0, y - 6, row.label, "small")
            drawing.text(100, y - 6, numbers, "small num", "end")
            y += 6
        if row.bounds is not None:
            drawing.line(scale(row.bounds[0]), y, scale(row.bounds[1]), y, "whisker")
        drawing.mark(scale(row.gap), y, "square", 4, "ink", f"{row.label}: {numbers}")
    drawing.text((start + 98) / 2, bottom + 34, "gap, in share of items", "small muted", "middle")
    return drawing


def scatter_figure(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    names: tuple[str, str],
    labels: Mapping[str, str],
    title: str,
    caption: str,
    name: str = "scatter",
) -> Figure:
    """One point a sub-task, both harnesses' scores; on the diagonal they agree. Equal points grow."""
    drawing = Drawing(442 + (22 * len(series) if len(series) > 1 else 0))
    across = Scale(low=0, high=1, start=11, end=97)
    up = Scale(low=0, high=1, start=400, end=16)
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        drawing.line(across(tick), up(0), across(tick), up(1), "grid")
        drawing.line(across(0), up(tick), across(1), up(tick), "grid")
        drawing.text(across(tick), up(0) + 18, f"{tick:g}", "small muted num", "middle")
        drawing.text(across(0), up(tick) + 4, f"{tick:g}", "small muted num", "end", dx=-8)
    drawing.line(across(0), up(0), across(1), up(1), "dash")
    for place, (key, points) in enumerate(series.items()):
        shape, shift = ("circle", -0.7) if place == 0 else ("square", 0.7)
        for (ours, theirs), times in sorted(Counter(points).items()):
            seen = f"{labels[key]}: {names[0]} {ours:.3f}, {names[1]} {theirs:.3f}" + (
                f", {times} ×" if times > 1 else ""
            )
            offset = shift if len(series) > 1 else 0
            drawing.mark(across(ours) + offset, up(theirs), shape, 3.2 + 1.5 * times**0.5, f"s-{key} cloud", seen)
    for place, key in enumerate(series if len(series) > 1 else ()):
        drawing.mark(12.5, 464 + 20 * place, "circle" if place == 0 else "square", 5, f"s-{key} cloud")
        drawing.text(12.5, 468 + 20 * place, labels[key], "small", dx=14)
    drawing.text(54, 437, f"{names[0]}: score of a sub-task", "small muted", "middle")
    drawing.text(11, 10, f"{names[1]}: score of the same sub-task ↑", "small muted")
    return Figure(name=name, title=title, caption=caption, drawing=drawing, square=True)


def outcomes_figure(outcomes: Sequence[Outcome], *, caption: str) -> Figure:
    """What became of the items: one bar, and every part named below it."""
    shown = [outcome for outcome in outcomes if outcome.num_items]
    total = sum(outcome.num_items for outcome in shown)
    drawing = Drawing(52 + 24 * len(shown))
    start = 0.0
    for place, outcome in enumerate(shown):
        css = f"o-{outcome.name.replace('_', '-')} part"
        width = 100 * outcome.num_items / total
        drawing.rect(start, 4, width, 30, css, f"{outcome.label}: {outcome.num_items}")
        start += width
        y = 62 + 24 * place
        drawing.mark(1.2, y - 5, "square", 6, css)
        drawing.text(1.2, y, outcome.label, dx=16)
        share = f"{outcome.num_items}  ({percent(outcome.num_items / total)})"
        drawing.text(100, y, share, "num", "end")
    return Figure(name="outcomes", title="What became of the items", caption=caption, drawing=drawing)


def heatmap_figure(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    caption: str,
    name: str,
    limit: float = 1.0,
    last_limit: float | None = None,
) -> Figure:
    """A table in colours from -limit to +limit (the last column from -last_limit); every cell carries its number, an
    undefined one a dash.
    """
    slant = 5 * max(map(len, columns))
    left, top, cell = 16 + 7 * max(map(len, rows)), 20 + slant, 62
    drawing = Drawing(top + 34 * len(rows) + 8, unit="px", width=left + cell * (len(columns) - 0.5) + 12 + slant)
    for place, column in enumerate(columns):
        drawing.slanted(left + cell * place + cell / 2, top - 8, column, "small")
    for line, (row, found) in enumerate(zip(rows, values, strict=True)):
        y = top + 34 * line
        drawing.text(left - 8, y + 21, row, "small", "end")
        for place, value in enumerate(found):
            x = left + cell * place
            reach = limit if last_limit is None or place < len(columns) - 1 else last_limit
            step = None if value is None else _heat_step(value, reach)
            drawing.rect(x, y, cell - 2, 32, "empty" if step is None else f"h{step}", f"{row} × {columns[place]}")
            text = "–" if value is None else f"{value:+.2f}"
            drawing.text(
                x + cell / 2 - 1, y + 21, text, "small num" + ("" if step is None else f" h{step}-ink"), "middle"
            )
    return Figure(name=name, title=title, caption=caption, drawing=drawing)


def _heat_step(value: float, limit: float) -> int:
    share = max(-1.0, min(1.0, value / limit)) if limit else 0.0
    return round((share + 1) / 2 * (len(HEAT) - 1))


def _axis(
    drawing: Drawing, scale: Scale, *, top: float, bottom: float, ticks: Sequence[float], signed: bool = False
) -> None:
    for tick in ticks:
        drawing.line(scale(tick), top, scale(tick), bottom, "grid")
        text = f"{tick:+g}" if signed and tick else f"{tick:g}"
        drawing.text(scale(tick), bottom + 15, text, "small muted num", "middle")


def items_of(number: int) -> str:
    """ "n = 40 items"."""
    return f"n = {count(number, 'item')}"
