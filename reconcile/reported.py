"""What the two harnesses reported, as exact numbers, against what their own logged credits give."""

import math
from dataclasses import dataclass
from fractions import Fraction

from llm.errors import InputError
from reconcile.runs import HarnessRun

ROUNDING_LIMIT = Fraction(1, 10**12)
"""Beyond this a reported value and its replay differ by more than float addition can explain."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """The two reported values as exact numbers, and how they differ from what their logged credits give."""

    lm_eval: Fraction
    inspect: Fraction
    rounding: Fraction
    fault: Fraction
    faults: tuple[str, ...]

    @property
    def gap(self) -> Fraction:
        return self.lm_eval - self.inspect


def compare_reported(lm_eval: HarnessRun, ours: Fraction, inspect: HarnessRun, theirs: Fraction) -> Ends:
    """Each reported value against its replay, `ours` and `theirs`: what floats explain of it, and what they do not."""
    rounding, fault, faults, values = Fraction(0), Fraction(0), [], []
    for run, replayed, sign in ((lm_eval, ours, 1), (inspect, theirs, -1)):
        value = _reported(run, replayed)
        values.append(value)
        if abs(value - replayed) <= ROUNDING_LIMIT:
            rounding += sign * (value - replayed)
        else:
            fault += sign * (value - replayed)
            faults.append(
                f"{run.harness} reports {run.headline} = {float(value)!r}, its logged credits give {float(replayed)!r} "
                f"({run.averaging} average)"
            )
    return Ends(lm_eval=values[0], inspect=values[1], rounding=rounding, fault=fault, faults=tuple(faults))


def _reported(run: HarnessRun, replayed: Fraction) -> Fraction:
    value = run.reported.get(run.headline)
    if value is None:
        return replayed
    if not math.isfinite(value):
        raise InputError(
            f"the {run.harness} run reports {run.headline} = {value!r}, which is no score: "
            "give a run that finished with a number"
        )
    return Fraction(value)
