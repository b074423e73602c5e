"""Faults reported of comparing two runs, on logs that lm-eval's own evaluator wrote (docs/pitfalls.md)."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

pytest.importorskip("lm_eval")

from llm.evaluation.harness.adapter import build_task_dict, evaluate
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model, load_tokenizer
from reconcile.decompose import decompose
from reconcile.library import reconcile_runs
from reconcile.runs import Status
from reconcile.synthetic import SyntheticItem, run_of
from reconcile.trace import trace_file


def logged(folder: Path, model: Any, tokenizer: Any) -> Path:
    """The logs of stock arc_easy with the trace of its token ids beside them."""
    place = folder / "tiny"
    place.mkdir(parents=True)
    with trace_file(place / "requests.jsonl") as trace:
        lm = LlamaLmEvalLM(model, tokenizer, trace=trace, name="tiny")
        evaluate(lm, build_task_dict("arc_easy", "sample"), limit=12, output_path=folder, bootstrap_iters=0)
    return folder


def test_p61_a_special_token_is_tokenisation_not_template(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Two runs unlike only in BOS: the same text, so nothing is laid to the template, and every item says why."""
    model, bare = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    with_bos = load_tokenizer(str(tiny_checkpoint))
    with_bos.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bare.bos_token} $A", special_tokens=[(bare.bos_token, bare.bos_token_id)]
    )
    result = reconcile_runs(
        logged(tmp_path / "with", model, with_bos) / "tiny", logged(tmp_path / "without", model, bare) / "tiny"
    )
    ledger = result.ledger
    assert [one.prompt for one in result.left.samples] == [other.prompt for other in result.right.samples]
    template = ledger.component("template")
    assert (template.exact, template.status) == (0, "inert")
    tokenisation = ledger.component("tokenisation")
    assert tokenisation.exact == ledger.gap - ledger.component("rounding").exact
    assert tokenisation.status == "acts"
    pairs = [pair for one, other in ledger.items.pairs for pair in zip(one.scores, other.scores, strict=True)]
    assert all(one.request_digest != other.request_digest for one, other in pairs)
    assert any(one.logprob != other.logprob for one, other in pairs)
    assert ledger.accounted


def test_p09_cut_items_are_counted_in_the_ledger_of_either_side() -> None:
    """And so are scores that are not numbers."""
    cut = SyntheticItem(name="a", logprobs=(-1.0, -2.0), gold=0, status=Status.TRUNCATED)
    odd = SyntheticItem(name="b", logprobs=(-1.0, float("nan")), gold=1)
    plain = [SyntheticItem(name=name, logprobs=(-1.0, -2.0), gold=gold) for gold, name in enumerate("ab")]
    assert decompose(run_of("lm_eval", plain), run_of("inspect", plain)).notes == ()
    assert decompose(run_of("lm_eval", [cut, odd]), run_of("inspect", plain)).notes == (
        "lm-eval: 1 of 2 items had their beginning cut to fit the model",
        "lm-eval: 1 of 2 items hold a score that is not a number, which NumPy's argmax takes for the best (sample b)",
    )
