"""The one item a report shows first: both prompts side by side, what was scored after each, what each side picked."""

from typing import Any

from reconcile.agreement import item_outcomes, native_picks
from reconcile.ledger import Ledger
from reconcile.report.ledger_figures import outcome_labels
from reconcile.report.names import SIDES, side_names
from reconcile.report.numbers import count
from reconcile.report.prompt_diff import compare
from reconcile.report.texts import one_line, visible
from reconcile.runs import SampleRecord

_PREFERRED = (
    "only_lm_eval",
    "only_inspect",
    "partial",
    "both_wrong_differently",
    "both_right",
    "both_wrong_alike",
    "wrong_unknown",
)
_LONGEST_SHOWN = 6000


def example_place(ledger: Ledger) -> int | None:
    """The item that shows the gap best: one that only one side has right, its prompts the shortest of those."""
    outcomes = item_outcomes(ledger)
    if not outcomes:
        return None
    ranks = {name: rank for rank, name in enumerate(_PREFERRED)}
    majority = sum((ledger.common_scores["lm_eval"] >= ledger.common_scores["inspect"],))
    if not majority:
        ranks["only_lm_eval"], ranks["only_inspect"] = ranks["only_inspect"], ranks["only_lm_eval"]
    pairs = ledger.items.pairs
    return min(
        range(len(pairs)),
        key=lambda place: (ranks[outcomes[place]], sum(len(sample.prompt) for sample in pairs[place]), place),
    )


def example_block(ledger: Ledger) -> dict[str, Any] | None:
    """What the page's template needs of that item."""
    place = example_place(ledger)
    if place is None:
        return None
    pair, picks = ledger.items.pairs[place], native_picks(ledger)[place]
    names = side_names(ledger.harnesses)
    split = [_split(sample, ledger.protocols[side].num_fewshot) for side, sample in zip(SIDES, pair, strict=True)]
    segments = compare(split[0][1], split[1][1])
    logged = (ledger.items.logged_lm_eval[place], ledger.items.logged_inspect[place])
    sides = []
    for number, side in enumerate(SIDES):
        shots = ledger.protocols[side].num_fewshot
        pick, credit = picks[number], logged[number]
        verdict = {0: "wrong", 1: "right"}.get(int(credit) if credit in (0, 1) else -1, f"credit {credit}")
        sides.append(
            {
                "name": names[side],
                "css": ("del", "ins")[number],
                "outcome": f"picks {_letter(pick)}, {verdict}",
                "shots": split[number][0],
                "shots_label": f"{count(shots, 'worked example')} before it ({len(split[number][0])} characters)",
                "segments": segments[number],
                "scored": _scored(pair[number], pick),
                "scored_label": "Then each of these is scored (␣ is a space); the thick frame is its pick:",
            }
        )
    outcome = outcome_labels(ledger)[item_outcomes(ledger)[place]]
    about = (
        f"Item {place + 1}, {outcome}: {one_line(pair[0].question, 160)} "
        f"Right answer: {_letter(pair[0].gold)}. What one prompt has and the other has not is marked."
    )
    return {"place": place, "about": about, "sides": sides}


def _split(sample: SampleRecord, shots: int) -> tuple[str, str]:
    """(worked examples, the item's own part) of a prompt, both visible; a very long one loses its middle."""
    prompt = visible(sample.prompt)
    start = 0
    if shots:
        question = visible(sample.question).strip()
        place = prompt.rfind(question) if question else -1
        start = prompt.rfind("\n\n", 0, place) + 2 if place > 0 and "\n\n" in prompt[:place] else 0
    own = prompt[start:]
    if len(own) > _LONGEST_SHOWN:
        half = _LONGEST_SHOWN // 2
        own = (
            f"{own[:half]}\n[… {len(own) - 2 * half} characters left out here; the item below has all …]\n{own[-half:]}"
        )
    return prompt[:start], own


def _scored(sample: SampleRecord, pick: int | None) -> list[dict[str, Any]]:
    return [
        {"text": _spaced(one_line(text, 300) if len(text) > 300 else visible(text)), "picked": place == pick}
        for place, text in enumerate(sample.continuations)
    ]


def _spaced(text: str) -> str:
    """The text with the space it begins with as a mark: it is part of what is scored."""
    return "␣" + text[1:] if text.startswith(" ") else text


def _letter(index: int | None) -> str:
    if index is None or index < 0:
        return "none"
    return chr(ord("A") + index) if index < 26 else f"#{index + 1}"
