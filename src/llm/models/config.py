"""The shape of a decoder as plain fields, read from a Hub `config.json` or from GGUF metadata.

Everything that cannot be computed faithfully is refused here, by name, before any weight is read. No torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from llm.errors import InputError

SUPPORTED = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Hub `model_type` -> the one architecture of that type that is computed here."""

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""GGUF `general.architecture` values that are computed here (Mistral files say llama)."""

OTHER_WAY = "any other causal LM that transformers knows can be loaded from its folder or Hub id as hf:REF"


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained length.

    `linear` divides every frequency by `factor`; `llama3` divides the low ones, leaves the high ones and blends
    between (Llama 3.1); `divisors` gives each of the head_dim / 2 frequencies its own divisor (GGUF `rope_freqs`).
    """

    rope_type: Literal["linear", "llama3", "divisors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    divisors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rope_type not in ("linear", "llama3", "divisors"):
            raise InputError(
                f"rope_type {self.rope_type!r} is not supported (default, linear, llama3 are); {OTHER_WAY}"
            )
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise InputError(f"rope scaling factor is {self.factor}: it must be a positive number")
        if self.rope_type == "llama3":
            if self.original_max_position_embeddings < 1:
                raise InputError("rope_type llama3 needs original_max_position_embeddings, a positive integer")
            if not 0 < self.low_freq_factor < self.high_freq_factor:
                raise InputError(
                    f"rope_type llama3 needs 0 < low_freq_factor < high_freq_factor, "
                    f"got {self.low_freq_factor} and {self.high_freq_factor}"
                )
        if self.rope_type == "divisors" and not all(math.isfinite(d) and d > 0 for d in self.divisors):
            raise InputError("the rotary frequency divisors (rope_freqs) must be positive numbers")


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderConfig:
    """A decoder of the Llama family; the names are those of the Hub's config.json.

    `attention_bias` puts a bias on q, k and v, `attention_output_bias` one on o, `mlp_bias` on all three of the
    MLP; `qk_norm` normalises each head of q and k before rotation (Qwen3). With `sliding_window` W a token attends
    to itself and the W - 1 tokens before it, in every layer. `eos_token_ids` are the ids that end a generation,
    beside the tokenizer's own.

    Raises:
        InputError: the fields contradict each other; the message gives both numbers.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0  # 0: as many as attention heads
    head_dim: int = 0  # 0: hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_key_value_heads == 0:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        for name in _POSITIVE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}: it must be a positive integer")
        if self.head_dim == 0:
            object.__setattr__(self, "head_dim", self._derived_head_dim())
        if self.head_dim < 2 or self.head_dim % 2:
            raise InputError(f"head_dim is {self.head_dim}: rotary embeddings need an even number")
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"num_attention_heads ({self.num_attention_heads}) is not a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise InputError(f"sliding_window is {self.sliding_window}: it must be a positive integer or null")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value!r}: it must be a positive number")
        scaling = self.rope_scaling
        if scaling is not None and scaling.divisors and len(scaling.divisors) != self.head_dim // 2:
            raise InputError(
                f"rope_freqs holds {len(scaling.divisors)} divisors, head_dim {self.head_dim} needs half as many"
            )

    def _derived_head_dim(self) -> int:
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({self.num_attention_heads}) and no head_dim is given"
            )
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read the mapping of a Hub `config.json`; raises InputError for what is missing or not computed here."""
        model_type = _supported_type(config)
        rope = _rope_fields(config)
        bias = model_type in ("llama", "qwen3") and bool(config.get("attention_bias", False))
        return cls(
            **_required(config),
            num_key_value_heads=_integer(config, "num_key_value_heads", default=0, zero_is_error=True),
            head_dim=_integer(config, "head_dim", default=_DEFAULT_HEAD_DIM.get(model_type, 0), zero_is_error=True),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=rope[0],
            rope_scaling=rope[1],
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=model_type == "qwen2" or bias,
            attention_output_bias=bias,
            mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=model_type == "qwen3",
            sliding_window=_sliding_window(config, model_type),
            eos_token_ids=token_ids(config.get("eos_token_id")),
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        rope_divisors: tuple[float, ...] = (),
    ) -> Self:
        """Read GGUF metadata. `shapes` are the tensors' (rows, columns) by GGUF name: they tell the vocabulary
        size, the tied head and the biases, which GGUF does not state; `rope_divisors` is the tensor `rope_freqs`.
        """
        arch = metadata.get("general.architecture")
        if arch not in GGUF_ARCHITECTURES:
            raise InputError(
                f"architecture {arch!r} is not supported from GGUF ({', '.join(GGUF_ARCHITECTURES)} are); {OTHER_WAY}"
            )
        fields = {key.removeprefix(f"{arch}."): value for key, value in metadata.items() if key.startswith(f"{arch}.")}
        if fields.get("expert_count"):
            raise InputError(f"a mixture of experts ({arch}.expert_count) is not supported; {OTHER_WAY}")
        heads = _uniform(fields, "attention.head_count")
        head_dim = _uniform(fields, "attention.key_length", default=0)
        config = cls(
            vocab_size=_rows(shapes, "token_embd.weight"),
            hidden_size=_uniform(fields, "embedding_length"),
            intermediate_size=_uniform(fields, "feed_forward_length"),
            num_hidden_layers=_uniform(fields, "block_count"),
            num_attention_heads=heads,
            num_key_value_heads=_uniform(fields, "attention.head_count_kv", default=heads),
            head_dim=head_dim,
            max_position_embeddings=_uniform(fields, "context_length"),
            # GGUF keeps both in float32; the shortest decimal is the number the checkpoint meant (1e-05, not 9.99e-06)
            rms_norm_eps=_shortest(fields.get("attention.layer_norm_rms_epsilon", 1e-6)),
            rope_theta=_shortest(fields.get("rope.freq_base", 10000.0)),
            rope_scaling=_gguf_scaling(fields, rope_divisors),
            tie_word_embeddings="output.weight" not in shapes,
            attention_bias="blk.0.attn_q.bias" in shapes,
            attention_output_bias="blk.0.attn_output.bias" in shapes,
            mlp_bias="blk.0.ffn_gate.bias" in shapes,
            qk_norm=arch == "qwen3",
            sliding_window=_uniform(fields, "attention.sliding_window", default=0) or None,
            eos_token_ids=token_ids(
                [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
            ),
        )
        for name in ("rope.dimension_count", "attention.value_length"):
            if (given := _uniform(fields, name, default=config.head_dim)) != config.head_dim:
                raise InputError(f"{arch}.{name} is {given} and the heads are {config.head_dim} wide: not supported")
        return config


_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_DEFAULT_HEAD_DIM = {"qwen3": 128}  # transformers' default where config.json leaves it out


def _supported_type(config: Mapping[str, Any]) -> str:
    """The model_type, once everything that would change the arithmetic is known to be computed here."""
    model_type = config.get("model_type")
    architectures = tuple(config.get("architectures") or ())
    if model_type not in SUPPORTED:
        raise InputError(
            f"architecture {'/'.join(architectures) or model_type} (model_type {model_type!r}) is not supported: "
            f"{', '.join(SUPPORTED.values())} are; {OTHER_WAY}"
        )
    if architectures and SUPPORTED[model_type] not in architectures:
        raise InputError(f"architecture {architectures[0]} is not supported: {', '.join(SUPPORTED.values())} are")
    if (method := config.get("quantization_config")) is not None:
        name = method.get("quant_method", "unknown") if isinstance(method, Mapping) else method
        raise InputError(f"weights quantised with {name!r} are not supported from a checkpoint folder; {OTHER_WAY}")
    if (act := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise InputError(f"hidden_act {act!r} is not supported: silu is; {OTHER_WAY}")
    return str(model_type)


def _required(config: Mapping[str, Any]) -> dict[str, int]:
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    )
    missing = [name for name in names if config.get(name) is None]
    if missing:
        raise InputError(f"config.json lacks {', '.join(missing)}")
    return {name: config[name] for name in names}


def _integer(config: Mapping[str, Any], name: str, *, default: int, zero_is_error: bool) -> int:
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or (zero_is_error and value < 1):
        raise InputError(f"{name} is {value!r}: it must be a positive integer or left out")
    return value


def _rope_fields(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """rope_theta and scaling: `rope_parameters` (transformers 5) first, then the older top-level spelling."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    theta = 10000.0 if theta is None else theta
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise InputError(f"partial_rotary_factor {partial} is not supported: heads are rotated whole; {OTHER_WAY}")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type == "default":
        return float(theta), None
    if rope_type == "linear":
        return float(theta), RopeScaling(rope_type="linear", factor=_number(rope, "factor"))
    if rope_type != "llama3":
        raise InputError(f"rope_type {rope_type!r} is not supported (default, linear, llama3 are); {OTHER_WAY}")
    original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    return float(theta), RopeScaling(
        rope_type="llama3",
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_max_position_embeddings=int(original or 0),
    )


def _number(rope: Mapping[str, Any], name: str) -> float:
    value = rope.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"rope scaling needs {name}, a number, got {value!r}")
    return float(value)


def _sliding_window(config: Mapping[str, Any], model_type: str) -> int | None:
    """The window all layers share; Qwen's `use_sliding_window` puts one on the layers past max_window_layers."""
    window = config.get("sliding_window", 4096)  # transformers' default where config.json leaves it out
    if window is None or model_type == "llama":
        return None
    if model_type == "mistral":
        return int(window)
    if not config.get("use_sliding_window", False):
        return None
    layers = config["num_hidden_layers"]
    full = config.get("max_window_layers", 28)
    types = config.get("layer_types") or ["full_attention" if i < full else "sliding_attention" for i in range(layers)]
    kinds = set(types)
    if len(kinds) > 1:
        raise InputError(f"a sliding window on only some of the layers is not supported; {OTHER_WAY}")
    return int(window) if kinds == {"sliding_attention"} else None


def token_ids(value: Any) -> tuple[int, ...]:
    """One id, a list of ids or nothing, as a tuple without repeats."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(int(v) for v in values if v is not None))


def _uniform(fields: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """An integer field; GGUF may give one a layer, which must then all be equal."""
    value = fields.get(name, default)
    if value is None:
        raise InputError(f"the GGUF metadata lacks {name}")
    values = set(value) if isinstance(value, list | tuple) else {value}
    if len(values) != 1:
        raise InputError(f"{name} differs from layer to layer: not supported; {OTHER_WAY}")
    return int(values.pop())


def _rows(shapes: Mapping[str, tuple[int, ...]], name: str) -> int:
    if name not in shapes:
        raise InputError(f"the GGUF file lacks the tensor {name}")
    return shapes[name][0]


def _shortest(value: float) -> float:
    """The decimal with the fewest digits that rounds to the same float32."""
    import numpy as np

    return float(str(np.float32(value)))


def _gguf_scaling(fields: Mapping[str, Any], divisors: tuple[float, ...]) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type", "linear" if "rope.scale_linear" in fields else "none")
    factor = float(fields.get("rope.scaling.factor", fields.get("rope.scale_linear", 1.0)))
    if kind not in ("none", "linear"):
        raise InputError(f"rope.scaling.type {kind!r} is not supported (none, linear are); {OTHER_WAY}")
    if kind == "linear" and factor != 1.0:
        if divisors:
            raise InputError("linear rope scaling together with rope_freqs is not supported")
        return RopeScaling(rope_type="linear", factor=factor)
    return RopeScaling(rope_type="divisors", divisors=divisors) if divisors else None
