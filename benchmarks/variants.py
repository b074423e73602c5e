"""Variants of one model, as checkpoint folders: `python -m benchmarks.variants DIR [--model REF] [--layers 24 18 12]`.

Cut to its first layers, and its matrices rounded to four bits and back: models of one tokenizer whose scores lie close
to each other or far apart, for asking whether two harnesses put models in the same order. Prints the folders.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import transformers_twin

BLOCK = 32
LARGEST = 7
"""Four bits with a sign: -7 to 7 steps of a block's scale."""


def write_variants(folder: Path, ref: str, layers: Sequence[int]) -> list[Path]:
    """Writes `layers-N` for each N, and `four-bit`; returns the folders."""
    model, tokenizer = transformers_twin(ref, "float32")
    all_layers = model.model.layers
    written = []
    for number in layers:
        if not 1 <= number <= len(all_layers):
            raise SystemExit(f"--layers {number}: {ref} has {len(all_layers)}")
        model.model.layers = all_layers[:number]
        model.config.num_hidden_layers = number
        written.append(_save(model, tokenizer, folder / f"layers-{number}"))
    model.model.layers, model.config.num_hidden_layers = all_layers, len(all_layers)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = four_bits(parameter.data)
    written.append(_save(model, tokenizer, folder / "four-bit"))
    return written


def four_bits(matrix: Any) -> Any:
    """The matrix (rows, columns) rounded in blocks of 32 columns to 15 steps around 0, and multiplied out again."""
    import torch

    rows, columns = matrix.shape
    pad = -columns % BLOCK
    blocks = torch.nn.functional.pad(matrix, (0, pad)).reshape(rows, -1, BLOCK)
    scale = blocks.abs().amax(dim=-1, keepdim=True) / LARGEST
    steps = torch.where(scale > 0, blocks / scale, torch.zeros_like(blocks)).round()
    return (steps * scale).reshape(rows, -1)[:, :columns].contiguous()


def _save(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main() -> None:
    """Writes the variants and prints where they are, and the command that compares them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--layers", type=int, nargs="+", default=[27, 24, 18])
    options = parser.parse_args()
    folders = write_variants(options.folder, options.model, options.layers)
    models = [options.model, f"{options.model}@bfloat16", *map(str, folders)]
    print("\n".join(map(str, folders)))
    print("compare:", "python -m reconcile agreement --models", *models, file=sys.stderr)


if __name__ == "__main__":
    main()
