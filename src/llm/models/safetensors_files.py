"""The weights of a checkpoint folder: one model.safetensors, or shards by index. Pickle files are never read."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from llm.errors import InputError
from llm.models.small_files import small_text

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsFolder:
    """The tensors of a folder by Hub name, mapped, not loaded. `shapes` and `dtypes` are known without reading them.

    Raises:
        InputError: a file is missing, damaged, cut short or over-long, or the index and the shards disagree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: set[str] = set()
        index = _index(folder)
        for path in sorted({folder / name for name in index.values()}) if index else [_single(folder)]:
            self._open(path)
        for name, file in index.items():
            if self._file_of.get(name) != folder / file:
                raise InputError(f"{folder / file}: lacks the tensor {name} that {INDEX} says it holds")

    def tensor(self, name: str) -> Tensor:
        """The tensor as stored, read from its mapped file."""
        tensor: Tensor = self._files[str(self._file_of[name])].get_tensor(name)
        return tensor

    def path_of(self, name: str) -> Path:
        return self._file_of[name]

    def _open(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise InputError(f"{path}: the file is missing, {INDEX} names it")
        try:
            opened = safe_open(str(path), framework="pt")
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                piece = opened.get_slice(name)
                if name in self._file_of:
                    raise InputError(f"{path}: tensor {name} is also in {self._file_of[name].name}")
                self._file_of[name] = path
                self.shapes[name] = tuple(piece.get_shape())
                self.dtypes.add(piece.get_dtype())
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a whole safetensors file ({error}); fetch it again") from error
        self._files[str(path)] = opened


def _single(folder: Path) -> Path:
    path = folder / SINGLE
    if path.is_file():
        return path
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        raise InputError(
            f"{folder}: holds {pickled[0].name} but no {SINGLE}; pickle files are never read, convert it to safetensors"
        )
    raise InputError(f"{folder}: neither {SINGLE} nor {INDEX} is there")


def _index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, empty where the folder has no index or a single file beside it."""
    path = folder / INDEX
    if not path.is_file() or (folder / SINGLE).is_file():
        return {}
    try:
        weight_map = json.loads(small_text(path))["weight_map"]
        index = {str(name): str(file) for name, file in weight_map.items()}
    except InputError:
        raise
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not an index of safetensors shards (no readable weight_map)") from error
    for file in index.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"{path}: names the shard {file!r}, which is not a .safetensors file of this folder")
    return index
