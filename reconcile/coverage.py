"""What the two harnesses' own estimators make of unlike sets of items, in exact lines that add up.

R is a harness's own estimator over all it scored, S the mean over the common items. Per side, R - S splits into the
estimator (its macro average against the plain mean) and, for each set of items that the other side cannot answer for,
the sum of (credit - S) over it, divided by the number of items the side scored: exact, and free of any order.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from reconcile.exact import exact_sum, mean
from reconcile.matching import Matching, Unmatched, is_credited
from reconcile.runs import HarnessRun, SampleRecord

LINES = ("only_lm_eval", "only_inspect", "duplicates", "errored", "gold", "averaging")

_SMALL_DENOMINATOR = 10_000


@dataclass(frozen=True, kw_only=True)
class SideCoverage:
    """One side's exact estimator `estimate` (R), common mean `common` (S), and R - S by line."""

    estimate: Fraction
    common: Fraction
    lines: dict[str, Fraction]


def logged_credit(sample: SampleRecord) -> Fraction:
    """The credit a harness logged, as the fraction it means: a float 0.333... is 1/3."""
    assert sample.credit is not None
    if sample.credit.denominator <= _SMALL_DENOMINATOR:
        return sample.credit
    simple = sample.credit.limit_denominator(_SMALL_DENOMINATOR)
    return simple if float(simple) == float(sample.credit) else sample.credit


def estimate(run: HarnessRun) -> Fraction:
    """The harness's own estimator over its own scored items: plain mean, or mean of the sub-tasks' means."""
    scored = [sample for sample in run.samples if is_credited(sample)]
    if run.averaging == "micro":
        return mean(logged_credit(sample) for sample in scored)
    by_subject: defaultdict[str, list[Fraction]] = defaultdict(list)
    for sample in scored:
        by_subject[sample.subject].append(logged_credit(sample))
    return mean(mean(credits) for credits in by_subject.values())


def side_coverage(run: HarnessRun, common: Sequence[Fraction], unmatched: Unmatched, only_line: str) -> SideCoverage:
    """Splits one side's R - S; `common` are its logged credits over the common items."""
    own = [logged_credit(sample) for sample in run.samples if is_credited(sample)]
    shared, everything, value = mean(common), mean(own), estimate(run)
    groups = {
        only_line: unmatched.only,
        "duplicates": unmatched.duplicates,
        "errored": unmatched.errored,
        "gold": unmatched.gold,
    }
    lines = {
        name: exact_sum(logged_credit(s) - shared for s in samples if is_credited(s)) / max(len(own), 1)
        for name, samples in groups.items()
    }
    lines["averaging"] = value - everything
    return SideCoverage(estimate=value, common=shared, lines=lines)


def difference(lm_eval: SideCoverage, inspect: SideCoverage) -> dict[str, Fraction]:
    """The gap's coverage lines: lm-eval's side minus Inspect's."""
    return {name: lm_eval.lines.get(name, Fraction(0)) - inspect.lines.get(name, Fraction(0)) for name in LINES}


def counts(matching: Matching) -> dict[str, int]:
    """How many items fell where."""
    left, right = matching.lm_eval, matching.inspect
    return {
        "common": len(matching.common),
        "lm_eval_only": len(left.only) + len(left.duplicates),
        "inspect_only": len(right.only) + len(right.duplicates),
        "duplicates": len(left.duplicates) + len(right.duplicates),
        "errored": len(left.errored) + len(right.errored) + matching.num_errored_both,
        "gold_differs": max(len(left.gold), len(right.gold)),
    }
