"""The ledger in a notebook: typed objects and frames, without torch and without a harness."""

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from llm.errors import InputError
from reconcile import reconcile_runs
from reconcile.runs import HarnessRun
from reconcile.synthetic import INSPECT, LM_EVAL, SyntheticItem, run_of

pytest.importorskip("pandas")


@pytest.fixture
def runs() -> tuple[HarnessRun, HarnessRun]:
    """The first hand-made case of the ledger: gap -1/8 = 1/4 - 1/4 - 1/8."""
    tokens = [(1, 1), (4, 1), (1, 1), (1, 1)]
    golds = [0, 0, 1, 0]
    ours = [(-1.0, -2.0), (-4.0, -3.0), (-2.0, -2.0), (-1.0, -2.0)]
    theirs = [(-2.0, -1.0), *ours[1:]]
    sides = []
    for scores in (ours, theirs):
        sides.append(
            [
                SyntheticItem(name=str(index), logprobs=one, num_tokens=lengths, gold=gold)
                for index, (one, lengths, gold) in enumerate(zip(scores, tokens, golds, strict=True))
            ]
        )
    return run_of("lm_eval", sides[0], protocol=LM_EVAL), run_of("inspect", sides[1], protocol=INSPECT)


def test_frames_say_what_the_ledger_says(runs: tuple[HarnessRun, HarnessRun]) -> None:
    result = reconcile_runs(*runs)
    assert result.ledger.gap == Fraction(-1, 8)
    components = result.components()
    assert components.loc[["template", "length_normalisation", "tie_break"], "exact"].tolist() == [
        "1/4",
        "-1/4",
        "-1/8",
    ]
    assert components["net"].sum() == -0.125
    cells = result.cells()
    assert len(cells) == 8
    assert cells["off_path"].sum() == 6
    items = result.items()
    assert len(items) == 4
    shares = [column for column in items if column.startswith("contributions ")]
    assert items[shares].to_numpy().sum() / 4 == -0.125
    assert result.statistics(num_resamples=200).num_items == 4
    assert result.agreement().num_items == 4


def test_unlike_runs_are_refused(runs: tuple[HarnessRun, HarnessRun]) -> None:
    with pytest.raises(InputError, match="nowhere"):
        reconcile_runs(runs[0], Path("nowhere.eval"))


def test_it_imports_neither_torch_nor_a_harness() -> None:
    code = """
import sys
from reconcile import reconcile_runs
from reconcile.synthetic import INSPECT, LM_EVAL, SyntheticItem, run_of
item = SyntheticItem(name="a", logprobs=(-1.0, -2.0), gold=0)
ours, theirs = (run_of(h, [item], protocol=p) for h, p in (("lm_eval", LM_EVAL), ("inspect", INSPECT)))
result = reconcile_runs(ours, theirs)
result.items(), result.statistics(num_resamples=50)
heavy = {"torch", "lm_eval", "inspect_ai", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
