"""Which items tie, of which kind, what each rule makes of them, and the luck of the draw."""

import csv
import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.choices import build_table
from reconcile.decompose import decompose
from reconcile.luck import Draw, variance
from reconcile.normalisations import every_normalisation
from reconcile.report.items import write_items
from reconcile.runs import Protocol
from reconcile.synthetic import SyntheticItem, run_of, sample
from reconcile.ties import census, tied_items

FRACTIONAL = Protocol(template="inspect", num_fewshot=0, normalisation="none", tie_break="fractional", seed=4)


def records(*rows):
    return [
        sample(SyntheticItem(logprobs=logprobs, num_tokens=tokens, gold=gold, name=str(place)), template="inspect")
        for place, (logprobs, tokens, gold) in enumerate(rows)
    ]


def test_a_census_tells_the_kinds_of_ties_apart():
    untied, low_precision, same_text, same_tokens = records(
        ((-1, -2, -3), (1, 1, 1), 0),
        ((-2, -2, -3), (1, 1, 1), 1),
        ((-2, -2, -3), (1, 1, 1), 2),
        ((-2, -3, -2), (1, 1, 1), 0),
    )
    same_text = replace(same_text, choices=("the same", "the  same", "other"))
    scores = tuple(replace(s, request_digest=d) for s, d in zip(same_tokens.scores, "xyx", strict=True))
    same_tokens = replace(same_tokens, scores=scores)
    samples = [untied, low_precision, same_text, same_tokens]
    found = census(build_table(samples), samples, FRACTIONAL, logits_dtype="bfloat16")
    assert [(item.kind, item.tied, item.gold_among) for item in found.items] == [
        ("low-precision logits", (0, 1), True),
        ("identical choice text", (0, 1), False),
        ("identical tokens", (0, 2), True),
    ]
    assert {kind: number for kind, number in found.kinds.items() if number} == {
        "identical choice text": 1,
        "identical tokens": 1,
        "low-precision logits": 1,
    }
    scored = {rule.rule: rule.score for rule in found.rules}
    assert scored["first"] == Fraction(2, 4)
    assert scored["last"] == Fraction(2, 4)
    assert scored["any"] == Fraction(3, 4)
    assert scored["none"] == Fraction(1, 4)
    assert found.random.expectation == scored["fractional"] == Fraction(2, 4)
    assert found.random.variance == 2 * Fraction(1, 4) / 4**2
    assert [rule.rule for rule in found.rules if rule.native] == ["fractional"]


def test_items_csv_and_parquet_say_which_items_tie(tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from reconcile.report.parquet import write_parquet

    def items(*rows):
        return [
            SyntheticItem(logprobs=logprobs, num_tokens=tokens, gold=0, name=str(n)) for n, (logprobs, tokens) in rows
        ]

    rows = list(enumerate([((-2, -2, -3), (1, 1, 1)), ((-1, -2, -3), (1, 1, 1)), ((-2, -4, -5), (1, 2, 1))]))
    ledger = decompose(
        run_of("lm_eval", items(*rows), protocol=replace(FRACTIONAL, template="lm-eval")),
        run_of("inspect", items((0, rows[1][1]), *rows[1:]), protocol=replace(FRACTIONAL, normalisation="token")),
    )
    assert tied_items(ledger) == {"lm_eval": [True, False, False], "inspect": [False, False, True]}
    write_items(tmp_path / "items.csv", ledger)
    write_parquet(tmp_path / "items.parquet", ledger)
    with (tmp_path / "items.csv").open(encoding="utf-8") as file:
        lines = [(row["tied_lm_eval"], row["tied_inspect"]) for row in csv.DictReader(file)]
    assert lines == [("True", "False"), ("False", "False"), ("False", "True")]
    rows = parquet.read_table(tmp_path / "items.parquet").to_pylist()
    assert [(row["tied_lm_eval"], row["tied_inspect"]) for row in rows] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    ledger = replace(ledger, items=replace(ledger.items, choices={**ledger.items.choices, "inspect": None}))
    assert tied_items(ledger)["inspect"] == [None] * 3
    write_items(tmp_path / "items.csv", ledger)
    with (tmp_path / "items.csv").open(encoding="utf-8") as file:
        assert [row["tied_inspect"] for row in csv.DictReader(file)] == [""] * 3


def test_equal_scores_of_unlike_texts_have_a_reason_or_none():
    per_token = replace(FRACTIONAL, normalisation="token")
    near = replace(FRACTIONAL, tie_atol=0.5)
    equal, divided, close = records(
        ((-2, -2, -9), (1, 1, 1), 0), ((-2, -4, -9), (1, 2, 1), 0), ((-2, -2.25, -9), (1, 1, 1), 0)
    )
    cases = [(equal, FRACTIONAL, "equal scores"), (divided, per_token, "length rule"), (close, near, "within tie_atol")]
    for record, protocol, kind in cases:
        found = census(build_table([record]), [record], protocol, logits_dtype="float32")
        assert [item.kind for item in found.items] == [kind]


tied_sets = st.sets(st.integers(0, 3), min_size=1).map(frozenset)
draws = st.lists(
    st.builds(
        Draw,
        key=st.sampled_from(["x", "y"]),
        weight=st.fractions(-1, 1, max_denominator=6),
        tied=tied_sets,
        gold=st.integers(0, 3),
    ),
    max_size=4,
)


@settings(max_examples=100, deadline=None)
@given(draws)
def test_the_variance_is_that_over_all_orders_of_priorities(found):
    orders = list(itertools.permutations(range(4)))
    sums = []
    for order_x, order_y in itertools.product(orders, orders):
        ranks = {"x": order_x, "y": order_y}
        wins = [min(draw.tied, key=ranks[draw.key].__getitem__) == draw.gold for draw in found]
        sums.append(sum((draw.weight for draw, won in zip(found, wins, strict=True) if won), Fraction(0)))
    mean = sum(sums, Fraction(0)) / len(sums)
    assert mean == sum((draw.weight * draw.probability for draw in found), Fraction(0))
    assert variance(found) == sum(((value - mean) ** 2 for value in sums), Fraction(0)) / len(sums)


def test_all_five_normalisations_side_by_side():
    samples = records(((-4, -3), (4, 1), 0), ((-1, -2), (1, 1), 0), ((-6, -5), (2, 1), 1))
    scores = {
        rule.rule: rule for rule in every_normalisation(build_table(samples), replace(FRACTIONAL, tie_break="first"))
    }
    assert scores["none"].score == Fraction(2, 3)
    assert scores["token"].score == scores["char"].score == Fraction(2, 3)
    assert scores["none"].native
    assert scores["pmi"].score is None
    assert "empty context" in scores["pmi"].reason
    hollow = replace(samples[0], scores=tuple(replace(s, num_tokens=0) for s in samples[0].scores))
    partly = {rule.rule: rule for rule in every_normalisation(build_table([hollow, *samples[1:]]), FRACTIONAL)}
    assert (partly["token"].num_items, partly["char"].num_items) == (2, 3)
    assert partly["token"].reason.startswith("not for 1 of 3 items")
