"""Faults reported of rolling likelihoods and perplexities (docs/pitfalls.md)."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance

from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.models import load_model
from llm.scoring.encoding import rolling_windows

TEXT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def lm(tiny_checkpoint: Path) -> LlamaLmEvalLM:
    return LlamaLmEvalLM(*load_model(str(tiny_checkpoint), dtype="float32", device="cpu"))


def rolling(lm: LlamaLmEvalLM, *texts: str) -> list[float]:
    requests: list[Any] = [
        Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=i) for i, text in enumerate(texts)
    ]
    return lm.loglikelihood_rolling(requests, disable_tqdm=True)


def test_p13_a_short_document_gains_nothing_from_long_ones(lm: LlamaLmEvalLM) -> None:
    texts = ["The fox", TEXT, TEXT * 9, "a"]
    together = rolling(lm, *texts)
    assert together == [rolling(lm, text)[0] for text in texts]
    assert rolling(lm, *texts[::-1])[::-1] == together


def test_p14_a_document_of_twelve_tokens_against_brute_force(lm: LlamaLmEvalLM) -> None:
    text = lm.tok_decode(lm.tok_encode(TEXT * 2)[:12])
    ids = lm.tok_encode(text)
    assert len(ids) == 12
    logits = lm.model(torch.tensor([[lm.prefix_token_id, *ids]]))[0, :-1]
    wanted = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).sum().item()
    assert rolling(lm, text) == pytest.approx([wanted], abs=1e-4)


@pytest.mark.parametrize("max_length", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [1, 4, 5, 8, 9, 16, 23])
def test_p15_windows_are_lm_evals_disjoint_ones_with_bos_on_the_first(length: int, max_length: int) -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    ids = list(range(10, 10 + length))
    stock = get_rolling_token_windows(ids, prefix_token=1, max_seq_len=max_length, context_len=1)
    windows = rolling_windows(ids, 1, max_length)
    pairs = [(list(window.context_ids), list(window.continuation_ids)) for window in windows]
    assert pairs == [(list(context), list(tail)) for context, tail in map(make_disjoint_window, stock)]
    assert [token for _, tail in pairs for token in tail] == ids
    assert [1 in context for context, _ in pairs] == [True] + [False] * (len(pairs) - 1)


def test_p17_a_document_three_contexts_long_loses_no_token(lm: LlamaLmEvalLM) -> None:
    trace: list[Any] = []
    short = LlamaLmEvalLM(lm.model, lm.tokenizer, max_length=16, trace=trace)
    (total,) = rolling(short, TEXT * 6)
    ids = lm.tok_encode(TEXT * 6)
    assert len(ids) > 3 * 16
    assert sum(len(record.scores.logprobs) for record in trace) == len(ids)
    assert total == pytest.approx(sum(record.scores.total for record in trace), abs=1e-9)
