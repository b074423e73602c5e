"""Filling a decoder from named tensors, whatever file they come from, one tensor at a time.

Tensors are named as on the Hub. Names and shapes are compared before any weight is read.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from llm.errors import InputError
from llm.models.config import DecoderConfig
from llm.models.decoder import DecoderModel

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # old checkpoints store this table


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """Tensors behind a file: `shapes` by Hub name, `read` gives one, `where` names its file for messages."""

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    where: Callable[[str], Path]
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slot:
    """A Hub tensor's place: rows [start, start + shape[0]) of a parameter of ours."""

    parameter: str
    start: int
    shape: tuple[int, ...]


def load_decoder(
    config: DecoderConfig, source: WeightSource, *, dtype: torch.dtype, device: torch.device
) -> DecoderModel:
    """A decoder with the source's weights in dtype on device; memory beyond the model's own is one tensor.

    Raises:
        InputError: a tensor is missing, superfluous, of another shape, not floating point or not finite.
    """
    _check_layers(config, source)
    slots = hub_slots(config)
    _compare(config, slots, source)
    with torch.device("meta"):
        model = DecoderModel(config)
    empty = {name: torch.empty(p.shape, dtype=dtype, device=device) for name, p in model.named_parameters()}
    model.load_state_dict(empty, strict=False, assign=True)  # of two names of one tensor it has the first
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, slot in slots.items():
        if name == HEAD and config.tie_word_embeddings:
            _check_same_head(source)
            continue
        target = parameters[slot.parameter][slot.start : slot.start + slot.shape[0]]
        target.copy_(_finite(source, name))
    return model


def hub_slots(config: DecoderConfig) -> dict[str, _Slot]:
    """Every tensor of a Hub checkpoint of this config and the parameter rows it fills."""
    hidden, wide = config.hidden_size, config.intermediate_size
    slots = {
        EMBEDDING: _Slot(parameter="embed_tokens.weight", start=0, shape=(config.vocab_size, hidden)),
        "model.norm.weight": _Slot(parameter="norm.weight", start=0, shape=(hidden,)),
        HEAD: _Slot(parameter="lm_head.weight", start=0, shape=(config.vocab_size, hidden)),
    }
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    fused = {  # Hub projection -> (our projection, first row, rows, columns, has a bias)
        "self_attn.q_proj": ("self_attn.qkv_proj", 0, q, hidden, config.attention_bias),
        "self_attn.k_proj": ("self_attn.qkv_proj", q, kv, hidden, config.attention_bias),
        "self_attn.v_proj": ("self_attn.qkv_proj", q + kv, kv, hidden, config.attention_bias),
        "self_attn.o_proj": ("self_attn.o_proj", 0, hidden, q, config.attention_output_bias),
        "mlp.gate_proj": ("mlp.gate_up_proj", 0, wide, hidden, config.mlp_bias),
        "mlp.up_proj": ("mlp.gate_up_proj", wide, wide, hidden, config.mlp_bias),
        "mlp.down_proj": ("mlp.down_proj", 0, hidden, wide, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    for layer in range(config.num_hidden_layers):
        for theirs, (ours, start, rows, columns, bias) in fused.items():
            name = f"layers.{layer}.{ours}"
            slots[f"model.layers.{layer}.{theirs}.weight"] = _Slot(
                parameter=f"{name}.weight", start=start, shape=(rows, columns)
            )
            if bias:
                slots[f"model.layers.{layer}.{theirs}.bias"] = _Slot(
                    parameter=f"{name}.bias", start=start, shape=(rows,)
                )
        for norm, size in norms.items():
            name = f"layers.{layer}.{norm}.weight"
            slots[f"model.{name}"] = _Slot(parameter=name, start=0, shape=(size,))
    return slots


def _check_layers(config: DecoderConfig, source: WeightSource) -> None:
    """Before a name is made for each tensor of each layer: an absurd number of them would fill the memory."""
    if config.num_hidden_layers > len(source.shapes):
        raise InputError(
            f"{source.path}: num_hidden_layers is {config.num_hidden_layers}, and the weights hold "
            f"{len(source.shapes)} tensors in all: too few for so many layers"
        )


def _compare(config: DecoderConfig, slots: dict[str, _Slot], source: WeightSource) -> None:
    if HEAD not in source.shapes:
        if not config.tie_word_embeddings:
            raise InputError(
                f"{source.path}: {HEAD} is missing and tie_word_embeddings is false; "
                "set it to true in config.json if the head is the embedding"
            )
        del slots[HEAD]
    missing = [name for name in slots if name not in source.shapes]
    if missing:
        raise InputError(f"{source.path}: {_some(missing)} missing from the weights")
    extra = [name for name in source.shapes if name not in slots and not _DERIVED.fullmatch(name)]
    if extra:
        raise InputError(f"{source.path}: the weights hold {_some(extra)}, which this architecture does not have")
    for name, slot in slots.items():
        if tuple(source.shapes[name]) != slot.shape:
            raise InputError(
                f"{source.where(name)}: {name} has shape {tuple(source.shapes[name])}, the config asks for {slot.shape}"
            )


def _some(names: list[str]) -> str:
    rest = len(names) - 1
    return names[0] if not rest else f"{names[0]} and {rest} more tensors"


def _finite(source: WeightSource, name: str) -> Tensor:
    tensor = source.read(name)
    if not tensor.is_floating_point():
        raise InputError(f"{source.where(name)}: {name} is stored as {tensor.dtype}, floating point is needed")
    check_finite(tensor, f"{source.where(name)}: {name}")
    return tensor


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse weights that hold NaN or infinities.

    Raises:
        InputError: `name` holds values that are not finite.
    """
    # a sum is finite only if every term is, and is one pass without a temporary; a huge finite sum is looked at again
    if not torch.isfinite(tensor.sum(dtype=torch.float32)) and not torch.isfinite(tensor).all():
        raise InputError(f"{name} holds values that are not finite numbers")


def _check_same_head(source: WeightSource) -> None:
    if not torch.equal(source.read(HEAD), source.read(EMBEDDING)):
        raise InputError(
            f"{source.where(HEAD)}: tie_word_embeddings is true but {HEAD} differs from the embedding; "
            "set it to false in config.json to use the head that is stored"
        )
