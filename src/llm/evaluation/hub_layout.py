"""Reads a dataset repository the way the Hub lays it out: a README.md card whose `configs` name each split's files.

It exists so that a local folder is read without the `datasets` package and so that a bad row is reported with its
file and line, which a loaded table no longer knows. It knows nothing about any benchmark, torch or a harness.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm.errors import InputError

CARD = "README.md"
MOST_CARD_BYTES, MOST_DATA_BYTES = 16 << 20, 1 << 30
"""A card or a data file above this is refused: it would be read whole."""
DEFAULT_SPLIT = "train"  # what the Hub calls files that a card lists without a split


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One record of a split and where it stands, as an error should name it (`FILE line N`)."""

    fields: Mapping[str, Any]
    where: str


def resolve_folder(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder that a user named.

    A relative path is taken from the shell's directory ($PWD) before the process's own: Inspect changes into the
    directory of a task file while loading it, and the user meant the place where the command was typed.

    Raises:
        InputError: no such folder, or it is a file; the message names the absolute paths tried.
    """
    given = Path(folder).expanduser()
    tried = list(dict.fromkeys(Path(os.path.abspath(base / given)) for base in _bases()))
    for path in tried:
        if path.is_dir():
            return path
    places = " or ".join(str(path) for path in tried)
    problem = "is a file, not a folder" if any(path.exists() for path in tried) else "does not exist"
    raise InputError(f"data folder {places} {problem}: give 'sample', 'hub' or a folder laid out like the Hub")


def _bases() -> Iterator[Path]:
    if shell := os.environ.get("PWD"):
        yield Path(shell)
    yield Path.cwd()


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A dataset repository on disk. `configs` maps config name -> split name -> file patterns, in the card's order."""

    folder: Path
    configs: Mapping[str, Mapping[str, tuple[str, ...]]]

    def files(self, config: str, split: str) -> list[Path]:
        """The files of one split.

        Raises:
            InputError: the card has no such config or split, or names a file that does not exist.
        """
        card = self.folder / CARD
        if config not in self.configs:
            raise InputError(f"{card} has no config {config!r}: it has {_listed(self.configs)}")
        if split not in self.configs[config]:
            has = _listed(self.configs[config])
            raise InputError(f"{card} has no split {split!r} in config {config!r}: it has {has}")
        return [path for pattern in self.configs[config][split] for path in _matching(self.folder, pattern)]

    def rows(self, config: str, split: str) -> list[Row]:
        """Every record of one split, in file order.

        Raises:
            InputError: no such split, an unreadable file, or a line that is not a JSON object.
        """
        return [row for path in self.files(config, split) for row in read_rows(path)]


def open_repository(folder: Path) -> Repository:
    """Reads the card of the repository in `folder`.

    Raises:
        InputError: no card, or no usable `configs` in it.
    """
    card = folder / CARD
    if not card.is_file():
        raise InputError(
            f"no dataset card {card}: a folder laid out like the Hub has one, whose `configs` name its files"
        )
    _check_size(card, MOST_CARD_BYTES)
    try:
        return Repository(folder=folder, configs=_card_configs(card.read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        raise InputError(f"dataset card {card} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except RecursionError as error:
        raise InputError(f"dataset card {card}: its header is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"dataset card {card}: {error}") from error


def _check_size(path: Path, most: int) -> None:
    if (size := path.stat().st_size) > most:
        raise InputError(f"{path} holds {size} bytes and at most {most} are read: split it, or use a part of it")


@lru_cache(maxsize=16)
def _card_configs(card: str) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Config name -> split -> patterns out of a card's text (cached by that text: YAML is slow to parse)."""
    import yaml  # type: ignore[import-untyped]

    try:
        header = yaml.load("\n".join(_front_matter(card.splitlines())), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"its header is not YAML ({str(error).splitlines()[0]})") from error
    entries = header.get("configs") if isinstance(header, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("it has no `configs` list in its header, which names each config's data_files")
    return {str(entry.get("config_name", "default")): _splits(entry) for entry in entries}


def _front_matter(lines: Sequence[str]) -> list[str]:
    if not lines or lines[0].strip() != "---":
        return []
    end = next((i for i, line in enumerate(lines[1:], start=1) if line.strip() == "---"), len(lines))
    return list(lines[1:end])


def _splits(entry: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    prefix = f"{entry['data_dir']}/" if entry.get("data_dir") else ""
    splits: dict[str, tuple[str, ...]] = {}
    for split, patterns in _data_files(entry):
        splits[split] = splits.get(split, ()) + tuple(_inside(prefix + pattern) for pattern in patterns)
    return splits


def _inside(pattern: str) -> str:
    """The pattern, if it stays below the card's folder."""
    parts = pattern.replace("\\", "/").split("/")
    if pattern.startswith(("/", "~")) or ".." in parts or "\0" in pattern or ":" in parts[0]:
        raise ValueError(f"it names {pattern[:200]!r}, which is not a file below its own folder")
    return pattern


def _data_files(entry: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(split, patterns) pairs out of every shape that a card may give `data_files`."""
    match entry.get("data_files"):
        case str() as pattern:
            yield DEFAULT_SPLIT, (pattern,)
        case [*parts] if parts and all(isinstance(part, str) for part in parts):
            yield DEFAULT_SPLIT, tuple(parts)
        case [*parts] if parts and all(isinstance(part, dict) and _is_path(part.get("path")) for part in parts):
            for part in parts:
                path = part["path"]
                yield str(part.get("split", DEFAULT_SPLIT)), (path,) if isinstance(path, str) else tuple(path)
        case _:
            name = entry.get("config_name", "default")
            raise ValueError(f"config {name!r} needs data_files, a list of {{split, path}} entries")


def _is_path(value: Any) -> bool:
    """One pattern, or a list of them."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


def _matching(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern)) if any(c in pattern for c in "*?[") else [folder / pattern]
    if not found or not all(path.is_file() for path in found):
        raise InputError(f"{folder / CARD} names {pattern!r}, but {folder / pattern} does not exist")
    return found


def read_rows(path: Path) -> list[Row]:
    """The records of one .jsonl, .json or .parquet file.

    Raises:
        InputError: another kind of file, text that is not UTF-8 or JSON (with its line), or pyarrow missing.
    """
    _check_size(path, MOST_DATA_BYTES)
    match path.suffix:
        case ".jsonl" | ".json":
            return _json_rows(path)
        case ".parquet":
            return _parquet_rows(path)
    raise InputError(f"cannot read {path}: data files are .jsonl, .json or .parquet")


def _json_rows(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    if text[:4096].lstrip().startswith("["):
        records = _parsed(text, str(path))
        return [_row(record, f"{path} record {i}") for i, record in enumerate(records, start=1)]
    # Split at line feeds only: splitlines() would also cut at U+2028 and the like, legal inside a JSON string.
    lines = ((f"{path} line {i}", line) for i, line in enumerate(text.split("\n"), start=1) if line.strip())
    return [_row(_parsed(line, where), where) for where, line in lines]


def _parquet_rows(path: Path) -> list[Row]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow: pip install 'harness-bridge[report]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_unpacked(path, file.metadata)
            records = file.read().to_pylist()
    except InputError:
        raise
    except (OSError, ValueError, NotImplementedError, KeyError, MemoryError) as error:
        raise InputError(f"{path} is not a readable parquet file ({str(error).splitlines()[0]})") from error
    return [_row(record, f"{path} row {i}") for i, record in enumerate(records, start=1)]


def _check_unpacked(path: Path, metadata: Any) -> None:
    """A small parquet file may unpack to any size."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    size = max(sum(group.total_byte_size for group in groups), metadata.num_rows)
    if size > MOST_DATA_BYTES:
        raise InputError(f"{path} unpacks to {size} bytes and at most {MOST_DATA_BYTES} are read: use a part of it")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise InputError(f"{where} is JSON nested too deeply to be a record") from error
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{where} holds a number that cannot be read ({str(error).splitlines()[0][:80]})") from error


def _row(record: Any, where: str) -> Row:
    if not isinstance(record, dict):
        raise InputError(f"{where} is not an object with fields but {type(record).__name__}")
    return Row(fields=record, where=where)


def _listed(names: Mapping[str, Any], *, most: int = 12) -> str:
    shown = list(names)[:most]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "") if shown else "none"
