"""Causal LMs of transformers behind the decoder's interface: the engine's services where they hold, and only there."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    Olmo2Config,
    OPTConfig,
    PhiConfig,
)

from llm.models.adapter import AdaptedDecoder, LogitsModel, adapt
from llm.models.loading import load_model
from llm.scoring.plain import PlainScorer, make_scorer
from llm.scoring.requests import ScoreRequest

SMALL = {"vocab_size": 120, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {**SMALL, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
ADAPTED = {
    "gpt2": GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=128, **SMALL),
    "gpt_neox": GPTNeoXConfig(**WIDE),
    "gemma3": Gemma3TextConfig(
        **WIDE,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=5,
        layer_types=["sliding_attention"] * 2 + ["full_attention"],
    ),
    "olmo2": Olmo2Config(**WIDE, num_key_value_heads=2),
    "phi": PhiConfig(**WIDE),
    "opt": OPTConfig(
        **SMALL, hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48
    ),
}
FORWARD_ONLY = {
    "gemma2": Gemma2Config(**WIDE, num_key_value_heads=2, head_dim=8, sliding_window=5),  # soft-capped attention
    "bloom": BloomConfig(**SMALL, hidden_size=32, n_layer=2, n_head=4),  # positions added to the scores
}


def build(config) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval().float()


def requests(vocabulary: int = 120) -> list[ScoreRequest]:
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(3, vocabulary, (90,), generator=draw).tolist()
    return [
        ScoreRequest(context_ids=tuple(ids[:start]), continuation_ids=tuple(ids[start:stop]))
        for start, stop in ((1, 4), (40, 43), (40, 48), (70, 90), (88, 90))
    ]


@pytest.mark.parametrize("name", [*ADAPTED, *FORWARD_ONLY])
def test_scores_equal_the_models_own_forward(name: str) -> None:
    inner = build({**ADAPTED, **FORWARD_ONLY}[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = adapt(inner)
    assert isinstance(model, AdaptedDecoder) == (name in ADAPTED)
    own = PlainScorer(SimpleLogits(inner)).score(requests())
    for got, want in zip(make_scorer(model).score(requests()), own, strict=True):
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-4)
        assert got.is_greedy == want.is_greedy


class SimpleLogits(torch.nn.Module):
    """The model as transformers runs it, with its own attention."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inner(input_ids=ids).logits)


def test_a_model_that_cannot_take_the_engine_says_why() -> None:
    with pytest.warns(UserWarning, match="one sequence at a time"):
        model = adapt(build(FORWARD_ONLY["bloom"]))
    assert type(model) is LogitsModel
    assert model.max_length == 2048


def test_windows_of_layers_are_seen() -> None:
    model = adapt(build(ADAPTED["gemma3"]))
    assert isinstance(model, AdaptedDecoder)
    assert model.config.layer_windows == (5, 5, None)
    assert model.config.sliding_window is None


def test_a_checkpoint_folder_loads_behind_hf(tiny_checkpoint) -> None:
    adapted, tokenizer = load_model(f"hf:{tiny_checkpoint}", dtype="float32", device="cpu")
    own, _ = load_model(str(tiny_checkpoint), dtype="float32", device="cpu")
    assert tokenizer.bos_token_id is not None
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        assert (adapted(ids) - own(ids)).abs().max() <= 1e-4
    assert adapted.fingerprint == adapted.fingerprint != own.fingerprint
