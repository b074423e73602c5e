"""Faults reported of multiple-choice tasks, ties, answer parsing and the comparison of two runs (docs/pitfalls.md)."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm.evaluation import rules
from llm.evaluation.data import load_items
from llm.evaluation.lm_eval_prompts import render
from llm.models import load_model
from llm.scoring.encoding import encode_text
from llm.scoring.plain import make_scorer
from llm.scoring.requests import ScoreRequest
from reconcile.decompose import decompose
from reconcile.synthetic import INSPECT, SyntheticItem, run_of

RIGHT, WRONG = (-1.0, -2.0), (-2.0, -1.0)


def test_p22_letters_against_texts_is_all_template() -> None:
    """One rule on both sides, two wordings of the same items: the whole gap has one name, and so has each style."""
    ours = [SyntheticItem(name=str(n), gold=0, logprobs=RIGHT if n % 3 else WRONG) for n in range(30)]
    theirs = [SyntheticItem(name=str(n), gold=0, logprobs=RIGHT if n % 2 else WRONG) for n in range(30)]
    one_rule = replace(INSPECT, normalisation="none", tie_break="first")
    ledger = decompose(run_of("lm_eval", ours), run_of("inspect", theirs, protocol=one_rule))
    assert ledger.component("template").exact == Fraction(20, 30) - Fraction(15, 30)
    others = [part for part in ledger.components if part.name not in ("template", "rounding")]
    assert {part.exact for part in others} == {0}
    assert [ledger.protocols[side].template for side in ("lm_eval", "inspect")] == ["lm-eval", "inspect"]
    assert ledger.closing_sets["from_lm_eval"] == (("template",),)


def test_p29_low_precision_ties_what_full_precision_parts(tiny_checkpoint: Path) -> None:
    """Log-softmax in bfloat16 makes options exactly equal; float32, the default, does not."""
    model, tokenizer = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    contexts = [tuple(encode_text(tokenizer, render(item).context)) for item in load_items("arc_easy", limit=24)]
    choices = range(100, 116)
    requests = [ScoreRequest(context_ids=ids, continuation_ids=(choice,)) for ids in contexts for choice in choices]
    ties = {}
    for logits_dtype in ("float32", "bfloat16"):
        scores = make_scorer(model, logits_dtype=logits_dtype).score(requests)
        table = np.array([score.total for score in scores]).reshape(len(contexts), len(choices))
        ties[logits_dtype] = int((rules.tied_for_best(table).sum(axis=1) > 1).sum())
    assert ties["float32"] == 0
    assert ties["bfloat16"] > 0


ANSWERS = {
    "ANSWER: b": 1,
    "ANSWER: $B$": 1,
    "ANSWER: **B**": 1,
    "ANSWER: (B)": 1,
    "ANSWER: B,": 1,
    "ANSWER: A\nANSWER: B": 1,
    "B": None,
    "B) two": None,
    "": None,
    "ANSWER: Don't know": None,
}
"""What Inspect 0.3.285 reads out of each answer, as the original index of a choice."""


def test_p30_answers_not_found_stand_apart_from_wrong_ones(tmp_path: Path) -> None:
    """Inspect's own parser reads what it reads; what it does not find is neither a pick nor a wrong answer."""
    pytest.importorskip("inspect_ai")
    from inspect_ai import Task
    from inspect_ai import eval as inspect_eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import choice
    from inspect_ai.solver import multiple_choice

    from reconcile.logs import read_inspect_run
    from reconcile.runs import Status

    def outputs() -> Iterator[Any]:
        for text in ANSWERS:
            output = ModelOutput.from_content("mockllm/model", text)
            output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
            yield output

    samples = [Sample(input=f"Which is {n}?", choices=["one", "two", "ten"], target="A") for n in range(len(ANSWERS))]
    (log,) = inspect_eval(
        Task(dataset=samples, solver=multiple_choice(), scorer=choice()),
        model=get_model("mockllm/model", custom_outputs=outputs()),
        log_dir=str(tmp_path),
        display="none",
        max_connections=1,
        max_samples=1,
    )
    run = read_inspect_run(Path(log.location))
    found = {sample.answer: (sample.pick, sample.status, sample.credit) for sample in run.samples}
    assert found == {
        text: (pick, Status.UNPARSED if pick is None else Status.SCORED, Fraction(0)) for text, pick in ANSWERS.items()
    }
    assert run.versions["inspect_ai"]
