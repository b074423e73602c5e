"""A table for a paper: both scores, every component net and gross, and what n and the protocols were (booktabs)."""

import re
from collections.abc import Sequence

from reconcile.ledger import Ledger
from reconcile.page_ledger import PageLedger
from reconcile.report.ledger_figures import protocols_text
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.numbers import count, difference, interval, score, tiny, unsigned_interval
from reconcile.report.parts import Parts
from reconcile.report.texts import visible

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


_FIRST_WITHOUT_GLYPH = 0x180  # Latin Extended-A is the last block that every pdfLaTeX sets


def latex_table(parts: Parts) -> str:
    """A `table` environment; it needs the package booktabs."""
    ledger = parts.ledger
    if isinstance(ledger, PageLedger):
        return _page_table(parts, ledger)
    return _choice_table(parts, ledger)


def escape(text: str) -> str:
    """Text that LaTeX prints as it is; a letter that pdfLaTeX's fonts lack is named by its code point."""
    return "".join(_letter(letter) for letter in " ".join(visible(text).split()))


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    return letter if ord(letter) < _FIRST_WITHOUT_GLYPH else f"[U+{ord(letter):04X}]"


def _choice_table(parts: Parts, ledger: Ledger) -> str:
    names, statistics = side_names(ledger.harnesses), parts.statistics
    scores = [(names[side], score(ledger.reported[side]), _unsigned(parts, side), "", "", "") for side in SIDES]
    components = []
    for one in ledger.components:
        acts = one.status == "acts" and one.name not in ("coverage", "rounding", "unexplained")
        estimate = statistics.components.get(one.name) if statistics is not None else None
        components.append(
            (
                FACTORS.get(one.name, one.name),
                tiny(one.exact) if one.name == "rounding" else difference(one.exact),
                interval(estimate.interval) if estimate is not None and acts else "",
                str(one.items_up) if acts else "",
                str(one.items_down) if acts else "",
                str(one.picks_changed) if acts else "",
            )
        )
    gap = interval(statistics.gap.interval) if statistics is not None else ""
    total = (f"gap, {names['lm_eval']} − {names['inspect']}", difference(ledger.gap), gap, "", "", "")
    caption = (
        f"{parts.facts.benchmark}, {parts.facts.model}: the score gap and what it is made of (Shapley values over the "
        f"protocol's parts; they sum to the gap exactly). n = {count(ledger.num_items['common'], 'item')} that both "
        f"harnesses scored. Up, down: items that a part moves either way; picks: answers it changes. Intervals are "
        f"95 % paired bootstrap or exact ones, for other items like these. "
        f"{protocols_text(ledger)}"
    )
    return _table(
        ("", "share", "95 % interval", "up", "down", "picks"),
        "lrlrrr",
        (scores, components, [total]),
        caption=caption,
        label=ledger.task,
    )


def _unsigned(parts: Parts, side: str) -> str:
    if parts.statistics is None:
        return ""
    return unsigned_interval(parts.statistics.scores[side].interval)  # type: ignore[index]


def _page_table(parts: Parts, ledger: PageLedger) -> str:
    names, bits = side_names(ledger.harnesses), ledger.bits_per_byte
    found = {} if parts.page_statistics is None else parts.page_statistics.intervals
    scores = [(names[side], f"{getattr(bits, side):.6f}", unsigned_interval(found.get(side))) for side in SIDES]
    components = [(name.replace("_", " "), f"{value:+.6f}", "") for name, value in bits.components.items()]
    total = (f"gap, {names['lm_eval']} − {names['inspect']}", f"{bits.gap:+.6f}", interval(found.get("gap")))
    caption = (
        f"{parts.facts.benchmark}, {parts.facts.model}: bits per byte of the original page behind both harnesses. "
        f"n = {count(ledger.num_items['common'], 'page')} that both scored."
        + (" Intervals are 95 % paired bootstrap of the pages, for other pages like these." if found else "")
    )
    return _table(
        ("", "bits per byte", "95 % interval"), "lrl", (scores, components, [total]), caption=caption, label=ledger.task
    )


def _table(
    headers: Sequence[str],
    align: str,
    groups: Sequence[Sequence[Sequence[str]]],
    *,
    caption: str,
    label: str,
) -> str:
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        r"\setlength{\tabcolsep}{4.5pt}",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:reconcile-{''.join(letter for letter in label if letter.isalnum())}}}",
        rf"\begin{{tabular}}{{{align}}}",
        r"\toprule",
        _row(headers),
    ]
    for group in groups:
        lines += [r"\midrule", *(_row(row) for row in group)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def _row(cells: Sequence[str]) -> str:
    signed = [re.sub(r"(?<![\w.])-(?=\d)", "−", cell) for cell in cells]
    return " & ".join(f"{{{escape(cell)}}}" if cell.startswith("[") else escape(cell) for cell in signed) + r" \\"
