"""Small cases computed by hand, in exact fractions; gap = lm-eval minus Inspect."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from llm.evaluation import rules
from reconcile.decompose import decompose
from reconcile.lattice import Factor, build_lattice
from reconcile.runs import Protocol, Status
from reconcile.synthetic import SyntheticItem, run_of

RIGHT, WRONG = (-1, -2), (-2, -1)
GENERATED = Protocol(
    template="inspect", num_fewshot=0, normalisation="token", tie_break="fractional", readout="generate"
)


def items(*rows, subjects=None):
    """Items named by position from (logprobs, num_tokens, gold)."""
    return [
        SyntheticItem(
            logprobs=logprobs,
            num_tokens=tokens,
            gold=gold,
            name=str(place),
            subject=subjects[place] if subjects else "",
        )
        for place, (logprobs, tokens, gold) in enumerate(rows)
    ]


def ledger_of(left, right, **options):
    ledger = decompose(run_of("lm_eval", left), run_of("inspect", right), **options)
    assert sum(part.exact for part in ledger.components) == ledger.gap
    assert ledger.accounted
    return ledger


def shares(ledger):
    return tuple(ledger.component(name).exact for name in ("template", "length_normalisation", "tie_break"))


def close(ledger):
    """The gap without the rounding of the two reported floats."""
    return ledger.gap - ledger.component("rounding").exact


def test_case_1_all_three_factors_act():
    left = items(((-1, -2), (1, 1), 0), ((-4, -3), (4, 1), 0), ((-2, -2), (1, 1), 1), ((-1, -2), (1, 1), 0))
    right = items(((-2, -1), (1, 1), 0), ((-4, -3), (4, 1), 0), ((-2, -2), (1, 1), 1), ((-1, -2), (1, 1), 0))
    ledger = ledger_of(left, right)
    assert close(ledger) == Fraction(-1, 8)
    assert shares(ledger) == (Fraction(1, 4), Fraction(-1, 4), Fraction(-1, 8))
    assert [(part.items_up, part.items_down) for part in ledger.components[:3]] == [(1, 0), (0, 1), (0, 1)]
    assert ledger.cell().exact == Fraction(1, 2)
    assert ledger.cell("template", "length_normalisation", "tie_break").exact == Fraction(5, 8)
    assert {cell.name for cell in ledger.cells if not cell.off_path} == {
        "lm_eval",
        "template+length_normalisation+tie_break",
    }
    assert ledger.closing_sets["from_lm_eval"] == (("template", "length_normalisation", "tie_break"),)


def test_case_2_two_ways_to_the_same_place():
    ledger = ledger_of(items(((-4, -3), (4, 1), 0)), items(((-1, -2), (1, 1), 0)))
    assert close(ledger) == -1
    assert shares(ledger) == (Fraction(-1, 2), Fraction(-1, 2), 0)
    singles = {single.factor: (single.from_lm_eval, single.from_inspect) for single in ledger.one_at_a_time}
    assert singles["template"] == (-1, 0)
    assert singles["length_normalisation"] == (-1, 0)
    assert ledger.closing_sets["from_lm_eval"] == (("template",), ("length_normalisation",))
    assert ledger.closing_sets["from_inspect"] == (("template", "length_normalisation"),)
    assert ledger.component("tie_break").status == "inert"


def test_case_3_an_interaction_breaks_the_bound():
    ledger = ledger_of(items((RIGHT, (1, 1), 0)), items((RIGHT, (1, 4), 0)))
    cells = ("", "length_normalisation", "template", "template length_normalisation")
    assert [ledger.cell(*cell.split()).exact for cell in cells] == [1, 1, 1, 0]
    assert close(ledger) == 1
    assert shares(ledger) == (Fraction(1, 2), Fraction(1, 2), 0)
    assert [single.from_lm_eval for single in ledger.one_at_a_time] == [0, 0, 0]
    assert ledger.bound.holds_from_lm_eval is False
    assert ledger.bound.holds_from_inspect is True
    pair = next(found for found in ledger.interactions if found.factors == ("template", "length_normalisation"))
    assert pair.from_lm_eval == 1 - 1 - 1 + 0


def test_case_4_equal_rights_hide_two_changes():
    ledger = ledger_of(items((RIGHT, (1, 4), 0)), items((RIGHT, (1, 1), 0)))
    cells = ("", "length_normalisation", "template", "template length_normalisation")
    assert [ledger.cell(*cell.split()).exact for cell in cells] == [1, 0, 1, 1]
    assert ledger.gap == 0
    assert shares(ledger) == (Fraction(-1, 2), Fraction(1, 2), 0)
    assert ledger.component("template").items_down == ledger.component("length_normalisation").items_up == 1
    assert ledger.closing_sets["from_lm_eval"] == ((),)


@pytest.mark.parametrize(
    ("rule", "credit"),
    [("first", 0), ("last", 1), ("fractional", Fraction(1, 2)), ("any", 1), ("none", 0)],
)
def test_case_7_what_a_tie_is_worth(rule, credit):
    assert rules.credit((-2, -2), 1, tie_break=rule) == credit


def test_case_8_coverage_beside_template():
    left = items((RIGHT, (1, 1), 0), (RIGHT, (1, 1), 0), (WRONG, (1, 1), 0), (RIGHT, (1, 1), 0))
    right = items((RIGHT, (1, 1), 0), (WRONG, (1, 1), 0), (WRONG, (1, 1), 0))
    ledger = ledger_of(left, right)
    assert close(ledger) == Fraction(5, 12)
    assert shares(ledger) == (Fraction(1, 3), 0, 0)
    assert ledger.component("coverage").exact == ledger.coverage_lines["only_lm_eval"] == Fraction(1, 12)
    assert (ledger.num_items["common"], ledger.num_items["lm_eval_only"], ledger.num_items["inspect_only"]) == (3, 1, 0)


def test_case_9_an_errored_item_leaves_its_own_line():
    left = items((RIGHT, (1, 1), 0), (WRONG, (1, 1), 0))
    right = items((RIGHT, (1, 1), 0), (WRONG, (1, 1), 0))
    right[1] = replace(right[1], status=Status.ERRORED)
    ledger = ledger_of(left, right)
    assert ledger.gap == Fraction(-1, 2)
    assert ledger.component("coverage").exact == ledger.coverage_lines["errored"] == Fraction(-1, 2)
    assert (ledger.num_items["common"], ledger.num_items["errored"]) == (1, 1)


def test_case_10_micro_against_macro():
    rows = [(RIGHT, (1, 1), 0)] * 3 + [(WRONG, (1, 1), 0)]
    subjects = ["X", "X", "X", "Y"]
    left = run_of("lm_eval", items(*rows, subjects=subjects))
    right = run_of("inspect", items(*rows, subjects=subjects), averaging="macro")
    ledger = decompose(left, right)
    assert ledger.gap == Fraction(1, 4)
    assert ledger.component("coverage").exact == ledger.coverage_lines["averaging"] == Fraction(1, 4)


def test_case_11_readout_comes_after_the_template():
    left = items(*[(RIGHT, (1, 1), 0)] + [(WRONG, (1, 1), 0)] * 3)
    likelihood = items(*[(RIGHT, (1, 1), 0)] * 2 + [(WRONG, (1, 1), 0)] * 2)
    said = ["ANSWER: A", "ANSWER: B", "ANSWER: A", "hm"]
    picks = [0, 1, 0, None]
    generated = [
        replace(
            item,
            pick=pick,
            credit=Fraction(int(pick == 0)),
            answer=text,
            status=Status.SCORED if pick is not None else Status.UNPARSED,
        )
        for item, pick, text in zip(likelihood, picks, said, strict=True)
    ]
    ledger = decompose(
        run_of("lm_eval", left),
        run_of("inspect", generated, protocol=GENERATED),
        inspect_loglikelihood=run_of("inspect", likelihood),
    )
    assert ledger.gap == Fraction(-1, 4)
    assert shares(ledger) == (Fraction(-1, 4), 0, 0)
    assert ledger.component("readout").exact == 0
    assert (ledger.component("readout").items_up, ledger.component("readout").items_down) == (1, 1)
    assert (ledger.cell().exact, ledger.cell("template").exact) == (Fraction(1, 4), Fraction(1, 2))
    generating = next(cell for cell in ledger.cells if cell.readout == "generate")
    assert (generating.exact, generating.native, generating.tie_break) == (Fraction(1, 2), "inspect", None)


def test_case_11_crossed_with_a_cell_that_has_no_meaning_would_be_wrong():
    def lattice(*factors):
        scores = {"": 1, "template": 2, "readout": 0, "template readout": 2}
        ratios = {
            frozenset(name.split()): (np.array([score]), np.array([4]))
            for name, score in scores.items()
            if name != "readout" or factors[1].after is None
        }
        return build_lattice(factors, ratios)

    crossed = lattice(Factor(name="template"), Factor(name="readout"))
    assert (crossed.shapley("template"), crossed.shapley("readout")) == (Fraction(-3, 8), Fraction(1, 8))
    constrained = lattice(Factor(name="template"), Factor(name="readout", after="template"))
    assert (constrained.shapley("template"), constrained.shapley("readout")) == (Fraction(-1, 4), 0)
