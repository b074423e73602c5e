"""Causal LMs of transformers behind the decoder's interface: the engine's services where they hold, and only there."""

import shutil
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    Olmo2Config,
    OPTConfig,
    PhiConfig,
)

from llm.errors import InputError
from llm.models.adapter import AdaptedDecoder, ContextModel, LogitsModel, adapt
from llm.models.gguf_files import GGUFFile
from llm.models.loading import load_model, load_tokenizer
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
    assert type(model) is (AdaptedDecoder if name in ADAPTED else ContextModel)
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
    with pytest.warns(UserWarning, match=r"one context at a time: it does not take a caller's attention|would differ"):
        model = adapt(build(FORWARD_ONLY["bloom"]))
    assert model.max_length == 2048


@pytest.mark.filterwarnings("ignore:.*one context at a time")
@pytest.mark.parametrize("name", FORWARD_ONLY)
def test_a_context_is_computed_once_and_company_changes_no_bit(name: str) -> None:
    model = adapt(build(FORWARD_ONLY[name]))
    ids = tuple(range(3, 60))
    asked = [
        ScoreRequest(context_ids=ids[:start], continuation_ids=(last, *ids[:length]))
        for start, length in ((40, 0), (50, 3))
        for last in (70, 71, 72)
    ]
    lengths: list[int] = []
    model.inner.register_forward_pre_hook(
        lambda _module, _args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    together = make_scorer(model).score(asked)
    assert lengths == [40, 50, 3, 3, 3]
    assert [make_scorer(model).score([request])[0] for request in reversed(asked)] == together[::-1]


class Forgetful(GPT2LMHeadModel):
    """Its cache misses the last token, and its attention takes no caller's."""

    def set_attn_implementation(self, *_args: object, **_kwargs: object) -> None:
        raise ValueError("not here")

    def forward(self, *args: object, cache: Any = None, **kwargs: Any) -> Any:
        if cache is not None:
            cache.crop(cache.get_seq_length() - 1)
        return super().forward(*args, cache=cache, **kwargs)


def test_a_cache_that_does_not_hold_is_not_used() -> None:
    with pytest.warns(UserWarning, match="one sequence at a time: it does not take a caller's attention"):
        model = adapt(Forgetful(ADAPTED["gpt2"]).eval().float())
    assert type(model) is LogitsModel


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


def test_the_fingerprint_is_of_the_model_not_of_its_place(tiny_checkpoint, tmp_path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path / "elsewhere")
    one, two = (load_model(f"hf:{folder}", device="cpu")[0] for folder in (tiny_checkpoint, tmp_path / "elsewhere"))
    assert one.fingerprint == two.fingerprint


def test_weights_that_are_not_there_are_named(tiny_checkpoint, tmp_path) -> None:
    """transformers would fill them with random numbers and go on."""
    folder = tmp_path / "incomplete"
    shutil.copytree(tiny_checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights of LlamaForCausalLM are not there \(first: model.layers.1.mlp.up"):
        load_model(f"hf:{folder}", device="cpu")


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_a_gguf_file_behind_hf(family, twin, write_gguf, largest_difference) -> None:
    _, theirs = twin(family)
    path = write_gguf(theirs, arch=family.lower())
    ours, tokenizer = load_model(f"hf:{path}", dtype="float32", device="cpu")
    assert isinstance(ours, AdaptedDecoder)
    assert largest_difference(ours, theirs) <= 1e-4
    assert tokenizer("ab").input_ids == load_tokenizer(str(path))("ab").input_ids


def test_the_copy_for_transformers_lacks_the_vocabulary_only(twin, write_gguf, tmp_path) -> None:
    path = write_gguf(twin()[1], kind="F16")
    whole = GGUFFile(path)
    whole.copy_without_vocabulary(tmp_path / "copy.gguf")
    copy = GGUFFile(tmp_path / "copy.gguf")
    gone = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}
    assert copy.metadata == {key: value for key, value in whole.metadata.items() if key not in gone}
    assert copy.shapes == whole.shapes
    assert all((copy.array(name) == whole.array(name)).all() for name in whole.shapes)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    from benchmarks.twins import ARCHITECTURES, make_twin

    make_twin(ARCHITECTURES["gpt2"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 5] = value
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"transformer\.h\.1\.mlp\.c_fc\.weight holds values that are not finite"):
        load_model(f"hf:{tmp_path}")
