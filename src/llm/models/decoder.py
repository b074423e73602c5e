"""The decoder: Llama, Mistral, Qwen2 and Qwen3 in one file, as a few named fields of DecoderConfig.

Read top to bottom. It computes tensors only: who stores keys and values, packs sequences and masks attention is the
caller's `attend`. Weights carry no gradients and element-wise steps are in place: this is for evaluation.

Shapes: B batch, T tokens, Hq query heads, Hkv key/value heads, D head_dim, V vocabulary.
"""

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor, nn

from llm.models.config import DecoderConfig, RopeScaling
from llm.models.elementwise import rms_norm, rotate
from llm.models.products import gated_linear, linear

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q (T, Hq, D), k (T, Hkv, D), v (T, Hkv, D)) -> (T, Hq * D); q and k are already rotated."""


class Linear(nn.Linear):
    """nn.Linear whose product is the project's own."""

    def reset_parameters(self) -> None:
        """Random weights, unless there is nothing to fill: torch would load its compiler for that, for a second."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    """nn.Embedding that, as Linear, leaves weights alone which hold nothing."""

    def reset_parameters(self) -> None:
        """Random weights, unless there is nothing to fill."""
        if not self.weight.is_meta:
            super().reset_parameters()


class GatedLinear(Linear):
    """Gates above, as many ups below: of their product it gives `silu(gate) * up` (Shazeer 2020)."""

    def forward(self, x: Tensor) -> Tensor:
        return gated_linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, reduced in float32 (Zhang & Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query self-attention around the caller's `attend`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        num_rotated = self.num_heads + self.num_kv_heads
        width = (num_rotated + self.num_kv_heads) * self.head_dim
        self.qkv_proj = Linear(config.hidden_size, width, bias=config.attention_bias)
        self.o_proj = Linear(self.num_heads * self.head_dim, config.hidden_size, bias=config.attention_output_bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], layer: int, attend: Attend, keep: Tensor | None
    ) -> Tensor:
        heads = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        queries_keys, v = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = queries_keys.split([self.num_heads, self.num_kv_heads], dim=1)
            queries_keys = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        q, k = rotate(queries_keys, rotation).split([self.num_heads, self.num_kv_heads], dim=1)
        return self.o_proj(attend(layer, q if keep is None else q[keep], k, v))


class MLP(nn.Module):
    """SwiGLU feed-forward (Shazeer 2020), gate and up in one product."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_up_proj = GatedLinear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.gate_up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and MLP, each normalised before and added to the stream after."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], layer: int, attend: Attend, keep: Tensor | None = None
    ) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), rotation, layer, attend, keep)
        x = x.add_(mixed) if keep is None else x[keep].add_(mixed)
        return x.add_(self.mlp(self.post_attention_layernorm(x)))


class DecoderModel(nn.Module):
    """A decoder-only transformer of the Llama family.

    Parameters are named as on the Hub without the leading `model.`, with q/k/v and gate/up fused by rows. A model
    built here holds random weights; `llm.models.load_model` fills one from a file. `num_decodable` is how many of
    the vocabulary's ids the tokenizer can decode (padded embedding rows lie above it): generation stays below it.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.num_decodable = config.vocab_size
        self._fingerprint: tuple[object, str] = (None, "")
        self.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def max_length(self) -> int:
        """The longest sequence the model was made for, in tokens."""
        return self.config.max_position_embeddings

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generation by the model's own configuration."""
        return self.config.eos_token_ids

    @property
    def fingerprint(self) -> str:
        """Identity of config, dtype and weights as 32 hex digits; the same wherever the weights came from."""
        state = sorted(self.state_dict().items())
        key = tuple((name, t.data_ptr(), 0 if t.is_inference() else t._version) for name, t in state)
        if self._fingerprint[0] != key:
            self._fingerprint = (key, state_digest(repr(replace(self.config, eos_token_ids=())), state))
        return self._fingerprint[1]

    def hidden_states(self, input_ids: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None = None) -> Tensor:
        """Final normed hidden states (T, hidden) of flat tokens: ids (T,), positions (T,), both integer.

        `attend` alone decides which tokens see which, the sliding window included. With `keep` (K,) only those rows'
        states are wanted (K, hidden): the last layer takes the others no further than their keys and values, and
        hands `attend` the kept rows' queries (K, Hq, D).
        """
        x = self.embed_tokens(input_ids)
        rotation = rotary_tables(self.config, positions, x.dtype)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, index, attend, keep if index == last else None)
        return self.norm(x)

    def project(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """Logits (N, last - first) of hidden states (N, hidden) for vocabulary ids first … last - 1, all by default.

        They are computed in the dtype of `hidden`, to which narrower weights are cast.
        """
        return linear(hidden, self.lm_head.weight[first:last].to(hidden.dtype))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T), each row causal from position 0: the plain reference path."""
        batch, length = input_ids.shape
        positions = torch.arange(length, device=input_ids.device).repeat(batch)
        mask = causal_mask(length, self.config.sliding_window, input_ids.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.unflatten(0, (batch, length)).transpose(1, 2) for x in (q, k, v))
            out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            return out.transpose(1, 2).reshape(batch * length, -1)

        hidden = self.hidden_states(input_ids.reshape(-1), positions, attend)
        return self.project(hidden).view(batch, length, -1)


def causal_mask(length: int, window: int | None, device: torch.device) -> Tensor:
    """Boolean (T, T), True where query row may see key column: itself and what precedes it, within the window."""
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril_()
    return mask if window is None else mask.triu_(1 - window)


def rotary_tables(config: DecoderConfig, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cos, sin), each (T, 1, D / 2): angles in float32 as in transformers, then cast to dtype."""
    angles = positions.float()[:, None] * inverse_frequencies(config, positions.device)
    return angles.cos().to(dtype)[:, None, :], angles.sin().to(dtype)[:, None, :]


def inverse_frequencies(config: DecoderConfig, device: torch.device) -> Tensor:
    """Radians a position turns each of the D / 2 pairs by, float32 (transformers/modeling_rope_utils.py)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_scaling is not None:
        frequencies = _scaled(frequencies, config.rope_scaling)
    return frequencies.to(device)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.rope_type == "divisors":
        return frequencies / torch.tensor(scaling.divisors)
    if scaling.rope_type == "linear":
        return frequencies / scaling.factor
    old_length = scaling.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = (old_length / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(wavelengths > old_length / low, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < old_length / high, frequencies, scaled)


def state_digest(description: str, state: list[tuple[str, Tensor]]) -> str:
    """32 hex digits of SHA-256 over a description and named tensors, dtype and shape included."""

    def one(item: tuple[str, Tensor]) -> bytes:
        name, tensor = item
        data = tensor.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()
        return f"{name} {tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data.data).hexdigest()}\n".encode()

    whole = hashlib.sha256(description.encode())
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib lets go of the interpreter
        for line in pool.map(one, state):
            whole.update(line)
    return whole.hexdigest()[:32]
