"""The rules against stock lm-eval's own arithmetic, and their own definitions."""

import itertools
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.errors import InputError
from llm.evaluation import rules

CHOICES = ["a", "to be", "naïve café", "日本語の答え", "wheel and axle"]
LENGTHS = {
    "num_chars": [len(choice) for choice in CHOICES],
    "num_bytes": [len(choice.encode()) for choice in CHOICES],
}
METRICS = {"acc": "none", "acc_norm": "char", "acc_bytes": "byte", "acc_mutual_info": "pmi"}


@pytest.fixture(scope="module")
def stock_task():
    """A multiple-choice task of lm-eval's own making, over one document a gold."""
    datasets = pytest.importorskip("datasets")
    task = pytest.importorskip("lm_eval.api.task")
    docs = [{"question": "which", "choices": CHOICES, "gold": gold} for gold in range(len(CHOICES))]
    return task.ConfigurableTask(
        config={
            "task": "rules_under_test",
            "output_type": "multiple_choice",
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(docs)},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{gold}}",
            "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in METRICS],
        }
    )


def stock_credits(task, logprobs, unconditional, gold):
    doc = task.task_docs[gold]
    return task.process_results(doc, [(value, False) for value in (*logprobs, *unconditional)])


def our_credits(logprobs, unconditional, gold):
    return {
        metric: float(
            rules.credit(
                rules.normalise(logprobs, rule=rule, unconditional=unconditional, **LENGTHS), gold, tie_break="first"
            )
        )
        for metric, rule in METRICS.items()
    }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_credits_equal_stock_lm_eval_on_random_and_tied_likelihoods(stock_task):
    rng = np.random.default_rng(7)
    cases = [rng.normal(-20, 8, size=(2, 5)) for _ in range(300)]
    cases += [np.round(rng.normal(-3, 1, size=(2, 5))) for _ in range(300)]  # many exact ties
    cases += [-np.outer([1, 0.5], LENGTHS["num_chars"]) * rng.choice([0.5, 1.0, 2.0]) for _ in range(20)]
    cases += [np.where(rng.random((2, 5)) < 0.3, hole, rng.normal(-9, 3, (2, 5))) for hole in (-np.inf, np.nan)] * 20
    differing = 0
    for place, (logprobs, unconditional) in enumerate(cases):
        gold = place % 5
        stock = stock_credits(stock_task, logprobs.tolist(), unconditional.tolist(), gold)
        assert our_credits(logprobs, unconditional, gold) == stock, (logprobs, unconditional, gold)
        differing += len(set(stock.values())) > 1
    assert differing > 100, "the metrics must disagree often, or this proves nothing"


def test_first_is_numpys_argmax_nan_included():
    scores = [-2.0, math.nan, -1.0, math.nan]
    assert rules.pick(scores, tie_break="first") == int(np.argmax(scores)) == 1
    assert rules.pick(scores, tie_break="last") == 3
    assert rules.has_nan(scores)
    assert not rules.has_nan([-2.0, -math.inf])


@pytest.mark.parametrize(
    ("rule", "picked", "credits"),
    [
        ("first", 1, (0, 1, 0, 0)),
        ("last", 3, (0, 0, 0, 1)),
        ("fractional", None, (0, Fraction(1, 3), Fraction(1, 3), Fraction(1, 3))),
        ("any", None, (0, 1, 1, 1)),
        ("none", None, (0, 0, 0, 0)),
    ],
)
def test_a_three_way_tie_under_each_rule(rule, picked, credits):
    scores = [-4.0, -1.5, -1.5, -1.5]
    assert rules.pick(scores, tie_break=rule) == picked
    assert tuple(rules.credit(scores, gold, tie_break=rule) for gold in range(4)) == credits


@pytest.mark.parametrize("rule", rules.TIE_BREAKS)
def test_without_a_tie_every_rule_agrees(rule):
    scores = [-3.0, -1.0, -2.0]
    assert rules.pick(scores, tie_break=rule, key="item") == 1
    assert [rules.credit(scores, gold, tie_break=rule, key="item") for gold in range(3)] == [0, 1, 0]


def test_a_random_tie_belongs_to_seed_item_and_original_index():
    scores, keys = [-1.0, -1.0, -5.0, -1.0], [f"item {n}" for n in range(3000)]
    picks = [rules.pick(scores, tie_break="random", seed=3, key=key) for key in keys]
    assert set(picks) == {0, 1, 3}
    assert all(abs(picks.count(index) - 1000) < 5 * math.sqrt(3000 * 2 / 9) for index in (0, 1, 3))
    for key, chosen in zip(keys[:50], picks[:50], strict=True):
        order = sorted((0, 1, 3), key=lambda index, key=key: rules.priority(3, key, index))
        assert chosen == order[0]
        without = [score if index != chosen else -9.0 for index, score in enumerate(scores)]
        assert rules.pick(without, tie_break="random", seed=3, key=key) == order[1]
    other = [rules.pick(scores, tie_break="random", seed=4, key=key) for key in keys]
    assert sum(one != two for one, two in zip(picks, other, strict=True)) > 1500


def test_the_priorities_are_fixed_for_ever():
    assert rules.priority(0, "key", 0) == 0x8DB0FC9FF35FC059
    assert rules.priority(0, "key", 1) != rules.priority(0, "key", 0) != rules.priority(1, "key", 0)


def test_p24_token_counts_divide_and_an_empty_choice_is_refused():
    assert rules.normalise([-10, -20], rule="token", num_tokens=[2, 3]) == pytest.approx([-5, -20 / 3])
    with pytest.raises(InputError, match="choice 1 has 0 tokens"):
        rules.normalise([-10, -20, -1], rule="token", num_tokens=[2, 0, 3])
    with pytest.raises(InputError, match="choice 0 has 0 characters"):
        rules.normalise([-10, -20], rule="char", num_chars=[0, 3])
    assert rules.normalise([-10, -20], rule="none", num_tokens=[0, 0]).tolist() == [-10, -20]


def test_p23_characters_and_bytes_are_different_lengths():
    scores = (
        rules.normalise([-6, -7], rule="char", num_chars=[2, 3]),
        rules.normalise([-6, -7], rule="byte", num_bytes=[6, 3]),
    )
    assert [rules.pick(values, tie_break="first") for values in scores] == [1, 0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rule": "char"}, "number of characters"),
        ({"rule": "pmi"}, "empty context"),
        ({"rule": "length"}, "'length' is not known"),
    ],
)
def test_a_rule_without_what_it_needs_says_so(options, match):
    with pytest.raises(InputError, match=match):
        rules.normalise([-1.0, -2.0], **options)


def test_bad_tie_settings_are_refused():
    with pytest.raises(InputError, match="'best' is not known"):
        rules.credit([-1.0], 0, tie_break="best")
    with pytest.raises(InputError, match="not a distance"):
        rules.pick([-1.0], tie_break="first", tie_atol=-1)
    with pytest.raises(InputError, match="without choices"):
        rules.pick([], tie_break="first")


def test_tie_atol_widens_the_tie_and_zero_means_equal():
    scores = [-1.001, -1.0]
    assert rules.credit(scores, 0, tie_break="fractional") == 0
    assert rules.credit(scores, 0, tie_break="fractional", tie_atol=0.01) == Fraction(1, 2)
    assert rules.pick(scores, tie_break="first", tie_atol=0.01) == 0


@pytest.mark.parametrize("gold", [-1, -100, 3, 99])
@pytest.mark.parametrize("rule", rules.TIE_BREAKS)
def test_a_gold_outside_the_choices_is_never_right(rule, gold):
    assert rules.credit([-1.0, -1.0, -1.0], gold, tie_break=rule, key="item") == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(-4, 0), min_size=1, max_size=6), min_size=1, max_size=6),
    st.sampled_from(rules.TIE_BREAKS),
    st.integers(0, 5),
)
def test_a_padded_table_gives_what_single_items_give(rows, rule, gold):
    width = max(map(len, rows))
    table, valid = np.full((len(rows), width), np.nan), np.zeros((len(rows), width), dtype=bool)
    for place, row in enumerate(rows):
        table[place, : len(row)], valid[place, : len(row)] = row, True
    keys = [str(place) for place in range(len(rows))]
    tied = rules.tied_for_best(table, valid=valid)
    above, below = rules.credit_ratios(tied, np.full(len(rows), gold), rule=rule, keys=keys)
    picks = rules.resolve(tied, rule=rule, keys=keys)
    for place, row in enumerate(rows):
        assert Fraction(int(above[place]), int(below[place])) == rules.credit(
            row, gold, tie_break=rule, key=keys[place]
        )
        single = rules.pick(row, tie_break=rule, key=keys[place])
        assert picks[place] == (-1 if single is None else single)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-3, 0), min_size=2, max_size=6))
def test_fractional_credit_is_the_mean_of_the_picking_orders_and_sums_to_one(scores):
    shares = [rules.credit(scores, gold, tie_break="fractional") for gold in range(len(scores))]
    assert sum(shares) == 1
    best = {index for index, score in enumerate(scores) if score == max(scores)}
    orders = list(itertools.permutations(sorted(best)))
    for gold, share in enumerate(shares):
        assert share == Fraction(sum(order[0] == gold for order in orders), len(orders))


def test_the_rules_need_neither_torch_nor_a_harness():
    code = (
        "import sys, llm.evaluation.rules; print([m for m in ('torch', 'lm_eval', 'inspect_ai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
