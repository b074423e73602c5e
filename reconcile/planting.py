"""Synthetic pairs of runs in which every difference is planted and known, to prove that a ledger finds them all.

An item without ties is planted by its four cells (template, normalisation) = LL, LI, IL, II, right or wrong: all 16
patterns exist, pure changes and interactions alike. A tied item is planted by how many choices tie and where among
them the right one stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from reconcile.runs import HarnessRun, Protocol
from reconcile.synthetic import SyntheticItem, run_of

Pattern = tuple[int, int, int, int]
Tie = tuple[int, int]

LM_EVAL = Protocol(template="lm-eval", num_fewshot=0, normalisation="none", tie_break="first")
INSPECT = Protocol(template="inspect", num_fewshot=0, normalisation="token", tie_break="fractional")

_TWO_CHOICES = {
    (1, 1): ((-1.0, -2.0), (1, 1)),
    (0, 0): ((-2.0, -1.0), (1, 1)),
    (1, 0): ((-1.0, -2.0), (1, 4)),
    (0, 1): ((-2.0, -1.0), (4, 1)),
}
"""(raw, per token) right or wrong -> logprobs and token counts of the right choice and of its rival."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """Two runs and what was planted: each item's shares of the gap, by the name it has as `sample_id`."""

    lm_eval: HarnessRun
    inspect: HarnessRun
    template: Mapping[str, Fraction]
    normalisation: Mapping[str, Fraction]
    tie_break: Mapping[str, Fraction]


def plant(patterns: Mapping[Pattern, int], ties: Mapping[Tie, int], *, seed: int) -> Plant:
    """Plants so many items of each pattern and each tie (k tied, the right one at place p among them, from 0).

    Choices are in random places, with up to two losing ones more; the two runs list the items in unlike orders.
    """
    rng = np.random.default_rng(seed)
    left: list[SyntheticItem] = []
    right: list[SyntheticItem] = []
    template: dict[str, Fraction] = {}
    normalisation: dict[str, Fraction] = {}
    tie_break: dict[str, Fraction] = {}
    for pattern, number in patterns.items():
        for copy in range(number):
            name = f"cells {pattern} {copy}"
            ours, theirs = _pattern_items(name, pattern, rng)
            left.append(ours)
            right.append(theirs)
            ll, li, il, ii = pattern
            template[name] = Fraction((ll - il) + (li - ii), 2)
            normalisation[name] = Fraction((ll - li) + (il - ii), 2)
            tie_break[name] = Fraction(0)
    for (width, place), number in ties.items():
        for copy in range(number):
            name = f"tie {width} {place} {copy}"
            item = _tied_item(name, width, place, rng)
            left.append(item)
            right.append(item)
            template[name] = normalisation[name] = Fraction(0)
            tie_break[name] = Fraction(int(place == 0)) - Fraction(1, width)
    shuffled = [right[index] for index in rng.permutation(len(right))]
    return Plant(
        lm_eval=run_of("lm_eval", left, protocol=LM_EVAL),
        inspect=run_of("inspect", shuffled, protocol=INSPECT),
        template=template,
        normalisation=normalisation,
        tie_break=tie_break,
    )


def _pattern_items(name: str, pattern: Pattern, rng: np.random.Generator) -> tuple[SyntheticItem, SyntheticItem]:
    extra = int(rng.integers(0, 3))
    order = rng.permutation(2 + extra)
    gold = int(np.flatnonzero(order == 0)[0])
    items = []
    for cells in (pattern[:2], pattern[2:]):
        logprobs, lengths = _TWO_CHOICES[cells]
        losing = (*logprobs, *(-40.0 - index for index in range(extra))), (*lengths, *(1 for _ in range(extra)))
        items.append(
            SyntheticItem(
                logprobs=tuple(losing[0][index] for index in order),
                num_tokens=tuple(losing[1][index] for index in order),
                gold=gold,
                name=name,
            )
        )
    return items[0], items[1]


def _tied_item(name: str, width: int, place: int, rng: np.random.Generator) -> SyntheticItem:
    losing = int(rng.integers(0, 3))
    mask = rng.permutation(np.arange(width + losing) < width)
    best = np.flatnonzero(mask)
    return SyntheticItem(
        logprobs=tuple(-2.0 if tied else -9.0 for tied in mask),
        num_tokens=tuple(3 for _ in mask),
        gold=int(best[place]),
        name=name,
    )
