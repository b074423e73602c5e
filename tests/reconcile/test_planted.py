"""Planted gaps: what was put in is found, item by item, and nothing else."""

import itertools
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.decompose import decompose
from reconcile.planting import plant

PATTERNS = list(itertools.product((0, 1), repeat=4))
TIES = [(width, place) for width in (2, 3, 5) for place in range(width)]


@settings(max_examples=200, deadline=None)
@given(
    patterns=st.dictionaries(st.sampled_from(PATTERNS), st.integers(1, 3), min_size=1, max_size=16),
    ties=st.dictionaries(st.sampled_from(TIES), st.integers(1, 2), max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_planted_item_and_count_is_recovered(patterns, ties, seed):
    planted = plant(patterns, ties, seed=seed)
    ledger = decompose(planted.lm_eval, planted.inspect)
    rows = {left.sample_id: row for (left, _), row in zip(ledger.items.pairs, ledger.items.rows(), strict=True)}
    assert len(rows) == sum(patterns.values()) + sum(ties.values()) == ledger.num_items["common"]
    expected = {
        "template": planted.template,
        "length_normalisation": planted.normalisation,
        "tie_break": planted.tie_break,
    }
    for name, truth in expected.items():
        found = {item: row.contributions[name] for item, row in rows.items()}
        assert found == truth
        component = ledger.component(name)
        assert component.exact == sum(truth.values(), Fraction(0)) / len(truth)
        assert component.items_up == sum(share > 0 for share in truth.values())
        assert component.items_down == sum(share < 0 for share in truth.values())
        assert component.gross_up == sum((s for s in truth.values() if s > 0), Fraction(0)) / len(truth)
    for pattern in patterns:
        ll, li, il, ii = pattern
        row = rows[f"cells {pattern} 0"]
        credits = [row.credits[name] for name in ("lm_eval", "length_normalisation", "template")]
        assert credits == [ll, li, il]
        assert row.credits["template+length_normalisation"] == ii
    interaction = next(i for i in ledger.interactions if i.factors == ("template", "length_normalisation"))
    planted_interaction = sum(n * (p[0] - p[1] - p[2] + p[3]) for p, n in patterns.items())
    assert interaction.from_lm_eval == Fraction(planted_interaction, len(rows))
    assert sum((part.exact for part in ledger.components), Fraction(0)) == ledger.gap
    exact_gap = sum((share for truth in expected.values() for share in truth.values()), Fraction(0)) / len(rows)
    assert ledger.gap - ledger.component("rounding").exact == exact_gap
    assert abs(ledger.component("rounding").exact) < Fraction(1, 10**15)
    assert ledger.accounted
    assert (ledger.component("tie_break").status == "inert") == (not ties)


def test_p62_forty_items_with_known_changes():
    patterns = {
        (1, 1, 1, 1): 17,
        (0, 0, 0, 0): 6,
        (1, 1, 0, 0): 5,  # template alone
        (0, 0, 1, 1): 2,
        (1, 0, 1, 0): 3,  # normalisation alone
        (0, 1, 0, 1): 1,
        (1, 1, 1, 0): 2,  # either alone keeps it, both together lose it
    }
    planted = plant(patterns, {(2, 0): 3, (2, 1): 1}, seed=62)
    ledger = decompose(planted.lm_eval, planted.inspect)
    assert ledger.num_items["common"] == 40
    counts = [(ledger.component(n).items_up, ledger.component(n).items_down) for n in ("template", "tie_break")]
    assert counts == [(7, 2), (3, 1)]
    assert ledger.component("length_normalisation").items_up == 5
    assert ledger.component("template").exact == Fraction(5 - 2 + 1, 40)
    assert ledger.component("length_normalisation").exact == Fraction(3 - 1 + 1, 40)
    assert ledger.component("tie_break").exact == Fraction(3 - 1, 80)
    assert abs(float(ledger.gap) - sum(part.value for part in ledger.components)) <= 1e-12
