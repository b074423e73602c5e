"""Reading a GGUF file: its metadata, and its tensors one by one as float32 under their Hub names.

The header is parsed here, strictly, because a broken file must give one sentence and because the gguf package's reader
takes seconds over a vocabulary; the dequantisation is the gguf package's, every type it knows.
Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm.errors import InputError
from llm.models.checkpoints import WeightSource
from llm.models.config import DecoderConfig

MAGIC = b"GGUF"
_TOKENIZER = "tokenizer.ggml."
ROPE_DIVISORS = "rope_freqs.weight"
_STRING, _ARRAY = 8, 9
_MOST_NESTED = 4
_MOST_VALUES = 1 << 24
"""Of one list in the header; the longest lists there are, vocabularies and merges, have under a million."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class GGUFTensor:
    """Where one tensor lies: shape (rows, columns), GGML type number, bytes from and length in the file."""

    shape: tuple[int, ...]
    ggml_type: int
    start: int
    num_bytes: int


class GGUFFile:
    """An open GGUF file. `metadata` maps keys to values, `tensors` GGUF names to places in the file.

    Raises:
        InputError: not GGUF, cut short, over-long, or of a type the gguf package cannot dequantise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 24:
                raise InputError(f"{path}: not a GGUF file, it holds {size} bytes")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        cursor = _Cursor(self._data, path)
        self.metadata = cursor.header()
        self._spans, self._infos_start = cursor.spans, cursor.at
        self.tensors = _places(cursor, self.metadata)
        self._infos_end = cursor.at

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def matrix_types(self) -> set[str]:
        """The GGML types of the tensors with more than one dimension."""
        from gguf import GGMLQuantizationType

        return {GGMLQuantizationType(t.ggml_type).name for t in self.tensors.values() if len(t.shape) > 1}

    def copy_without_vocabulary(self, path: Path) -> None:
        """Write the same file without its tokenizer's lists; the tensors are those of this one, byte for byte.

        transformers walks a GGUF header value by value, twice, in Python: a vocabulary of 262,144 pieces costs it most
        of a minute, and this project reads the tokenizer itself.
        """
        lists = {key for key, value in self.metadata.items() if key.startswith(_TOKENIZER) and isinstance(value, list)}
        kept = [self._data[slice(*span)] for key, span in self._spans.items() if key not in lists]
        counts = struct.pack("<QQ", len(self.tensors), len(kept))
        header = b"".join([self._data[:8], counts, *kept, self._data[self._infos_start : self._infos_end]])
        alignment = int(self.metadata.get("general.alignment", 32))
        with path.open("wb") as file:
            file.write(header)
            file.write(bytes(-len(header) % alignment))
            first = -(-self._infos_end // alignment) * alignment
            with memoryview(self._data) as data:
                file.write(data[first:])

    def weight_source(self, config: DecoderConfig) -> WeightSource:
        """The tensors under their Hub names, Llama's q and k rows back in the Hub's order."""
        names = {hub_name(name) or name: name for name in self.tensors if name != ROPE_DIVISORS}
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        permuted = heads if self.metadata["general.architecture"] == "llama" else {}

        def read(name: str) -> Tensor:
            array = self.array(names[name])
            num_heads = permuted.get(names[name].split(".")[-2])
            return torch.from_numpy(array if num_heads is None else unpermuted(array, num_heads))

        shapes = {hub: self.tensors[name].shape for hub, name in names.items()}
        return WeightSource(shapes=shapes, read=read, where=lambda name: self.path, path=self.path)

    def array(self, name: str) -> np.ndarray:
        """The tensor of that GGUF name, dequantised to float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        place = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, place.num_bytes, place.start)
        kind = GGMLQuantizationType(place.ggml_type)
        try:
            flat = _dequantize_halves(raw, kind.name)
            if flat is None:
                rows = raw.reshape(-1, place.num_bytes // max(1, int(np.prod(place.shape[:-1]))))
                flat = dequantize(rows, kind)
        except NotImplementedError:
            raise InputError(
                f"{self.path}: tensor {name} is of type {kind.name}, which gguf cannot dequantise"
            ) from None
        return flat.reshape(place.shape)


def _dequantize_halves(raw: np.ndarray, kind: str) -> np.ndarray | None:
    """The unquantised types at memory speed; None for the others."""
    if kind == "F32":
        return raw.view(np.float32)
    if kind == "F16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "F64":
        return raw.view(np.float64).astype(np.float32)
    if kind == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return None


def hub_name(name: str) -> str | None:
    """The Hub's name of a GGUF tensor, None where it has none."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        return None
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def unpermuted(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a Llama q or k projection in the Hub's order: GGUF interleaves the two rotary halves of each head."""
    halves = array.reshape(num_heads, -1, 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


class _Cursor:
    """A bounds-checked reader of little-endian values."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0
        self.num_tensors = 0
        self.spans: dict[str, tuple[int, int]] = {}
        """Where each key and its value stand in the file: first byte, and the one after the last."""

    def header(self) -> dict[str, Any]:
        if self.data[:4] != MAGIC:
            raise InputError(f"{self.path}: not a GGUF file (it starts with {self.data[:4]!r})")
        self.at = 4
        version = self.scalar("I")
        if version not in (2, 3):
            raise InputError(f"{self.path}: GGUF version {version} is not supported, 2 and 3 are")
        self.num_tensors, num_keys = self.scalar("Q"), self.scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            start, key = self.at, self.string()
            metadata[key] = self.value(self.scalar("I"))
            self.spans[key] = (start, self.at)
        return metadata

    def scalar(self, code: str) -> Any:
        return self.scalars(code, 1)[0]

    def scalars(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{code}") * count
        self.need(size)
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += size
        return values

    def string(self) -> str:
        size = self.scalar("Q")
        self.need(size)
        text = self.data[self.at : self.at + size]
        self.at += size
        return text.decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(self.code(kind))
        inner, count = self.scalar("I"), self.scalar("Q")
        if count > _MOST_VALUES or depth >= _MOST_NESTED:
            what = f"a list of {count} values" if count > _MOST_VALUES else f"lists in lists {depth + 1} deep"
            raise InputError(f"{self.path}: the GGUF header holds {what}; the file is damaged")
        if inner in (_STRING, _ARRAY):
            self.need(count * 8)
            return [self.value(inner, depth + 1) for _ in range(count)]
        return list(self.scalars(self.code(inner), count)) if count else []

    def code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise InputError(f"{self.path}: the GGUF header holds an unknown value type {kind}; the file is damaged")
        return _SCALARS[kind]

    def need(self, size: int) -> None:
        if self.at + size > len(self.data):
            raise InputError(f"{self.path}: the GGUF header runs past the end of the file; the file is cut short")


def _places(cursor: _Cursor, metadata: Mapping[str, Any]) -> dict[str, GGUFTensor]:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    listed = []
    for _ in range(cursor.num_tensors):
        name, num_dims = cursor.string(), cursor.scalar("I")
        if num_dims > 4:
            raise InputError(f"{cursor.path}: tensor {name} has {num_dims} dimensions; the file is damaged")
        shape = tuple(reversed(cursor.scalars("Q", num_dims)))
        listed.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise InputError(f"{cursor.path}: general.alignment is {str(alignment)[:40]!r}; the file is damaged")
    base = -(-cursor.at // alignment) * alignment
    places = {}
    for name, shape, kind, offset in listed:
        if kind not in iter(GGMLQuantizationType):
            raise InputError(f"{cursor.path}: tensor {name} is of the unknown GGML type {kind}")
        if name in places:
            raise InputError(f"{cursor.path}: tensor {name} is listed twice; the file is damaged")
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        count = int(np.prod(shape, dtype=object)) if shape else 1
        if shape and shape[-1] % block:
            raise InputError(f"{cursor.path}: the rows of tensor {name} do not fill whole blocks of {block}")
        places[name] = GGUFTensor(
            shape=shape, ggml_type=kind, start=base + offset, num_bytes=count // block * block_bytes
        )
    _check_extent(cursor.path, places, len(cursor.data), alignment)
    return places


def _check_extent(path: Path, places: Mapping[str, GGUFTensor], size: int, alignment: int) -> None:
    """No two tensors share a byte, and the last one ends where the file does, but for padding."""
    end = max((place.start + place.num_bytes for place in places.values()), default=size)
    if end > size:
        raise InputError(f"{path}: the tensors need {end} bytes, the file holds {size}; it is cut short")
    if size - end >= max(alignment, 32):
        raise InputError(f"{path}: {size - end} bytes follow the last tensor; the file is over-long")
    ordered = sorted((place.start, place.start + place.num_bytes, name) for name, place in places.items())
    for (_, stop, name), (start, _, following) in pairwise(ordered):
        if start < stop:
            raise InputError(f"{path}: the tensors {name} and {following} overlap; the file is damaged")
