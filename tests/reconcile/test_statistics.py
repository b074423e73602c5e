"""Intervals and tests against scipy, brute force and known coverage; chance; what a whole ledger's statistics hold."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reconcile.chance import probability_mass
from reconcile.choices import build_table
from reconcile.decompose import decompose
from reconcile.planting import plant
from reconcile.resampling import clustered_means, group_numbers, percentile_bounds, stratified_means
from reconcile.runs import Status
from reconcile.significance import (
    clopper_pearson,
    discordant_interval,
    guessing_test,
    holm,
    mcnemar,
    paired_test,
    sign_flip,
)
from reconcile.statistics import measure
from reconcile.synthetic import INSPECT, SyntheticItem, run_of, sample

RIGHT, WRONG = (-1.0, -2.0), (-2.0, -1.0)


def item(name, logprobs, **further):
    return SyntheticItem(logprobs=logprobs, name=name, gold=0, **further)


def runs(outcomes, subjects=None):
    """Two runs from pairs (lm-eval right, Inspect right)."""
    sides = []
    for harness, place in (("lm_eval", 0), ("inspect", 1)):
        items = [
            item(str(n), RIGHT if pair[place] else WRONG, subject=subjects[n] if subjects else "")
            for n, pair in enumerate(outcomes)
        ]
        sides.append(run_of(harness, items))
    return sides


class TestTests:
    def test_p60_exact_mcnemar_of_paired_data(self):
        outcomes = [(1, 1)] * 108 + [(1, 0)] * 12 + [(0, 1)] * 3 + [(0, 0)] * 77
        assert (sum(a for a, _ in outcomes), sum(b for _, b in outcomes)) == (120, 111)
        found = measure(decompose(*runs(outcomes)), num_resamples=2000).gap
        assert found.test.p_value == pytest.approx(0.0352, abs=5e-5)
        assert found.test.method == "McNemar, exact"
        assert found.interval.low < 9 / 200 < found.interval.high
        assert mcnemar(0, 0) == 1

    @given(st.integers(0, 40), st.integers(0, 40))
    @settings(max_examples=40, deadline=None)
    def test_sign_flips_of_equal_sizes_are_mcnemars_test(self, up, down):
        differences = [Fraction(1)] * up + [Fraction(-1)] * down + [Fraction(0)] * 5
        assert sign_flip(differences) == pytest.approx(mcnemar(up, down), abs=1e-12)

    @given(
        st.lists(
            st.sampled_from([Fraction(n, d) for n, d in ((1, 1), (-1, 1), (1, 2), (-1, 3), (1, 4), (0, 1))]), max_size=9
        )
    )
    @settings(max_examples=40, deadline=None)
    def test_sign_flip_counts_every_signing(self, differences):
        observed = abs(sum(differences))
        signings = list(itertools.product((1, -1), repeat=len(differences)))
        extreme = sum(
            abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed for signs in signings
        )
        assert sign_flip(differences) == pytest.approx(extreme / len(signings), abs=1e-12)

    def test_the_test_follows_the_credits(self):
        assert paired_test([Fraction(1), Fraction(-1)]).method == "McNemar, exact"
        assert paired_test([Fraction(1), Fraction(-1, 2)]).method == "sign flip, exact"

    def test_holm_is_step_down_and_monotone(self):
        assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
        assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
        assert holm({}) == {}

    @pytest.mark.parametrize("credit", [0, 3, 10, 17, 24, 40])
    def test_guessing_among_equal_choices_is_the_binomial(self, credit):
        cdf, survival = stats.binom.cdf(credit, 40, 0.25), stats.binom.sf(credit - 1, 40, 0.25)
        expected = min(1.0, 2 * min(cdf, survival))
        assert guessing_test(Fraction(credit), [4] * 40).p_value == pytest.approx(expected, rel=1e-9)

    def test_guessing_among_three_four_and_five_choices(self):
        choices = [3, 4, 4, 5]
        mass = np.zeros(5)
        for outcome in itertools.product((0, 1), repeat=4):
            chances = [1 / k if right else 1 - 1 / k for k, right in zip(choices, outcome, strict=True)]
            mass[sum(outcome)] += np.prod(chances)
        assert guessing_test(Fraction(4), choices).p_value == pytest.approx(2 * mass[4])


class TestIntervals:
    @pytest.mark.parametrize(("successes", "trials"), [(0, 7), (3, 7), (7, 7), (1, 9)])
    def test_clopper_pearson_is_scipys(self, successes, trials):
        expected = stats.binomtest(successes, trials).proportion_ci(method="exact")
        assert clopper_pearson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-12)

    def test_few_discordant_items_get_an_exact_interval_on_the_gap(self):
        differences = [Fraction(1)] * 5 + [Fraction(-1)] + [Fraction(0)] * 94
        share = stats.binomtest(5, 6).proportion_ci(method="exact")
        found = discordant_interval(differences)
        assert found.low == pytest.approx((2 * share.low - 1) * 6 / 100)
        assert found.high == pytest.approx((2 * share.high - 1) * 6 / 100)
        outcomes = [(1, 0)] * 5 + [(0, 1)] + [(1, 1)] * 94
        assert measure(decompose(*runs(outcomes)), num_resamples=100).gap.interval == found

    def test_a_score_of_nothing_right_is_not_certainty(self):
        found = measure(decompose(*runs([(0, n < 20) for n in range(40)])), num_resamples=200).scores
        assert (found["lm_eval"].interval.low, found["lm_eval"].interval.high) == pytest.approx(
            (0, 1 - 0.025 ** (1 / 40))
        )
        assert found["inspect"].interval.method == "paired bootstrap within subjects"

    def test_no_discordant_item_is_not_certainty(self):
        found = discordant_interval([Fraction(0)] * 50)
        assert found.high == -found.low == pytest.approx(1 - 0.025 ** (1 / 50))

    def test_the_bootstrap_has_the_spread_of_drawing_items_one_by_one(self):
        rng = np.random.default_rng(3)
        values = rng.choice([-1.0, 0.0, 0.5, 1.0], size=(60, 2))
        strata = np.repeat([0, 1, 2], 20)
        means = stratified_means(values, strata=strata, questions=np.arange(60), num_resamples=20_000, seed=1)
        plain = np.mean(
            [
                values[np.concatenate([rng.choice(np.flatnonzero(strata == s), 20) for s in range(3)])]
                for _ in range(4000)
            ],
            axis=1,
        )
        assert means.mean(axis=0) == pytest.approx(values.mean(axis=0), abs=0.005)
        assert means.std(axis=0) == pytest.approx(plain.std(axis=0), rel=0.06)
        assert np.corrcoef(means.T)[0, 1] == pytest.approx(np.corrcoef(plain.T)[0, 1], abs=0.05)
        exact = np.sqrt(sum(values[strata == s].var(axis=0) * 20 for s in range(3))) / 60
        assert means.std(axis=0) == pytest.approx(exact, rel=0.03)

    def test_identical_questions_come_and_go_together(self):
        values = np.array([[1.0], [1.0], [1.0], [0.0]])
        apart = stratified_means(values, strata=np.zeros(4, int), questions=np.arange(4), num_resamples=5000, seed=0)
        together = stratified_means(
            values, strata=np.zeros(4, int), questions=np.array([0, 0, 0, 1]), num_resamples=5000, seed=0
        )
        assert set(np.unique(together.round(6))) == {0.0, 0.75, 1.0}
        assert together.std() > 1.5 * apart.std()

    def test_a_seed_fixes_every_digit_and_the_strata_are_kept(self):
        values, strata = np.array([[1.0], [1.0], [0.0], [0.0]]), np.array([0, 0, 1, 1])
        one = stratified_means(values, strata=strata, questions=np.arange(4), num_resamples=50, seed=7)
        again = stratified_means(values, strata=strata, questions=np.arange(4), num_resamples=50, seed=7)
        assert (one == again).all()
        assert (one == 0.5).all()

    def test_clusters_are_whole_subjects(self):
        values, strata = np.array([[1.0]] * 9 + [[0.0]]), np.array([0] * 9 + [1])
        means = clustered_means(values, strata=strata, num_resamples=4000, seed=0)
        assert set(np.unique(means.round(6))) == {0.0, 0.9, 1.0}
        assert (means == 1).mean() == pytest.approx(0.25, abs=0.03)

    def test_the_interval_covers_the_truth_about_as_often_as_it_says(self):
        rng = np.random.default_rng(11)
        hits = 0
        for _ in range(300):
            sampled = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=(150, 1))
            means = stratified_means(
                sampled, strata=np.zeros(150, int), questions=np.arange(150), num_resamples=400, seed=0
            )
            low, high = percentile_bounds(means, 0.95)
            hits += low[0] <= 0.1 <= high[0]
        assert 0.90 <= hits / 300 <= 0.98

    def test_labels_become_numbers_in_order_of_appearance(self):
        assert group_numbers(["b", "a", "b", ("c",)]).tolist() == [0, 1, 0, 2]


class TestMeasure:
    def test_components_carry_tests_adjusted_together_and_inert_ones_none(self):
        planted = plant({(1, 1, 0, 0): 14, (0, 0, 1, 1): 3, (1, 0, 1, 0): 12, (1, 1, 1, 1): 30}, {}, seed=5)
        found = measure(decompose(planted.lm_eval, planted.inspect), num_resamples=1000)
        template, norm, tie = (found.components[n] for n in ("template", "length_normalisation", "tie_break"))
        assert (template.num_up, template.num_down) == (14, 3)
        assert template.test.p_value == mcnemar(14, 3)
        assert template.test.adjusted == template.test.p_value  # the larger of two
        assert norm.test.adjusted == 2 * mcnemar(12, 0)
        assert norm.interval.method.startswith("paired bootstrap")
        assert (tie.interval, tie.test, tie.value) == (None, None, 0)
        assert template.value + norm.value == found.gap.value

    def test_subjects_are_adjusted_together_and_clusters_start_at_thirty(self):
        subjects = [f"s{n // 4}" for n in range(120)]
        outcomes = [(1, n % 3 > 0) for n in range(120)]
        found = measure(decompose(*runs(outcomes, subjects)), num_resamples=500)
        assert (found.num_subjects, len(found.subjects)) == (30, 30)
        assert found.gap.clustered.method == "bootstrap of whole subjects"
        assert all(s.gap.test.adjusted >= s.gap.test.p_value for s in found.subjects)
        assert sum(s.gap.value * s.num_items for s in found.subjects) == found.gap.value * 120
        few = measure(decompose(*runs(outcomes[:100], subjects[:100])), num_resamples=50)
        assert few.gap.clustered is None

    def test_a_subjects_interval_reaches_beyond_its_gap_where_many_items_differ(self):
        """Given which items differ, their number is not certain: the exact interval alone could not pass the gap."""
        outcomes = [(1, 0)] * 12 + [(1, 1)] * 88 + [(1, 0)] * 3 + [(1, 1)] * 97
        many, few = measure(decompose(*runs(outcomes, ["many"] * 100 + ["few"] * 100))).subjects
        assert many.gap.interval.method == "paired bootstrap"
        assert many.gap.interval.low < 0.12 < many.gap.interval.high < 0.25
        assert few.gap.interval.method != "paired bootstrap"
        assert few.gap.interval.high <= 0.03

    def test_chance_is_the_mean_of_one_over_the_choices(self):
        items = [
            item("a", (-1.0, -2.0, -3.0)),
            item("b", (-2.0, -1.0, -3.0, -4.0)),
            item("c", (-3.0, -2.0, -1.0, -4.0, -5.0)),
        ]
        left = run_of("lm_eval", items)
        chance = measure(decompose(left, run_of("inspect", items)), num_resamples=20).chance["lm_eval"]
        assert chance.level == (Fraction(1, 3) + Fraction(1, 4) + Fraction(1, 5)) / 3
        assert chance.distance == Fraction(1, 3) - chance.level
        assert not chance.distinguishable()
        assert (chance.picks, chance.gold, chance.no_pick) == ((1, 1, 1, 0, 0), (3, 0, 0, 0, 0), 0)
        sure = measure(decompose(*runs([(1, 1)] * 40)), num_resamples=20).chance["inspect"]
        assert sure.distinguishable()

    def test_probability_mass_on_the_choices(self):
        rows = [item("a", (np.log(0.5), np.log(0.25))), item("b", (np.log(0.1), -np.inf, np.log(0.1)))]
        table = build_table([sample(row, template="inspect") for row in rows])
        assert probability_mass(table) == pytest.approx((0.75 + 0.2) / 2)

    def test_ties_and_normalisations_of_either_side_and_the_harnesses_own_errors(self):
        left, right = runs([(1, 0)] * 3)
        tied = replace(
            right, samples=run_of("inspect", [item(str(n), (-1.0, -1.0)) for n in range(3)]).samples, reported={}
        )
        found = measure(decompose(replace(left, stderr=0.25), tied), num_resamples=20)
        assert len(found.ties["inspect"].items) == 3
        assert len(found.ties["lm_eval"].items) == 0
        assert [rule.rule for rule in found.normalisations["lm_eval"]] == ["none", "char", "byte", "token", "pmi"]
        assert found.reported_stderr == {"lm_eval": 0.25, "inspect": None}

    def test_generated_answers_have_no_likelihood_statistics(self):
        protocol = replace(INSPECT, readout="generate")
        made = [
            item(str(n), RIGHT, answer="ANSWER: A", pick=0, credit=Fraction(1), status=Status.SCORED) for n in range(3)
        ]
        ledger = decompose(
            run_of("lm_eval", [item(str(n), RIGHT) for n in range(3)]), run_of("inspect", made, protocol=protocol)
        )
        found = measure(ledger, num_resamples=20)
        assert found.ties["inspect"] is None
        assert found.normalisations["inspect"] == ()
        assert found.chance["inspect"].picks == (3, 0)
        assert found.chance["inspect"].probability_mass is None
