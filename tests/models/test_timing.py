"""The choice among kernels: the usual one unless another is clearly faster, twice."""

import pytest

from llm.models import timing
from llm.models.timing import fastest


def measured(monkeypatch: pytest.MonkeyPatch, *rounds: dict[str, float]) -> str:
    """What is chosen when the clock says this, one measurement after the other."""
    left = iter(rounds)
    monkeypatch.setattr(timing, "_least_seconds", lambda calls: next(left))
    return fastest({name: lambda: None for name in rounds[0]}, usual="usual")


def test_a_clearly_faster_one_is_taken(monkeypatch):
    assert measured(monkeypatch, {"usual": 1.0, "other": 0.6}, {"usual": 1.0, "other": 0.5}) == "other"


@pytest.mark.parametrize("again", [0.6, 0.75])
def test_one_that_is_hardly_faster_or_was_so_by_chance_is_not(monkeypatch, again):
    first = 0.6 if again > 0.7 else 0.8
    assert measured(monkeypatch, {"usual": 1.0, "other": first}, {"usual": 1.0, "other": again}) == "usual"


def test_every_call_is_measured():
    made = []
    seconds = timing._least_seconds({"one": lambda: made.append("one"), "two": lambda: made.append("two")})
    assert made[:4] == ["one", "two", "one", "two"]
    assert all(0 < taken < 1 for taken in seconds.values())
