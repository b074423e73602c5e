"""The gap of two perplexities: its headline in one unit, and the difference of units beside it."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from llm.errors import InputError
from reconcile.lattice import Factor, shapley_values
from reconcile.perplexity import decompose_pages
from reconcile.runs import HarnessRun, ItemKey, PageRecord, Protocol, Status

LN2 = math.log(2)


def page(name, nll, tokens, *, text, window, words=4, num_bytes=20, status=Status.SCORED):
    return PageRecord(
        key=ItemKey(digest=name),
        sample_id=name,
        nll=nll,
        num_tokens=tokens,
        num_words=words,
        num_bytes=num_bytes,
        text=text,
        window=window,
        status=status,
    )


def run_of(harness, pages, **reported):
    template = "lm-eval" if harness == "lm_eval" else "inspect"
    return HarnessRun(
        harness=harness,
        task="wikitext",
        headline=next(iter(reported)),
        protocol=Protocol(template=template, num_fewshot=0, normalisation="none", tie_break="first"),
        pages=tuple(pages),
        reported=reported,
    )


def lm_eval_run(pages, log):
    return run_of("lm_eval", pages, **{"word_perplexity,none": math.exp(log)})


def inspect_run(pages, log):
    return run_of("inspect", pages, perplexity_per_token=math.exp(log))


def case_12(right_window="rolling"):
    left = lm_eval_run([page("p", 12.0, 5, text="detokenised", window="rolling")], 12 / 4)
    right = inspect_run([page("p", 15.0, 6, text="raw", window=right_window)], 15 / 6)
    return left, right


def test_case_12_in_exact_fractions():
    ledger = decompose_pages(*case_12())
    assert ledger.component("template").exact == Fraction(-3, 4)
    assert ledger.component("length_normalisation").exact == Fraction(5, 4)
    assert ledger.component("tie_break").exact == 0
    assert ledger.component("unexplained").exact == 0
    assert float(ledger.gap) == pytest.approx(0.5, abs=1e-12)
    assert ledger.bits_per_byte.exact["gap"] == ledger.bits_per_byte.exact["text"] == Fraction(-3, 20)
    assert ledger.bits_per_byte.gap == pytest.approx(-3 / 20 / LN2, abs=1e-15)
    assert ledger.accounted


def test_case_12_crossed_with_the_unit_would_be_wrong():
    """Nats of lm-eval's text per token are no protocol's number: the unit comes last."""
    cells = {
        frozenset(): Fraction(12, 4),
        frozenset({"text"}): Fraction(15, 4),
        frozenset({"unit"}): Fraction(12, 5),
        frozenset({"text", "unit"}): Fraction(15, 6),
    }
    crossed = shapley_values((Factor(name="text"), Factor(name="unit")), cells.__getitem__)
    assert crossed == {"text": Fraction(-17, 40), "unit": Fraction(37, 40)}
    ordered = shapley_values((Factor(name="text"), Factor(name="unit", after="text")), cells.__getitem__)
    assert ordered == {"text": Fraction(-3, 4), "unit": Fraction(5, 4)}


def test_text_and_window_form_a_lattice_when_cross_pages_are_given():
    left, right = case_12(right_window="inspect")
    cross = [
        page("p", 16.0, 6, text="raw", window="rolling"),
        page("p", 13.0, 5, text="detokenised", window="inspect"),
    ]
    ledger = decompose_pages(left, right, cross=cross)
    assert ledger.component("template").exact == Fraction(-(16 - 12) - (15 - 13), 2 * 4)
    assert ledger.component("window").exact == Fraction((12 - 13) + (16 - 15), 2 * 4)
    assert {cell.switched for cell in ledger.cells if cell.off_path} == {("text",), ("window",)}
    total = sum(ledger.bits_per_byte.components.values())
    assert total == pytest.approx(ledger.bits_per_byte.gap, abs=1e-12)


def test_without_cross_pages_the_joint_step_is_named():
    ledger = decompose_pages(*case_12(right_window="inspect"))
    template = ledger.component("template")
    assert template.status == "not separable"
    assert "window" in template.reason
    assert template.exact == Fraction(-3, 4)


def test_pages_of_one_side_alone_are_coverage_and_the_sum_closes():
    left, right = case_12()
    more = page("q", 7.3, 3, text="detokenised", window="rolling", words=3, num_bytes=11)
    failed = page("r", None, None, text="detokenised", window="rolling", status=Status.ERRORED)
    other = page("r", 9.1, 4, text="raw", window="rolling", words=2, num_bytes=9)
    left = replace(left, pages=(*left.pages, more, failed), reported={"word_perplexity,none": math.exp(19.3 / 7)})
    right = replace(right, pages=(*right.pages, other), reported={"perplexity_per_token": math.exp(24.1 / 10)})
    ledger = decompose_pages(left, right)
    assert sum(part.exact for part in ledger.components) == ledger.gap
    assert sum(part.value for part in ledger.components) == pytest.approx(float(ledger.gap), abs=1e-12)
    assert ledger.coverage_lines["only_lm_eval"] == (Fraction(7.3) - 3 * 3) / 7
    assert ledger.coverage_lines["errored"] == -(Fraction(9.1) - Fraction(15, 6) * 4) / 10
    assert ledger.num_items == {"common": 1, "lm_eval_only": 1, "inspect_only": 0, "errored": 1}
    assert sum(ledger.bits_per_byte.components.values()) == pytest.approx(ledger.bits_per_byte.gap, abs=1e-12)


def test_each_perplexity_names_its_own_denominator():
    ledger = decompose_pages(*case_12())
    shown = ledger.perplexities["inspect"]
    assert shown.word == pytest.approx(math.exp(15 / 4))
    assert shown.byte == pytest.approx(math.exp(15 / 20))
    assert shown.token == pytest.approx(math.exp(15 / 6))
    assert shown.per_sequence == pytest.approx(math.exp(15 / 6))
    assert (shown.text, shown.num_words, shown.num_bytes, shown.num_tokens) == ("raw", 4, 20, 6)


def test_a_reported_value_its_pages_do_not_give_is_unexplained():
    left, right = case_12()
    wrong = replace(left, reported={"word_perplexity,none": math.exp(3.1)})
    ledger = decompose_pages(wrong, right)
    assert not ledger.accounted
    assert ledger.component("unexplained").value == pytest.approx(0.1, abs=1e-12)
    assert "3.1" in ledger.faults[0]
    assert sum(part.exact for part in ledger.components) == ledger.gap


def test_two_runs_of_one_harness_share_a_unit_and_leave_the_engine():
    pages = [page("p", 12.0, 5, text="detokenised", window="rolling")]
    other = [replace(pages[0], nll=12.5)]
    ledger = decompose_pages(lm_eval_run(pages, 3.0), lm_eval_run(other, 3.125))
    assert ledger.component("engine").exact == Fraction(-1, 8)
    assert ledger.component("length_normalisation").status == "inert"


def test_runs_that_cannot_be_compared_are_refused_in_a_sentence():
    left, right = case_12()
    with pytest.raises(InputError, match="share no scored page"):
        decompose_pages(left, replace(right, pages=(replace(right.pages[0], key=ItemKey(digest="z")),)))
    with pytest.raises(InputError, match="bits_per_byte"):
        decompose_pages(replace(left, reported={"acc": 0.5}, headline="acc"), right)
    with pytest.raises(InputError, match="no finite perplexity"):
        decompose_pages(replace(left, reported={"word_perplexity,none": math.inf}), right)
