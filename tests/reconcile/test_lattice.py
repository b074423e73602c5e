"""The lattice's arithmetic against definitions spelled out by brute force."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.lattice import Factor, build_lattice, feasible_cells, feasible_orders, shapley_values

FREE = tuple(Factor(name=name) for name in "abc")
CHAINED = (Factor(name="template"), Factor(name="norm"), Factor(name="tie"), Factor(name="readout", after="template"))


def random_lattice(factors, seed, num_items=6):
    rng = np.random.default_rng(seed)
    ratios = {
        cell: (rng.integers(0, 3, num_items), rng.choice([2, 3, 4, 6], num_items)) for cell in feasible_cells(factors)
    }
    return build_lattice(factors, ratios), ratios


def credit(ratios, cell, item):
    above, below = ratios[frozenset(cell)]
    return Fraction(int(above[item]), int(below[item]))


@pytest.mark.parametrize("factors", [FREE, CHAINED])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_contributions_are_the_mean_over_feasible_orders_item_by_item(factors, seed):
    lattice, ratios = random_lattice(factors, seed)
    needs = {factor.name: factor.after for factor in factors}
    orders = [
        order
        for order in itertools.permutations(needs)
        if all(after is None or order.index(after) < order.index(name) for name, after in needs.items())
    ]
    for item in range(lattice.num_items):
        for name in needs:
            steps = [
                credit(ratios, order[: order.index(name)], item) - credit(ratios, order[: order.index(name) + 1], item)
                for order in orders
            ]
            found = Fraction(int(lattice.contributions[name][item]), lattice.contribution_denominator)
            assert found == sum(steps, Fraction(0)) / len(orders)


@pytest.mark.parametrize("factors", [FREE, CHAINED, ()])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_components_add_up_to_the_difference_of_the_ends(factors, seed):
    lattice, _ = random_lattice(factors, seed)
    total = sum((lattice.shapley(name) for name in lattice.names), Fraction(0))
    assert total == lattice.score(()) - lattice.score(lattice.names)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_one_at_a_time_gaps_and_interactions_follow_from_the_cells(seed):
    lattice, _ = random_lattice(FREE, seed)
    score = lattice.score
    assert lattice.single_from_lm_eval("a") == score(()) - score("a")
    assert lattice.single_from_inspect("a") == score("bc") - score("abc")
    assert lattice.alternating(("a", "b"), frozenset()) == score(()) - score("a") - score("b") + score("ab")
    assert lattice.alternating(("a", "b"), frozenset("c")) == score("c") - score("ac") - score("bc") + score("abc")
    three = lattice.alternating(("a", "b", "c"), frozenset())
    assert three == lattice.alternating(("a", "b"), frozenset()) - lattice.alternating(("a", "b"), frozenset("c"))


def test_readout_is_only_switched_after_the_template():
    cells = feasible_cells(CHAINED)
    assert frozenset({"readout"}) not in cells
    assert len(cells) == 12
    assert len(feasible_orders(CHAINED)) == 12
    lattice, _ = random_lattice(CHAINED, 1)
    assert lattice.single_from_lm_eval("readout") is None
    assert lattice.single_from_inspect("template") is None
    assert lattice.alternating(("template", "readout"), frozenset()) is None
    assert lattice.single_from_inspect("readout") is not None


def test_a_factor_that_changes_nothing_gets_nothing_and_alike_factors_get_alike():
    ratios = {}
    for cell in feasible_cells(FREE):
        wins = int("a" in cell and "b" in cell)  # a and b act only together, c never
        ratios[cell] = (np.array([wins]), np.array([1]))
    lattice = build_lattice(FREE, ratios)
    assert [lattice.shapley(name) for name in "abc"] == [Fraction(-1, 2), Fraction(-1, 2), 0]


@pytest.mark.parametrize("from_inspect", [False, True])
@pytest.mark.parametrize("factors", [FREE, CHAINED])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_closing_sets_are_the_smallest_that_give_every_item_the_other_ends_credit(factors, from_inspect, seed):
    rng = np.random.default_rng(seed)
    ratios = {cell: (rng.integers(0, 2, 2), np.ones(2, dtype=int)) for cell in feasible_cells(factors)}
    lattice = build_lattice(factors, ratios)
    everything = frozenset(lattice.names)
    start, goal = (everything, frozenset()) if from_inspect else (frozenset(), everything)
    closing = [
        set(names)
        for size in range(len(everything) + 1)
        for names in itertools.combinations(lattice.names, size)
        if start ^ set(names) in ratios and (ratios[start ^ set(names)][0] == ratios[goal][0]).all()
    ]
    smallest = min(len(names) for names in closing)
    found = [set(names) for names in lattice.closing_sets(from_inspect=from_inspect)]
    assert found == [names for names in closing if len(names) == smallest]


def test_denominators_of_any_size_stay_exact():
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61]
    above, below = np.ones(len(primes), dtype=np.int64), np.array(primes, dtype=np.int64)
    lattice = build_lattice((Factor(name="a"),), {frozenset(): (above, below), frozenset("a"): (0 * above, below)})
    assert math.prod(primes) > 2**64
    assert lattice.shapley("a") == sum(Fraction(1, prime) for prime in primes) / len(primes)


def test_shapley_of_any_function_of_the_cells():
    values = shapley_values(FREE, lambda cell: Fraction(len(cell) ** 2))
    assert values == dict.fromkeys("abc", Fraction(-3))


def test_a_lattice_without_factors_or_items_has_no_gap():
    ratios = {frozenset(): (np.array([1, 0]), np.array([1, 1]))}
    assert build_lattice((), ratios).closing_sets() == ((),)
    nothing = build_lattice(
        (Factor(name="a"),), {cell: (np.array([], int), np.array([], int)) for cell in (frozenset(), frozenset("a"))}
    )
    assert nothing.shapley("a") == 0
