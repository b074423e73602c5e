"""Faults reported of log-likelihood scoring, each on real tokenizers and a tiny model (docs/pitfalls.md)."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from llm.evaluation.data import load_items
from llm.evaluation.lm_eval_prompts import render
from llm.models import load_model, load_tokenizer
from llm.scoring.encoding import encode_pair, encode_pair_flagged, encode_text, fit
from llm.scoring.engine import ScoringEngine
from llm.scoring.plain import PlainScorer
from llm.scoring.requests import ScoreRequest


@pytest.fixture(scope="module")
def tiny(tiny_checkpoint: Path) -> tuple[Any, Any]:
    return load_model(str(tiny_checkpoint), dtype="float32", device="cpu")


def toy(model: Any, **parts: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of a few tokens, `<s>` its BOS."""
    inner = Tokenizer(model)
    for name, part in parts.items():
        setattr(inner, name, part)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def merging() -> PreTrainedTokenizerFast:
    """Letters a, b, c, x, and `ab` as one token."""
    vocab = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", "a", "b", "c", "x", "ab"])}
    return toy(models.BPE(vocab=vocab, merges=[("a", "b")], unk_token="<unk>"))


def test_p01_a_token_across_the_join(merging: PreTrainedTokenizerFast) -> None:
    """Cutting the joint ids would leave nothing, or less than the text; both are scored and said."""
    a, b, c, x, ab = (merging.convert_tokens_to_ids(token) for token in ("a", "b", "c", "x", "ab"))
    whole = encode_pair_flagged(merging, "xc", "ab")
    assert (whole.request, whole.split) == (ScoreRequest(context_ids=(x, c), continuation_ids=(ab,)), "joint")
    swallowed = encode_pair_flagged(merging, "xa", "b")
    assert (swallowed.request, swallowed.split) == (ScoreRequest(context_ids=(x, a), continuation_ids=(b,)), "separate")
    shortened = encode_pair_flagged(merging, "xa", "bc")
    assert (shortened.request, shortened.split) == (ScoreRequest(context_ids=(x, a), continuation_ids=(c,)), "merged")


def test_p03_what_is_scored_is_known_and_the_divisor_is_the_choice(tiny: tuple[Any, Any]) -> None:
    """The moved space is scored; lengths are those of the choice text, space or no space, by declared policy."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM

    trace: list[Any] = []
    lm = LlamaLmEvalLM(*tiny, trace=trace)
    pairs = [("Total: ", "42"), ("Total:", " 42")]
    lm.loglikelihood([Instance(request_type="loglikelihood", doc={}, arguments=p, idx=0) for p in pairs])
    assert {lm.tok_decode(record.request.continuation_ids) for record in trace} == {" 42"}
    assert trace[0].scores == trace[1].scores
    item = load_items("arc_easy", limit=1)[0]
    prompt = render(item)
    assert prompt.continuations == tuple(f" {text}" for text in prompt.choice_texts)
    assert prompt.choice_texts == item.choices


def test_p04_no_lone_space_piece_of_a_dummy_prefix() -> None:
    """SentencePiece as Llama 2 has it: a space is put before every text, so a continuation alone begins with two."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "▁The", "▁sky", "▁is", "▁blue", *"Theskyisblu"]
    scores = [(piece, -1.0 - number / 100) for number, piece in enumerate(dict.fromkeys(pieces))]
    tokenizer = toy(
        models.Unigram(scores, unk_id=0),
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=decoders.Replace("▁", " "),
    )
    space, blue = tokenizer.convert_tokens_to_ids(["▁", "▁blue"])
    assert tokenizer(" blue", add_special_tokens=False)["input_ids"] == [space, blue]
    request = encode_pair(tokenizer, "The sky is", " blue")
    assert request.continuation_ids == (blue,)
    assert request.context_ids == tuple(tokenizer.convert_tokens_to_ids(["▁The", "▁sky", "▁is"]))
    assert encode_pair(tokenizer, "The sky is ", "blue") == request


@pytest.fixture(scope="module")
def with_bos(tiny_checkpoint: Path) -> Any:
    """The tiny tokenizer, made to put BOS before every text, with a chat template that writes one too."""
    tokenizer = load_tokenizer(str(tiny_checkpoint))
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    assert tokenizer("The fox")["input_ids"][0] == tokenizer.bos_token_id
    return tokenizer


def test_p05_exactly_one_bos_on_every_path(tiny: tuple[Any, Any], with_bos: Any) -> None:
    pytest.importorskip("lm_eval")
    pytest.importorskip("inspect_ai")
    from inspect_ai.model import ChatMessageUser
    from lm_eval.api.instance import Instance

    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
    from providers.inspect_prompts import chat_prompt

    trace: list[Any] = []
    lm = LlamaLmEvalLM(tiny[0], with_bos, trace=trace)
    chat = lm.apply_chat_template([{"role": "user", "content": "The fox"}])
    contexts = ["The fox", "", chat]
    lm.loglikelihood(
        [Instance(request_type="loglikelihood", doc={}, arguments=(c, " jumps"), idx=i) for i, c in enumerate(contexts)]
    )
    lm.loglikelihood_rolling([Instance(request_type="loglikelihood_rolling", doc={}, arguments=("The fox",), idx=0)])
    asked = [record.request.context_ids + record.request.continuation_ids for record in trace]
    asked += [lm._generation_request(0, context, {}).prompt_ids for context in contexts]
    asked.append(tuple(encode_text(with_bos, chat_prompt(with_bos, [ChatMessageUser(content="The fox")]))))
    assert len(asked) == 8
    for ids in asked:
        assert ids[0] == with_bos.bos_token_id
        assert ids.count(with_bos.bos_token_id) == 1


def test_p07_scores_belong_to_their_positions(tiny: tuple[Any, Any]) -> None:
    """Token by token against the whole forward pass, a context of one token (BOS alone) included."""
    model, tokenizer = tiny
    ids = tuple(tokenizer("The quick brown fox jumps over the lazy dog.", add_special_tokens=False)["input_ids"])
    for start in (0, 1, len(ids) - 1):
        context = (tokenizer.bos_token_id, *ids[:start])
        logits = model(torch.tensor([[*context, *ids[start:]]]))[0]
        wanted = logits.log_softmax(-1)[len(context) - 1 : -1].gather(-1, torch.tensor(ids[start:])[:, None])[:, 0]
        (found,) = ScoringEngine(model).score([ScoreRequest(context_ids=context, continuation_ids=ids[start:])])
        assert found.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
        assert len(found.logprobs) == len(ids) - start


def test_p08_truncation_keeps_the_end_and_counts_what_it_cuts() -> None:
    """The last token needs no position, so max_length + 1 ids fit, and none less."""
    request = ScoreRequest(context_ids=(1, 2, 3, 4), continuation_ids=(5, 6))
    assert fit(request, 5) == (request, 0)
    assert fit(request, 4) == (ScoreRequest(context_ids=(2, 3, 4), continuation_ids=(5, 6)), 1)
    assert fit(request, 2) == (ScoreRequest(context_ids=(4,), continuation_ids=(5, 6)), 3)
    assert fit(request, 1) == (ScoreRequest(context_ids=(5,), continuation_ids=(6,)), 4)


def test_p11_sharing_changes_no_value_and_no_order(tiny: tuple[Any, Any]) -> None:
    """Pairs whose sequences are one, cut at unlike places, duplicated and shuffled: with sharing and without."""
    model, _ = tiny
    kinds = [
        ScoreRequest(context_ids=context, continuation_ids=continuation)
        for context, continuation in (((5, 6), (7, 8)), ((5, 6, 7), (8,)), ((5, 6), (7, 9)), ((5,), (6, 7, 8)))
    ]
    alone = {request: ScoringEngine(model).score([request])[0] for request in kinds}
    unshared = dict(zip(kinds, PlainScorer(model).score(kinds), strict=True))
    requests = kinds * 3
    random.Random(0).shuffle(requests)
    for request, found in zip(requests, ScoringEngine(model).score(requests), strict=True):
        assert found == alone[request]
        assert found.logprobs == pytest.approx(unshared[request].logprobs, abs=1e-5)
        assert found.is_greedy == unshared[request].is_greedy
    assert len({scores.total for scores in alone.values()}) == len(kinds)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_p10_no_bit_depends_on_company(tiny_checkpoint: Path, dtype: str) -> None:
    """32 requests of mixed lengths: alone, in fours, in sevens, together and backwards."""
    model, tokenizer = load_model(str(tiny_checkpoint), dtype=dtype, device="cpu")
    ids = tokenizer("The quick brown fox jumps over the lazy dog. " * 12, add_special_tokens=False)["input_ids"]
    requests = [
        ScoreRequest(context_ids=tuple(ids[i : i + 1 + 7 * i]), continuation_ids=tuple(ids[: 1 + i % 5]))
        for i in range(32)
    ]
    engine = ScoringEngine(model)
    together = engine.score(requests)
    assert engine.score(requests[::-1])[::-1] == together
    for size in (1, 4, 7):
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        assert [scores for part in parts for scores in engine.score(part)] == together
