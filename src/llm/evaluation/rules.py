"""How the scores of an item's choices become a pick and a credit: the one place that decides an argmax of ours.

Pure NumPy, so that both doors, the tasks and the ledger share it without torch or a harness. Everything works on
the last axis, so one item is a vector (K,) and many are a padded table (N, K) with a mask; K choices, N items.
Scores may be any floats; where log-probabilities enter, the doors check that they are ones.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llm.errors import InputError

Normalisation = Literal["none", "char", "byte", "token", "pmi"]
TieBreak = Literal["first", "last", "random", "fractional", "any", "none"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
TIE_BREAKS: tuple[TieBreak, ...] = get_args(TieBreak)
PICKING_TIE_BREAKS: frozenset[TieBreak] = frozenset(("first", "last", "random"))
"""The tie-breaks that name one choice; the others only say what a tie is worth."""

_UNITS = {"char": "characters", "byte": "UTF-8 bytes", "token": "tokens"}


def normalise(
    logprobs: ArrayLike,
    *,
    rule: Normalisation,
    num_chars: ArrayLike | None = None,
    num_bytes: ArrayLike | None = None,
    num_tokens: ArrayLike | None = None,
    unconditional: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Comparable scores (..., K) from log-probabilities (..., K) in nats, float64.

    `none` leaves them; `char`, `byte` and `token` divide by that length of the choice (lm-eval's `acc_norm`,
    `acc_bytes`; the mean logprob a token); `pmi` subtracts `unconditional` (lm-eval's `acc_mutual_info`).
    The arithmetic is lm-eval's own (api/task.py, `process_results`), so the results agree to the bit.

    Raises:
        InputError: unknown rule, a length or `unconditional` that the rule needs is not given, or a length below 1.
    """
    scores = np.asarray(logprobs, dtype=np.float64)
    if rule == "none":
        return scores.copy()
    if rule == "pmi":
        if unconditional is None:
            raise InputError(
                "normalisation 'pmi' needs the logprob of every choice after the empty context, and none is given: "
                "score them or choose none, char, byte or token"
            )
        return scores - np.asarray(unconditional, dtype=np.float64)
    lengths = {"char": num_chars, "byte": num_bytes, "token": num_tokens}
    if rule not in lengths:
        raise InputError(f"normalisation {rule!r} is not known: choose one of {', '.join(NORMALISATIONS)}")
    return scores / _checked_lengths(lengths[rule], rule)


def _checked_lengths(lengths: ArrayLike | None, rule: str) -> NDArray[np.float64]:
    if lengths is None:
        raise InputError(
            f"normalisation {rule!r} needs the number of {_UNITS[rule]} of every choice, and none is given"
        )
    divisor = np.asarray(lengths, dtype=np.float64)
    if not np.all(divisor >= 1):
        index = int(np.argmin(np.where(np.isnan(divisor), -np.inf, divisor))) % max(divisor.shape[-1], 1)
        raise InputError(
            f"choice {index} has {divisor.min():g} {_UNITS[rule]}, so normalisation {rule!r} has no length to divide "
            "by: leave the item out or choose 'none' or 'pmi'"
        )
    return divisor


def tied_for_best(
    scores: ArrayLike, *, tie_atol: float = 0.0, valid: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Mask (..., K) of the choices whose score is within `tie_atol` of the maximum; never empty in a row.

    `valid` (..., K) leaves padding out. Where a score is NaN, NumPy's maximum is NaN, so the NaNs are the best ones,
    as they are to lm-eval's argmax; `has_nan` finds such items, which the ledger flags.
    """
    if not (np.isfinite(tie_atol) and tie_atol >= 0):
        raise InputError(f"tie_atol {tie_atol!r} is not a distance: give a finite number of nats, 0 or more")
    values = np.asarray(scores, dtype=np.float64)
    if values.shape[-1] == 0:
        raise InputError("an item without choices has no best one: leave it out")
    present = np.ones(values.shape, dtype=bool) if valid is None else valid
    values = np.where(present, values, -np.inf)
    with np.errstate(invalid="ignore"):
        mask = (values >= values.max(axis=-1, keepdims=True) - tie_atol) & present
    nans = np.isnan(values)
    poisoned = np.broadcast_to(nans.any(axis=-1, keepdims=True), mask.shape)
    mask[poisoned] = nans[poisoned]
    return mask


def has_nan(scores: ArrayLike, *, valid: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Which items (...) hold a NaN score: their pick is an accident of NumPy's argmax."""
    nans = np.isnan(np.asarray(scores, dtype=np.float64))
    return np.any(nans if valid is None else nans & valid, axis=-1)


def priority(seed: int, key: str, index: int) -> int:
    """The hashed priority of original choice `index` of item `key` under `seed`: 64 bits, the lowest wins a tie.

    It depends on nothing else, so a tie breaks the same way in every cell, order and harness.
    """
    digest = hashlib.blake2b(f"{seed}\x1f{key}\x1f{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def resolve(
    tied: NDArray[np.bool_], *, rule: TieBreak, seed: int = 0, keys: Sequence[str] | None = None
) -> NDArray[np.int64]:
    """The picks (N,) of tied sets (N, K); -1 where several tie and the rule names no one of them."""
    _check_tie_break(rule)
    first: NDArray[np.int64] = tied.argmax(axis=-1)
    if rule == "first":
        return first
    if rule == "last":
        return tied.shape[-1] - 1 - tied[..., ::-1].argmax(axis=-1)
    several = tied.sum(axis=-1) > 1
    if rule != "random":
        return np.where(several, -1, first)
    if keys is None and several.any():
        raise InputError("tie-break 'random' needs the items' keys: its draw belongs to the item, not to its position")
    picks = first.copy()
    for row in np.flatnonzero(several).tolist():
        key = keys[row] if keys is not None else ""
        picks[row] = min((priority(seed, key, int(i)), int(i)) for i in np.flatnonzero(tied[row]))[1]
    return picks


def credit_ratios(
    tied: NDArray[np.bool_],
    gold: NDArray[np.int64],
    *,
    rule: TieBreak,
    seed: int = 0,
    keys: Sequence[str] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numerators and denominators (N,), (N,) of the items' credits under a tie-break.

    `gold` (N,) holds original indices; one outside the choices is never right. Fractional: 1/k for k tied with the
    gold among them (ARC's own marking); any: right if the gold ties for best (older HELM); none: a tie is wrong.
    """
    _check_tie_break(rule)
    ones = np.ones(len(gold), dtype=np.int64)
    if rule in PICKING_TIE_BREAKS:
        return (resolve(tied, rule=rule, seed=seed, keys=keys) == gold).astype(np.int64), ones
    inside = (gold >= 0) & (gold < tied.shape[-1])
    gold_ties = tied[np.arange(len(gold)), np.where(inside, gold, 0)] & inside
    several = tied.sum(axis=-1)
    if rule == "fractional":
        return gold_ties.astype(np.int64), np.where(gold_ties, several, 1)
    return (gold_ties & ((several == 1) | (rule == "any"))).astype(np.int64), ones


def pick(scores: ArrayLike, *, tie_break: TieBreak, seed: int = 0, key: str = "", tie_atol: float = 0.0) -> int | None:
    """The original index one item's scores (K,) choose; None where choices tie and the rule names none of them."""
    tied = tied_for_best(np.atleast_2d(np.asarray(scores, dtype=np.float64)), tie_atol=tie_atol)
    chosen = int(resolve(tied, rule=tie_break, seed=seed, keys=(key,))[0])
    return None if chosen < 0 else chosen


def credit(
    scores: ArrayLike, gold: int, *, tie_break: TieBreak, seed: int = 0, key: str = "", tie_atol: float = 0.0
) -> Fraction:
    """One item's credit in [0, 1], exactly, from its scores (K,) and the original index of the right choice."""
    tied = tied_for_best(np.atleast_2d(np.asarray(scores, dtype=np.float64)), tie_atol=tie_atol)
    above, below = credit_ratios(tied, np.array([gold]), rule=tie_break, seed=seed, keys=(key,))
    return Fraction(int(above[0]), int(below[0]))


def _check_tie_break(rule: str) -> None:
    if rule not in TIE_BREAKS:
        raise InputError(f"tie-break {rule!r} is not known: choose one of {', '.join(TIE_BREAKS)}")
