"""The notebook's own simulation through `rules.py` and the ledger: as printed, then as log-probabilities."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from llm.evaluation import rules
from reconcile.agreement import agreement_of, subtask_scatter
from reconcile.coefficients import pearson
from reconcile.decompose import decompose
from reconcile.runs import Protocol
from reconcile.significance import mcnemar
from reconcile.synthetic import SyntheticItem, run_of

N, K = 20, 4
OFF = Protocol(template="lm-eval", num_fewshot=0, normalisation="none", tie_break="first")
ON = Protocol(template="inspect", num_fewshot=0, normalisation="token", tie_break="first")


def sixteen(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


@pytest.fixture(scope="module")
def simulation():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, K, size=N)
    strength = rng.normal(0, 0.5, size=(N, K))
    strength[np.arange(N), truth] += 1.5
    lengths = rng.integers(3, 20, size=(N, K))
    shift_lm_eval, shift_inspect = rng.normal(0, 0.15, size=(N, K)), rng.normal(0, 0.15, size=(N, K))
    arrays = (truth, strength, lengths, shift_lm_eval, shift_inspect)
    expected = ["91998aa75da7690a", "5f50b4b2acd28c78", "92ced68697d56195", "9a0744cf19eed1cd", "11fc639e48dab8a6"]
    assert [sixteen(array) for array in arrays] == expected, "the generator's numbers changed: nothing below applies"
    return truth, strength + shift_lm_eval, strength + shift_inspect, lengths, shift_lm_eval, shift_inspect


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def wrong_items(scores, truth, lengths, *, normalised):
    rule = "token" if normalised else "none"
    values = rules.normalise(scores, rule=rule, num_tokens=lengths)
    return {i for i in range(N) if rules.credit(values[i], int(truth[i]), tie_break="first") != 1}


def four_accuracies(lm_eval, inspect, truth, lengths):
    return [
        1 - Fraction(len(wrong_items(scores, truth, lengths, normalised=normalised)), N)
        for scores in (lm_eval, inspect)
        for normalised in (False, True)
    ]


def ledger_of(lm_eval, inspect, truth, lengths):
    def build(harness, scores, protocol):
        items = [
            SyntheticItem(logprobs=tuple(scores[i]), num_tokens=tuple(lengths[i]), gold=int(truth[i]), name=str(i))
            for i in range(N)
        ]
        return run_of(harness, items, protocol=protocol)

    return decompose(build("lm_eval", lm_eval, OFF), build("inspect", inspect, ON))


def test_the_notebooks_four_accuracies_and_wrong_items(simulation):
    truth, lm_eval, inspect, lengths, *_ = simulation
    assert four_accuracies(lm_eval, inspect, truth, lengths) == [
        Fraction(19, 20),
        Fraction(18, 20),
        Fraction(19, 20),
        Fraction(18, 20),
    ]
    assert wrong_items(lm_eval, truth, lengths, normalised=False) == {14}
    assert wrong_items(lm_eval, truth, lengths, normalised=True) == {14, 18}
    assert wrong_items(inspect, truth, lengths, normalised=False) == {14}
    assert wrong_items(inspect, truth, lengths, normalised=True) == {8, 14}


def test_the_notebooks_gaps_and_its_four_checks(simulation):
    truth, lm_eval, inspect, lengths, *_ = simulation
    lm_off, lm_on, in_off, in_on = (float(a) for a in four_accuracies(lm_eval, inspect, truth, lengths))
    gap_template, gap_lenorm, gap_full = abs(lm_off - in_off), abs(lm_off - lm_on), abs(lm_off - in_on)
    assert (gap_template, gap_lenorm, gap_full) == (0.0, 0.04999999999999993, 0.04999999999999993)
    assert all(accuracy > 1 / K for accuracy in (lm_off, lm_on, in_off, in_on))
    assert gap_lenorm > 0
    assert gap_full <= gap_template + gap_lenorm + 1e-9
    assert float(four_accuracies(lm_eval, inspect, truth, lengths)[0]) == lm_off


def test_the_printed_rms_is_a_standard_deviation(simulation):
    *_, shift_lm_eval, shift_inspect = simulation
    assert shift_lm_eval.std() == pytest.approx(0.144433125451932, abs=1e-15)
    assert shift_inspect.std() == pytest.approx(0.175860338172466, abs=1e-15)
    assert np.sqrt((shift_lm_eval**2).mean()) == pytest.approx(0.145164211056525, abs=1e-15)
    assert np.sqrt((shift_inspect**2).mean()) == pytest.approx(0.176682575081821, abs=1e-15)


def test_the_ledger_of_the_simulation_item_by_item(simulation):
    truth, lm_eval, inspect, lengths, *_ = simulation
    ledger = ledger_of(lm_eval, inspect, truth, lengths)
    assert ledger.component("template").exact == 0
    assert ledger.component("length_normalisation").exact == Fraction(1, 20)
    assert ledger.gap - ledger.component("rounding").exact == Fraction(1, 20)
    (interaction,) = ledger.interactions
    assert interaction.from_lm_eval == interaction.from_inspect == 0
    assert ledger.bound.holds_from_lm_eval is True
    assert ledger.accounted
    rows = list(ledger.items.rows())
    half = Fraction(1, 2)
    for place, row in enumerate(rows):
        expected = {8: (half, half, -1), 18: (-half, half, 1)}.get(place, (0, 0, 0))
        cells = [row.credits[name] for name in ("lm_eval", "length_normalisation", "template")]
        both = row.credits["template+length_normalisation"]
        found = (row.contributions["template"], row.contributions["length_normalisation"])
        assert (*found, cells[0] - cells[1] - cells[2] + both) == expected
    template = ledger.component("template")
    assert (template.items_up, template.items_down) == (1, 1)
    only_lm_eval = sum(row.logged_lm_eval > row.logged_inspect for row in rows)
    only_inspect = sum(row.logged_lm_eval < row.logged_inspect for row in rows)
    assert (only_lm_eval, only_inspect) == (1, 0)
    assert mcnemar(only_lm_eval, only_inspect) == 1


def test_the_notebooks_scatter_and_its_correlations(simulation):
    truth, lm_eval, inspect, lengths, *_ = simulation

    def credits(scores, normalised):
        wrong = wrong_items(scores, truth, lengths, normalised=normalised)
        return np.array([0.0 if i in wrong else 1.0 for i in range(N)])

    pairs = {
        "off": (credits(lm_eval, False), credits(inspect, False)),
        "on": (credits(lm_eval, True), credits(inspect, True)),
    }
    scatter = subtask_scatter(pairs, num_subtasks=40, size=5, seed=1)
    assert {name: len(points) for name, points in scatter.items()} == {"off": 40, "on": 40}
    assert pearson(*zip(*scatter["off"], strict=True)).value == pytest.approx(1, abs=1e-12)
    on = pearson(*zip(*scatter["on"], strict=True))
    assert on.value == pytest.approx(300 / (535 * 656) ** 0.5, abs=1e-12)
    assert on.value == pytest.approx(0.506398538981555, abs=1e-12)
    pooled = pearson(*zip(*scatter["off"], *scatter["on"], strict=True))
    assert pooled.num_points == 80
    assert pooled.value == pytest.approx(1480 / (1920 * 2231) ** 0.5, abs=1e-12)
    assert pooled.value == pytest.approx(0.715091006214372, abs=1e-12)
    agreement = agreement_of(ledger_of(lm_eval, inspect, truth, lengths))
    assert agreement.scatter == scatter
    expected = {"off": pytest.approx(1), "on": pytest.approx(on.value), "pooled": pytest.approx(pooled.value)}
    assert {name: found.value for name, found in agreement.scatter_pearson.items()} == expected


@pytest.mark.parametrize(("shift", "expected"), [(5, (0.60, 0.55)), (50, (0.30, 0.30))])
def test_dividing_by_length_is_not_invariant_to_a_constant(simulation, shift, expected):
    truth, lm_eval, inspect, lengths, *_ = simulation
    found = four_accuracies(lm_eval - shift, inspect - shift, truth, lengths)
    assert (float(found[1]), float(found[3])) == expected


def test_after_log_softmax_they_are_log_probabilities_and_division_favours_long_options(simulation):
    truth, lm_eval, inspect, lengths, *_ = simulation
    lm_eval, inspect = log_softmax(lm_eval), log_softmax(inspect)
    assert (lm_eval <= 0).all()
    assert [float(a) for a in four_accuracies(lm_eval, inspect, truth, lengths)] == [0.95, 0.80, 0.95, 0.85]
    assert wrong_items(lm_eval, truth, lengths, normalised=True) == {9, 14, 16, 17}
    assert wrong_items(inspect, truth, lengths, normalised=True) == {9, 14, 16}
    ledger = ledger_of(lm_eval, inspect, truth, lengths)
    assert ledger.component("template").exact == Fraction(-1, 40)
    assert ledger.component("length_normalisation").exact == Fraction(1, 8)
    assert ledger.gap - ledger.component("rounding").exact == Fraction(1, 10)
    assert ledger.interactions[0].from_lm_eval == Fraction(1, 20)
