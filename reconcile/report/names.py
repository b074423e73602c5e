"""What a report calls the two sides and the parts of a protocol."""

from collections.abc import Mapping

SIDES = ("lm_eval", "inspect")

FACTORS: Mapping[str, str] = {
    "template": "template",
    "tokenisation": "tokenisation",
    "engine": "engine",
    "window": "window",
    "length_normalisation": "length normalisation",
    "tie_break": "tie-break",
    "readout": "readout",
    "coverage": "coverage",
    "rounding": "rounding",
    "unexplained": "unexplained",
}

_HARNESSES = {"lm_eval": "lm-eval", "inspect": "Inspect"}


def side_names(harnesses: Mapping[str, str]) -> dict[str, str]:
    """Each side's harness; two runs of one harness are told apart as the first and the second."""
    names = {side: _HARNESSES.get(harnesses[side], harnesses[side]) for side in SIDES}
    if names["lm_eval"] != names["inspect"]:
        return names
    return {"lm_eval": f"the first {names['lm_eval']} run", "inspect": f"the second {names['inspect']} run"}
