"""How figures and pages look: one palette, the same colour for the same component everywhere, light and dark.

Hues are Okabe and Ito's and Tol's, which stay apart under the common colour-vision deficiencies; each is dark (or, on
the dark ground, light) enough for 3 : 1 against its ground, and text colours for 4.5 : 1 (WCAG AA). Nothing is said by
colour alone: every mark carries its name or a shape of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tone:
    """One colour on the light ground and on the dark one, as #rrggbb."""

    light: str
    dark: str


COMPONENTS: Mapping[str, Tone] = {
    "template": Tone(light="#0072b2", dark="#5eb3ea"),
    "tokenisation": Tone(light="#a97400", dark="#e5bd4f"),
    "engine": Tone(light="#882255", dark="#e58bb8"),
    "window": Tone(light="#5b57c2", dark="#a5a2f5"),
    "length_normalisation": Tone(light="#c65200", dark="#f29450"),
    "tie_break": Tone(light="#008763", dark="#3fcf9f"),
    "readout": Tone(light="#aa4499", dark="#e09ad3"),
    "coverage": Tone(light="#5f6b7a", dark="#a3aebb"),
    "rounding": Tone(light="#7d8590", dark="#8b949e"),
    "unexplained": Tone(light="#b3261e", dark="#ff8a80"),
}

GROUNDS: Mapping[str, Tone] = {
    "ground": Tone(light="#fbfaf8", dark="#14171c"),
    "surface": Tone(light="#ffffff", dark="#1b2027"),
    "sunken": Tone(light="#f4f2ee", dark="#101317"),
}

INKS: Mapping[str, Tone] = {
    "ink": Tone(light="#1d2128", dark="#e8eaed"),
    "muted": Tone(light="#5a626d", dark="#a2abb6"),
    "link": Tone(light="#00568a", dark="#7cc4f5"),
    "good": Tone(light="#00694c", dark="#4fd6a8"),
    "bad": Tone(light="#a32a00", dark="#ff9d73"),
}

LINES: Mapping[str, Tone] = {
    "line": Tone(light="#dfdcd5", dark="#303741"),
    "axis": Tone(light="#7f858d", dark="#7d8692"),
    "del": Tone(light="#fde3d3", dark="#4a2a18"),
    "ins": Tone(light="#d5ecfb", dark="#14384f"),
    "focus": Tone(light="#0072b2", dark="#7cc4f5"),
}

OUTCOMES: Mapping[str, Tone] = {
    "both_right": Tone(light="#2c3a4b", dark="#d9e0e8"),
    "only_lm_eval": Tone(light="#62788f", dark="#a9b9ca"),
    "only_inspect": Tone(light="#a3b3c4", dark="#73879c"),
    "both_wrong_alike": Tone(light="#d8cdb8", dark="#6b6454"),
    "both_wrong_differently": Tone(light="#b39f78", dark="#9b8f74"),
    "wrong_unknown": Tone(light="#ece8df", dark="#3d3b36"),
    "partial": Tone(light="#8a7f6d", dark="#c9bfa8"),
}
"""Neutral, because no outcome is a component: cool where a side is right, warm where none is."""

SERIES: Mapping[str, Tone] = {
    "off": Tone(light="#4a5563", dark="#b6c0cb"),
    "on": COMPONENTS["length_normalisation"],
}

HEAT: tuple[str, ...] = (
    "#b35806",
    "#d98a3a",
    "#f1b97d",
    "#f9e0c2",
    "#f5f5f5",
    "#cfe3f1",
    "#93c1de",
    "#4f94c4",
    "#1f639b",
)
"""From -1 through 0 to +1, the same on both grounds; `heat_ink` says what is readable on each."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def tones() -> dict[str, Tone]:
    """Every colour by the name of its CSS variable, without the dashes."""
    groups = (("", GROUNDS), ("", INKS), ("", LINES), ("c-", COMPONENTS), ("o-", OUTCOMES), ("s-", SERIES))
    return {f"{prefix}{name.replace('_', '-')}": tone for prefix, group in groups for name, tone in group.items()}


def variables(ground: str) -> str:
    """CSS declarations of all colours for the "light" or the "dark" ground."""
    return "".join(f"--{name}:{getattr(tone, ground)};" for name, tone in tones().items())


def figure_rules() -> str:
    """The CSS that drawings are styled with, in a page or in a file of their own."""
    fills = "".join(f".{name}{{fill:var(--{name});stroke:var(--{name})}}" for name in tones() if name[1:2] == "-")
    heat = "".join(
        f".h{step}{{fill:{colour}}}.fig text.h{step}-ink{{fill:{heat_ink(colour)};stroke:none}}"
        for step, colour in enumerate(HEAT)
    )
    return (
        f".fig text{{font:13px {FONT};fill:var(--ink);stroke:var(--surface);stroke-width:4px;paint-order:stroke}}"
        ".fig .small{font-size:12px}.fig .muted{fill:var(--muted)}.fig .strong{font-weight:600}"
        ".fig text.num{font-variant-numeric:tabular-nums}"
        ".grid{stroke:var(--line);stroke-width:1;fill:none}.axis{stroke:var(--axis);stroke-width:1;fill:none}"
        ".dash{stroke:var(--axis);stroke-width:1.5;stroke-dasharray:5 4;fill:none}"
        ".ink{fill:var(--ink);stroke:var(--ink)}.hollow{fill:var(--surface);stroke:var(--ink);stroke-width:2}"
        ".whisker{stroke:var(--ink);stroke-width:2;fill:none}.fig .gross{fill-opacity:.28;stroke:none}"
        ".fig .net{stroke:none}.cloud{fill-opacity:.55;stroke-width:1}"
        + fills
        + heat
        + ".part{stroke:var(--surface);stroke-width:1}"
        ".empty{fill:var(--sunken)}"
    )


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio of two colours, 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def heat_ink(colour: str) -> str:
    """Black or white, whichever reads better on a colour."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))
