"""report.html: one file that opens anywhere, asks nothing of any network, and runs no script but its own.

Its content policy names the one style sheet and the one script by their digests, so nothing that came with data or
models could act even if it were not escaped.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from reconcile.ledger import Cell, Ledger
from reconcile.page_ledger import PageLedger
from reconcile.report.example import example_block
from reconcile.report.explorer import chunks, explorer_document, script_json
from reconcile.report.figures import items_of
from reconcile.report.ledger_figures import ledger_figures, page_figures, protocols_text
from reconcile.report.ledger_sections import closing_sentence
from reconcile.report.names import FACTORS, SIDES, side_names
from reconcile.report.numbers import count, difference, interval, score, unsigned_interval
from reconcile.report.parts import Parts
from reconcile.report.sections import Section
from reconcile.report.style import FONT, MONO, figure_rules, tones, variables
from reconcile.report.svg import Figure
from reconcile.report.texts import visible
from reconcile.report.verdict import verdict_sentence

_FIGURES_OF = {"Sub-tasks": ("forest",), "How far the two agree": ("outcomes", "scatter", "subtasks")}
_LINKS = (("verdict", "Verdict"), ("gap", "Gap"), ("prompts", "Prompts"), ("recipe", "What to type"))


def report_page(parts: Parts) -> str:
    """The page; the same parts give the same bytes."""
    ledger = parts.ledger
    specific = _page_context(parts) if isinstance(ledger, PageLedger) else _choice_context(parts, ledger)
    return render(
        "report.html",
        {
            "title": parts.title,
            "verdict": verdict_sentence(ledger),
            "recipes": _recipes(parts),
            "sections": section_blocks(parts.sections, specific["figures"], _FIGURES_OF),
            "footer": _footer(parts),
            **specific,
        },
    )


def render(name: str, context: Mapping[str, Any]) -> str:
    """A template of the package with page styles, script and content policy put in.

    Every text of `context` is made visible and escaped; drawings and data blocks are already safe.
    """
    import jinja2
    from markupsafe import Markup

    folder = resources.files("reconcile.report") / "templates"
    css, script = _styles(folder.joinpath("page.css").read_text("utf-8")), folder.joinpath("page.js").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.finalize = lambda value: (
        value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)
    )
    template = environment.from_string(folder.joinpath(name).read_text("utf-8"))
    figures: Mapping[str, Figure] = context["figures"]
    return template.render(
        {
            "index": None,
            "chunks": (),
            "example": None,
            "cells": None,
            "board": None,
            "waterfall_caption": None,
            **context,
            "css": Markup(css),
            "script": Markup(script),
            "policy": content_policy(css, script),
            "links": _links(context),
            "figure": lambda wanted, caption=None: Markup(figure_html(figures[wanted], caption)),
        }
    )


def content_policy(css: str, script: str) -> str:
    """Nothing may load from anywhere; only this style sheet and this script count."""
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(css)}'; script-src 'sha256-{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _styles(css: str) -> str:
    light, dark = variables("light"), variables("dark")
    swatches = "".join(f".bg-{name}{{background:var(--{name})}}" for name in tones() if name.startswith("o-"))
    edges = "".join(f".part-tag.edge-{name}{{border-color:var(--{name})}}" for name in tones() if name.startswith("c-"))
    return (
        f":root{{color-scheme:light;--sans:{FONT};--mono:{MONO};{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"{css}{figure_rules()}{swatches}{edges}"
        f"@media print{{:root,:root[data-theme=dark],:root:not([data-theme=light]){{color-scheme:light;{light}}}}}"
    )


def figure_html(figure: Figure, caption: str | None = None) -> str:
    """A figure element: drawing, the one for phones beside it where there is one, caption (or a shorter one, where
    what it leaves out stands beside it).
    """
    from html import escape

    wide = "for-wide" if figure.narrow is not None else ""
    narrow = "" if figure.narrow is None else figure.narrow.svg(label=figure.label, css="for-narrow")
    place = ' class="square"' if figure.square else ""
    drawing = figure.drawing.svg(label=figure.label, css=wide)
    if figure.drawing.width is not None:
        name = escape(visible(figure.title))
        drawing = f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{drawing}</div>'
    return (
        f'<figure{place}><p class="figtitle">{escape(visible(figure.title))}</p>{drawing}{narrow}'
        f"<figcaption>{escape(visible(caption or figure.caption))}</figcaption></figure>"
    )


def _choice_context(parts: Parts, ledger: Ledger) -> dict[str, Any]:
    from markupsafe import Markup

    names = side_names(ledger.harnesses)
    index, rows = explorer_document(ledger)
    elsewhere = sum(ledger.num_items.get(name, 0) for name in ("lm_eval_only", "inspect_only"))
    note = f"{count(elsewhere, 'item')} that one side alone scored are not here." if elsewhere else ""
    return {
        "eyebrow": _eyebrow(parts, count(ledger.num_items["common"], "item")),
        "headline": " and ".join(f"{names[side]} says {score(ledger.reported[side])}" for side in SIDES),
        "chips": _chips(parts),
        "board": _board(parts, ledger),
        "gap_title": "The gap, and what it is made of",
        "figures": ledger_figures(ledger, parts.statistics, parts.agreement),
        "cells": _cells(ledger),
        "waterfall_caption": (
            f"{items_of(ledger.num_items['common'])}, from {names['lm_eval']}'s own protocol to {names['inspect']}'s. "
            "Solid: net share of each part (Shapley value). Pale: what it moves up and down before that cancels."
            if ledger.cells
            else None
        ),
        "cells_note": (
            f"n = {count(ledger.num_items['replayed'], 'item')}. Coloured: {names['inspect']}'s value. "
            "Off-path: neither's own protocol."
        ),
        "closing": closing_sentence(ledger),
        "example": example_block(ledger),
        "index": Markup(script_json(index)),
        "chunks": [Markup(script_json(chunk)) for chunk in chunks(rows)],
        "items_note": note,
    }


def _page_context(parts: Parts) -> dict[str, Any]:
    ledger = parts.ledger
    assert isinstance(ledger, PageLedger)
    names, bits = side_names(ledger.harnesses), ledger.bits_per_byte
    found = {} if parts.page_statistics is None else parts.page_statistics.intervals
    tiles = [
        {
            "name": names[side],
            "value": f"{getattr(bits, side):.4f}",
            "notes": [
                "bits per byte",
                *_others_like_these(unsigned_interval(found.get(side))),
                f"printed: {ledger.metric[side]} {_raw(ledger, side)}",
            ],
        }
        for side in SIDES
    ]
    around = _others_like_these(interval(found.get("gap")))
    notes = ["bits per byte", "exact on these pages", *around]
    tiles.append({"name": "gap", "value": f"{bits.gap:+.4f}", "notes": notes})
    return {
        "eyebrow": _eyebrow(parts, f"{count(ledger.num_items['common'], 'page')} scored by both"),
        "headline": " and ".join(f"{names[side]}: {getattr(bits, side):.4f} bits per byte" for side in SIDES),
        "chips": _chips(parts),
        "tiles": tiles,
        "gap_title": "The gap in one unit",
        "figures": page_figures(ledger),
        "closing": "",
        "items_note": "",
    }


def _others_like_these(bounds: str) -> list[str]:
    return [f"other pages like these: 95 % {bounds}"] if bounds else []


def _raw(ledger: PageLedger, side: str) -> str:
    value = ledger.reported_raw[side].get(ledger.metric[side])
    return "" if value is None else f"{value:.4f}"


def _eyebrow(parts: Parts, items: str) -> str:
    facts = parts.facts
    limit = "" if facts.limit is None else f", the first {facts.limit} of each sub-task"
    return f"{facts.benchmark} · {facts.model} · {facts.dtype or 'dtype not known'} · {items}{limit}"


def _chips(parts: Parts) -> list[dict[str, str]]:
    ledger = parts.ledger
    chips = [{"css": "good" if parts.holds else "bad", "text": parts.verdict.rstrip(".")}]
    if parts.statistics is not None:
        names = side_names(ledger.harnesses)
        chips += [
            {"css": "bad", "text": f"{name} is not distinguishable from chance"}
            for side, name in names.items()
            if not parts.statistics.chance[side].distinguishable()  # type: ignore[index]
        ]
        test = parts.statistics.gap.test
        if test is not None and ledger.gap:
            apart = "is unlikely to be luck" if test.p_value <= 0.05 else "could be luck of the items"
            chips.append({"css": "", "text": f"the gap {apart}: p = {test.p_value:.2g} ({test.method})"})
    chips += [{"css": "", "text": note} for note in dict.fromkeys(ledger.notes)][:3]
    return chips


def _board(parts: Parts, ledger: Ledger) -> dict[str, Any]:
    """The gap as a line under both scores."""
    names, statistics = side_names(ledger.harnesses), parts.statistics
    note = "exact on these items"
    if statistics is not None and statistics.gap.interval is not None:
        note += f"; others like them: 95 % {interval(statistics.gap.interval)}"
    return {
        "caption": (
            f"{items_of(ledger.num_items['common'])} that both scored"
            + ("; whiskers: 95 %, for items like these." if statistics is not None else ".")
        ),
        "name": f"gap, {names['lm_eval']} − {names['inspect']}",
        "value": difference(ledger.gap),
        "notes": (note,),
    }


def _cells(ledger: Ledger) -> dict[str, Any] | None:
    """Every cell in a line: its parts under their names, coloured where they are Inspect's, and its score."""
    if not ledger.cells:
        return None
    names = side_names(ledger.harnesses)
    columns = ["template", "length_normalisation", "tie_break"]
    columns += ["readout"] if len({cell.readout for cell in ledger.cells}) > 1 else []
    columns += sorted({name for cell in ledger.cells for name in cell.switched} - set(columns))
    rows = [
        {
            "parts": [
                {
                    "text": _part(cell, name, names),
                    "css": f"c-{name.replace('_', '-')}" if name in cell.switched else "",
                }
                for name in columns
            ],
            "score": score(cell.exact),
            "percent": f"{100 * float(cell.exact):.2f}",
            "native": cell.native is not None,
            "own": "off-path" if cell.native is None else f"{names[cell.native]}'s own",
        }
        for cell in ledger.cells
    ]
    return {"headers": [FACTORS.get(name, name).removeprefix("length ") for name in columns], "rows": rows}


def _part(cell: Cell, name: str, names: Mapping[str, str]) -> str:
    said = {
        "template": cell.template,
        "length_normalisation": cell.normalisation,
        "tie_break": cell.tie_break,
        "readout": cell.readout,
    }
    return said.get(name, names["inspect" if name in cell.switched else "lm_eval"]) or "–"


def _recipes(parts: Parts) -> list[dict[str, Any]]:
    found = [section for section in parts.sections if section.commands]
    if not found and parts.facts.command:
        found = [Section(title="This run again", commands=(parts.facts.command,))]
    return [
        {"number": number, "title": one.title, "sentences": one.sentences, "commands": _labelled(one.commands)}
        for number, one in enumerate(found)
    ]


def _labelled(commands: Sequence[str]) -> list[dict[str, str]]:
    """Commands to copy, each under the comments that stand before it."""
    found, label = [], []
    for command in commands:
        if command.startswith("#"):
            label.append(command.lstrip("# "))
            continue
        found.append({"label": "; ".join(label), "text": command})
        label = []
    return found


def section_blocks(
    sections: Sequence[Section], figures: Mapping[str, Figure], places: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Sections as the template takes them; `places` says by title which figures stand in one."""
    return [
        {
            "anchor": anchor(section.title),
            "title": section.title,
            "sentences": section.sentences,
            "table": section.table,
            "after": section.after,
            "figures": [name for name in places.get(section.title, ()) if name in figures],
        }
        for section in sections
        if not section.is_empty and not section.commands
    ]


def anchor(title: str) -> str:
    """A fragment that names a section."""
    return "s-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _links(context: Mapping[str, Any]) -> list[dict[str, str]]:
    present = {
        "verdict",
        *(["gap"] if "waterfall" in context["figures"] else []),
        *(name for name in ("prompts",) if context.get("example")),
    }
    if context.get("recipes"):
        present.add("recipe")
    links = [{"anchor": name, "text": text} for name, text in _LINKS if name in present]
    if context.get("index"):
        links.append({"anchor": "items", "text": "Items"})
    return links + [{"anchor": section["anchor"], "text": section["title"]} for section in context["sections"]]


def _footer(parts: Parts) -> str:
    facts = parts.facts
    told = [f"Data {facts.data}", f"seed {facts.seed}"]
    if facts.model_fingerprint:
        told.append(f"model fingerprint {facts.model_fingerprint}")
    if facts.data_fingerprint:
        told.append(f"data fingerprint {facts.data_fingerprint[:16]}")
    if facts.command:
        told.append(f"made by {facts.command}")
    return "; ".join(told) + "."


__all__ = ["anchor", "content_policy", "figure_html", "protocols_text", "render", "report_page"]
