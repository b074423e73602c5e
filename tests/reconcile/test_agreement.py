"""Agreement of two harnesses item by item, of scores over sub-tasks, and of the order of several models."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llm.errors import InputError
from reconcile.agreement import agreement_of, normalisation_scatter, subtask_scatter
from reconcile.coefficients import cohen_kappa, kendall, kendall_rows, pearson, spearman
from reconcile.decompose import decompose
from reconcile.planting import plant
from reconcile.ranking import ModelCredits, rank_models
from reconcile.synthetic import SyntheticItem, run_of


def scores_for(pick, width=3):
    return tuple(-1.0 if index == pick else -2.0 for index in range(width))


def ledger_of(pairs, subjects=None, gold=0):
    """A ledger from pairs of picks."""
    sides = []
    for harness, place in (("lm_eval", 0), ("inspect", 1)):
        items = [
            SyntheticItem(
                logprobs=scores_for(pair[place]), gold=gold, name=str(n), subject=subjects[n] if subjects else ""
            )
            for n, pair in enumerate(pairs)
        ]
        sides.append(run_of(harness, items))
    return decompose(*sides)


class TestCoefficients:
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12))
    @settings(max_examples=60, deadline=None)
    def test_they_are_scipys(self, points):
        one, other = zip(*points, strict=True)
        for ours, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr), (kendall, stats.kendalltau)):
            found = ours(one, other)
            if min(len(set(one)), len(set(other))) == 1:
                assert found.value is None
                assert "vary with nothing" in found.reason
            else:
                assert found.value == pytest.approx(theirs(one, other).statistic, abs=1e-12)
            assert found.num_points == len(points)
            assert found.mean_difference == pytest.approx(np.mean(one) - np.mean(other))

    def test_a_perfect_correlation_allows_an_offset_and_says_its_size(self):
        found = pearson([0.5, 0.6, 0.7], [0.3, 0.4, 0.5])
        assert found.value == pytest.approx(1)
        assert found.mean_difference == pytest.approx(0.2)

    def test_one_point_is_no_correlation(self):
        assert pearson([0.5], [0.4]).value is None
        assert pearson([], []).mean_difference is None

    def test_kappa_of_a_worked_example(self):
        first = ["yes"] * 25 + ["no"] * 25
        second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
        assert cohen_kappa(first, second).value == pytest.approx(0.4)

    def test_kappa_is_null_with_its_reason_where_luck_explains_all(self):
        assert cohen_kappa([0, 0, 0], [0, 0, 0]).value is None
        assert "one and the same label" in cohen_kappa([0, 0], [0, 0]).reason
        assert cohen_kappa([], []).value is None
        assert cohen_kappa([0, 0], [1, 1]).value == 0

    def test_rows_of_kendall_mark_constant_ones(self):
        rows = kendall_rows(np.array([[1.0, 2, 3], [1, 1, 1]]), np.array([[1.0, 3, 2], [1, 2, 3]]))
        assert rows[0] == pytest.approx(stats.kendalltau([1, 2, 3], [1, 3, 2]).statistic)
        assert np.isnan(rows[1])


class TestPair:
    pairs = [(0, 0)] * 5 + [(0, 1)] * 3 + [(1, 0)] * 2 + [(1, 1)] * 4 + [(1, 2)] * 6

    def test_raw_agreement_outcomes_and_both_kappas(self):
        found = agreement_of(ledger_of(self.pairs))
        outcomes = found.outcomes
        assert (outcomes.both_right, outcomes.only_lm_eval, outcomes.only_inspect) == (5, 3, 2)
        assert (outcomes.both_wrong_alike, outcomes.both_wrong_differently) == (4, 6)
        assert found.picks_agree == Fraction(9, 20)
        assert found.correctness_agrees == Fraction(15, 20)
        assert found.kappa_correctness.value == pytest.approx(
            (0.75 - (8 * 7 + 12 * 13) / 400) / (1 - (8 * 7 + 12 * 13) / 400)
        )
        assert found.kappa_picks.value != found.kappa_correctness.value

    def test_over_subtasks_when_there_are_some(self):
        subjects = [f"s{n % 4}" for n in range(20)]
        found = agreement_of(ledger_of(self.pairs, subjects))
        assert list(found.points) == ["s0", "s1", "s2", "s3"]
        assert found.pearson.num_points == 4
        assert found.points["s0"] == (2 / 5, 3 / 5)

    def test_over_random_subtasks_when_there_are_none(self):
        found = agreement_of(ledger_of(self.pairs), num_subtasks=12, size=5, seed=1)
        assert len(found.points) == 12
        assert found.points == agreement_of(ledger_of(self.pairs), num_subtasks=12, size=5, seed=1).points

    def test_partial_credits_and_open_ties_are_kept_apart(self):
        left = [SyntheticItem(logprobs=(-1.0, -1.0), gold=gold, name=name) for name, gold in (("a", 0), ("b", 5))]
        ledger = decompose(run_of("lm_eval", left), run_of("inspect", left))
        outcomes = agreement_of(ledger).outcomes
        assert (outcomes.partial, outcomes.wrong_unknown) == (1, 1)

    def test_constant_scores_have_no_correlation(self):
        found = agreement_of(ledger_of([(0, 0)] * 6))
        assert found.pearson.value is None
        assert "vary with nothing" in found.pearson.reason


class TestScatter:
    def test_a_planted_ledger_gives_both_clouds_on_the_same_draws(self):
        planted = plant({(1, 0, 1, 1): 6, (1, 1, 1, 1): 10, (0, 0, 0, 0): 4}, {}, seed=3)
        clouds = normalisation_scatter(decompose(planted.lm_eval, planted.inspect), num_subtasks=15, size=5)
        assert {name: len(points) for name, points in clouds.items()} == {"off": 15, "on": 15}
        assert all(one == other for one, other in clouds["off"])
        assert all(one <= other for one, other in clouds["on"])
        assert [other for _, other in clouds["off"]] == [other for _, other in clouds["on"]]

    def test_more_items_than_there_are_is_refused(self):
        with pytest.raises(InputError, match="cannot be drawn from 3"):
            subtask_scatter({"": (np.zeros(3), np.zeros(3))}, num_subtasks=1, size=5, seed=0)


class TestRanking:
    def models(self, size=60, subjects=4):
        """Three models: lm-eval orders a > b > c, Inspect b > a > c."""
        rights = {"a": (45, 35), "b": (40, 40), "c": (10, 8)}
        return [
            ModelCredits.of(
                name,
                ledger_of(
                    [(int(n >= ours), int(n >= theirs)) for n in range(size)], [f"s{n % subjects}" for n in range(size)]
                ),
            )
            for name, (ours, theirs) in rights.items()
        ]

    def test_orders_flips_and_their_certainty(self):
        found = rank_models(self.models(), num_resamples=2000)
        assert found.scores["a"] == (Fraction(45, 60), Fraction(35, 60))
        assert found.tau.value == pytest.approx(1 / 3)
        assert found.tau_interval.low <= 1 / 3 <= found.tau_interval.high
        (flip,) = found.flips
        assert (flip.first, flip.second) == ("a", "b")
        assert (flip.gap_lm_eval, flip.gap_inspect) == (Fraction(5, 60), Fraction(-5, 60))
        assert 0.9 < flip.share_of_resamples <= 1
        assert found.ties == ()

    def test_the_same_items_are_redrawn_for_all_models_and_both_harnesses(self):
        a, *_ = self.models()
        twin = replace(a, name="twin", inspect=a.lm_eval)
        found = rank_models([replace(a, inspect=a.lm_eval), twin], num_resamples=200)
        assert found.tau.value is None
        assert found.tau_interval is None
        assert found.flips == ()

    def test_correlation_per_model_and_the_matrix(self):
        found = rank_models(self.models(), num_resamples=50)
        assert set(found.correlations) == {"a", "b", "c"}
        assert len(found.rows) == len(found.matrix) == 6
        for one in range(6):
            for other in range(6):
                assert found.matrix[one][other].value == pytest.approx(found.matrix[other][one].value, nan_ok=True)
        place = found.rows.index(("a", "lm_eval")), found.rows.index(("a", "inspect"))
        assert found.matrix[place[0]][place[1]] == found.correlations["a"]

    def test_one_subject_falls_back_to_random_subtasks(self):
        found = rank_models(self.models(subjects=1), num_resamples=50)
        assert found.correlations["a"].num_points == 40

    def test_only_shared_items_count_and_unlike_runs_are_refused(self):
        a, b, _ = self.models()
        short = replace(
            b,
            items=b.items[10:][::-1],
            subjects=b.subjects[10:][::-1],
            questions=b.questions[10:][::-1],
            lm_eval=b.lm_eval[10:][::-1],
            inspect=b.inspect[10:][::-1],
        )
        found = rank_models([a, short], num_resamples=50)
        assert found.num_items == 50
        assert found.scores["b"] == (Fraction(30, 50), Fraction(30, 50))
        with pytest.raises(InputError, match="two or more"):
            rank_models([a])
        with pytest.raises(InputError, match="share no item"):
            rank_models([a, replace(b, items=tuple((f"x{n}", 0) for n in range(60)))])

    def test_a_level_pair_in_one_harness_alone_is_a_tie_not_a_flip(self):
        a, b, _ = self.models()
        found = rank_models([a, replace(b, inspect=a.inspect)], num_resamples=50)
        assert found.flips == ()
        assert found.ties == (("a", "b"),)
