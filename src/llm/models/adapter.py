"""Every other causal LM that transformers loads, behind the decoder's own interface (`hf:REF`).

transformers lets a caller register an attention function. Ours hands queries, keys and values to the caller's
`attend`, so flat packs, shared prefixes and exact tiles work on models this project has no code for. Whether that
holds for a given architecture is not assumed: the adapter compares itself with the model's own forward when it is
built. A model that answers differently (other masks, scores added to attention, scaled logits) keeps its own forward
and its own cache, so that a context is still computed once for its continuations; one whose cache does not hold either
is scored a sequence at a time.
"""

import contextlib
import copy
import inspect
import json
import math
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from llm.errors import InputError
from llm.models.checkpoints import check_finite
from llm.models.config import token_ids
from llm.models.decoder import Attend, causal_mask, state_digest
from llm.models.gguf_files import GGUFFile
from llm.models.tokenizer import gguf_tokenizer

_IMPLEMENTATION = "harness_bridge"
_PROBE_LENGTHS = (9, 6)
_TOLERANCE = 1e-3

_current = threading.local()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """The shape of an adapted model, named as in DecoderConfig; `layer_windows` is each layer's sliding window."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    layer_windows: tuple[int | None, ...]

    @property
    def sliding_window(self) -> int | None:
        """The window all layers share, None when they have none or differ."""
        return self.layer_windows[0] if len(set(self.layer_windows)) == 1 else None


class LogitsModel(nn.Module):
    """A transformers causal LM through its own forward alone: ids (B, T) to logits (B, T, V)."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.num_decodable = int(inner.get_output_embeddings().weight.shape[0])
        self._fingerprint: str | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.inner.dtype

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def max_length(self) -> int:
        """The longest sequence the model was made for, in tokens (lm-eval's HFLM looks for the same names)."""
        return _max_length(self.inner.config)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generation by the model's own configuration."""
        return token_ids(getattr(self.inner.generation_config, "eos_token_id", None))

    @property
    def fingerprint(self) -> str:
        """Identity of config, dtype and weights as 32 hex digits."""
        if self._fingerprint is None:
            description = self.inner.config.to_dict()
            for name in ("_name_or_path", "transformers_version"):  # where it lay and what read it are not what it is
                description.pop(name, None)
            state = sorted(self.inner.state_dict().items())
            self._fingerprint = state_digest(json.dumps(description, sort_keys=True, default=str), state)
        return self._fingerprint

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits (B, T, V) of ids (B, T)."""
        return self.inner(input_ids=input_ids, use_cache=False).logits


class ContextModel(LogitsModel):
    """The same, with transformers' own cache of a context to go on from."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._takes = inspect.signature(inner.forward).parameters
        self._cache = "cache" if "cache" in self._takes else "past_key_values"  # as before transformers 5.24

    def prefill(self, ids: Tensor) -> tuple[Tensor, Any]:
        """Logits (1, V) after a context of ids (T,), and the state to extend."""
        few = {"logits_to_keep": 1} if "logits_to_keep" in self._takes else {}
        output = self.inner(input_ids=ids[None], use_cache=True, **few)
        state = getattr(output, self._cache, None)
        if state is None:
            raise NotImplementedError("a forward pass that keeps nothing")
        return output.logits[0, -1:], state

    def extend(self, state: Any, ids: Tensor) -> Tensor:
        """Logits (T, V) of ids (T,) that follow the state's context; the state stays as it is."""
        kept = {self._cache: copy.deepcopy(state)}
        return self.inner(input_ids=ids[None], use_cache=True, **kept).logits[0]


class AdaptedDecoder(LogitsModel):
    """The same, with `hidden_states` and `project` for the scoring engine."""

    def __init__(self, inner: Any, config: AdapterConfig) -> None:
        super().__init__(inner)
        self.config = config

    def hidden_states(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final normed hidden states (T, hidden) of flat tokens: ids (T,), positions (T,)."""
        with _attending(self.inner, attend):
            output = self.inner.base_model(input_ids=input_ids[None], position_ids=positions[None], use_cache=False)
        return output.last_hidden_state[0]

    def project(self, hidden: Tensor) -> Tensor:
        """Logits (N, V) of hidden states (N, hidden)."""
        return self.inner.get_output_embeddings()(hidden)


def load_hf(ref: str, dtype: torch.dtype, device: torch.device) -> tuple[LogitsModel, Any]:
    """The model and tokenizer transformers loads from a folder, a GGUF file or a Hub id; never with remote code.

    Raises InputError when transformers cannot load it as a causal LM from safetensors or GGUF, or lacks weights for it.
    """
    path = Path(ref).expanduser()
    if path.suffix == ".gguf":
        file = GGUFFile(path)
        tokenizer = gguf_tokenizer(file.metadata, path)
        with TemporaryDirectory(prefix="harness-bridge-") as folder:
            file.copy_without_vocabulary(Path(folder) / path.name)
            vocab_size = len(file.metadata["tokenizer.ggml.tokens"])
            inner = _from_pretrained(ref, folder, dtype, gguf_file=path.name, vocab_size=vocab_size)
    else:
        where = str(path) if path.exists() else ref
        tokenizer = _tokenizer(ref, where)
        inner = _from_pretrained(ref, where, dtype, use_safetensors=True)
    return adapt(inner.to(device).eval()), tokenizer


def _from_pretrained(ref: str, where: str, dtype: torch.dtype, **how: Any) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings are of a vocabulary left out and of weights, judged below
    try:
        inner, report = AutoModelForCausalLM.from_pretrained(
            where, dtype=dtype, trust_remote_code=False, output_loading_info=True, **how
        )
    except Exception as error:  # transformers raises whatever its parts raise
        raise _cannot_load(ref, error) from error
    finally:
        logging.enable_progress_bar()
        logging.set_verbosity(verbosity)
    for name, tensor in inner.state_dict().items():
        if tensor.is_floating_point():
            check_finite(tensor, f"{ref}: {name}")
    missing = sorted(report["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise InputError(f"{ref}: {len(missing)} weights of {type(inner).__name__} are not there (first: {missing[0]})")
    return inner


def _tokenizer(ref: str, where: str) -> Any:
    """The tokenizer saved beside the weights."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever its parts raise
        raise _cannot_load(ref, error) from error


def _cannot_load(ref: str, error: Exception) -> InputError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(f"transformers cannot load {ref!r} as a causal LM: {reason}")


def adapt(inner: Any) -> LogitsModel:
    """A transformers causal LM with the engine's services where they are proven to hold, else its forward alone."""
    inner.requires_grad_(False)
    try:
        config = _probe(inner)
        adapted = AdaptedDecoder(inner, config)
        difference = _difference(adapted)
    except Exception as error:  # an architecture may fail anywhere in its own code
        return _plain(inner, f"it does not take a caller's attention ({type(error).__name__})")
    if not difference <= _tolerance(adapted):
        return _plain(inner, f"its logits would differ by {difference:.2g}")
    return adapted


def _plain(inner: Any, reason: str) -> LogitsModel:
    model = ContextModel(inner)
    with contextlib.suppress(Exception):  # an architecture may fail anywhere in its own code
        if _context_difference(model) <= _tolerance(model):
            warnings.warn(f"{type(inner).__name__} is scored one context at a time: {reason}", stacklevel=3)
            return model
    warnings.warn(f"{type(inner).__name__} is scored one sequence at a time: {reason}", stacklevel=3)
    return LogitsModel(inner)


def _tolerance(model: LogitsModel) -> float:
    return _TOLERANCE * (1 if model.dtype == torch.float32 else 100)


@torch.inference_mode()
def _context_difference(model: ContextModel) -> float:
    """Largest difference between the model's own logits of a sequence and those of its second part after the first.

    The first part is extended twice: a cache that extending changes would answer differently the second time.
    """
    ids, _ = _probe_pack(model.inner)
    context, tail = ids.split(list(_PROBE_LENGTHS))
    own = model(ids[None])[0, len(context) - 1 :]
    first, state = model.prefill(context)
    model.extend(state, tail.flip(0))
    found = torch.cat([first, model.extend(state, tail)])
    return float((found.float() - own.float()).abs().max())


class _attending:  # noqa: N801 - used as a function
    """While inside, the model's attention is the caller's `attend`."""

    def __init__(self, inner: Any, attend: Attend) -> None:
        from transformers import AttentionInterface

        AttentionInterface.register(_IMPLEMENTATION, _hand_over)
        self.inner, self.attend = inner, attend

    def __enter__(self) -> None:
        self.before = self.inner.config._attn_implementation
        self.inner.set_attn_implementation(_IMPLEMENTATION)
        _current.attend = self.attend

    def __exit__(self, *exception: object) -> None:
        _current.attend = None
        self.inner.set_attn_implementation(self.before)


def _hand_over(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """transformers' attention function: (1, H, T, D) in, (1, T, H, D) out; `attend` scales by D ** -0.5 itself."""
    if attention_mask is not None or settings.get("softcap") or settings.get("s_aux") is not None:
        raise NotImplementedError("attention with a mask, a soft cap or sinks of its own")
    scaling = settings.get("scaling")
    head_dim = query.shape[-1]
    if scaling is not None and not math.isclose(scaling, head_dim**-0.5):
        query = query * (scaling * head_dim**0.5)
    flat = [x[0].transpose(0, 1) for x in (query, key, value)]
    observe: Callable[..., None] | None = getattr(_current, "observe", None)
    if observe is not None:
        observe(module.layer_idx, flat[0], flat[1], settings.get("sliding_window"))
    out = _current.attend(module.layer_idx, *flat)
    return out.view(1, query.shape[2], query.shape[1], value.shape[-1]), None


@torch.inference_mode()
def _probe(inner: Any) -> AdapterConfig:
    """The model's shape, seen in one short forward rather than read from config names that differ by family."""
    seen: dict[int, tuple[int, int, int, int | None]] = {}

    def observe(layer: int, q: Tensor, k: Tensor, window: int | None) -> None:
        seen[layer] = (q.shape[1], k.shape[1], q.shape[2], window)

    ids, positions = _probe_pack(inner)
    _current.observe = observe
    try:
        with _attending(inner, _separate_sequences({})):
            hidden = inner.base_model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
    finally:
        _current.observe = None
    shapes = {shape[:3] for shape in seen.values()}
    if len(shapes) != 1 or sorted(seen) != list(range(len(seen))):
        raise NotImplementedError("layers of unlike shapes")
    (num_heads, num_kv_heads, head_dim) = shapes.pop()
    return AdapterConfig(
        model_type=inner.config.model_type,
        vocab_size=inner.get_output_embeddings().weight.shape[0],
        hidden_size=hidden.last_hidden_state.shape[-1],
        num_hidden_layers=len(seen),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=_max_length(inner.config),
        layer_windows=tuple(seen[layer][3] for layer in range(len(seen))),
    )


@torch.inference_mode()
def _difference(adapted: AdaptedDecoder) -> float:
    """Largest difference between the model's own logits of two sequences and those of both packed flat."""
    ids, positions = _probe_pack(adapted.inner)
    windows = dict(enumerate(adapted.config.layer_windows))
    packed = adapted.project(adapted.hidden_states(ids, positions, _separate_sequences(windows)))
    own = torch.cat([adapted(part[None])[0] for part in ids.split(list(_PROBE_LENGTHS))])
    return float((packed.float() - own.float()).abs().max())


def _probe_pack(inner: Any) -> tuple[Tensor, Tensor]:
    """Ids and positions (T,) of two short sequences side by side."""
    vocabulary = inner.get_input_embeddings().weight.shape[0]
    total = sum(_PROBE_LENGTHS)
    ids = torch.linspace(3, min(vocabulary, 5000) - 1, total).long().to(inner.device)
    positions = torch.cat([torch.arange(length) for length in _PROBE_LENGTHS]).to(inner.device)
    return ids, positions


def _separate_sequences(windows: dict[int, int | None]) -> Attend:
    """Plain causal attention over the probe's sequences, neither seeing the other."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for rows in zip(*(x.split(list(_PROBE_LENGTHS)) for x in (q, k, v)), strict=True):
            heads = [x.transpose(0, 1)[None] for x in rows]
            mask = causal_mask(heads[0].shape[2], windows.get(layer), q.device)
            q_heads, k_heads, v_heads = heads
            out = nn.functional.scaled_dot_product_attention(q_heads, k_heads, v_heads, attn_mask=mask, enable_gqa=True)
            parts.append(out[0].transpose(0, 1).flatten(1))
        return torch.cat(parts)

    return attend


def _max_length(config: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 2048
