"""From final hidden states to token scores: the vocabulary projection, its log-softmax and what is read from it."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

LogitsDtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TopTokens = tuple[tuple[int, float], ...]
CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class Readout:
    """Scores of P (row, target token) pairs, in the order asked: nats, whether the target is its row's argmax (the
    first index wins ties), its 0-based rank, and the most likely tokens of its row. `ranks` and `top` are empty
    unless asked for.
    """

    logprobs: list[float]
    is_greedy: list[bool]
    ranks: list[int]
    top: list[TopTokens]


def read_out(
    project: Callable[[Tensor], Tensor],
    hidden: Tensor,
    rows: Tensor,
    targets: Tensor,
    *,
    logits_dtype: LogitsDtype = "float32",
    top_k: int = 0,
) -> Readout:
    """Score `targets` (P,) at `rows` (P,), ascending row numbers of `hidden` (N, H).

    Rows go through `project` in chunks of exactly CHUNK rows (the last one padded), so that a row's logits do not
    depend on how many there are; logits are rounded to `logits_dtype` and the log-softmax is taken in it.
    """
    result = Readout(logprobs=[], is_greedy=[], ranks=[], top=[])
    num_rows = hidden.shape[0]
    bounds = torch.searchsorted(rows.cpu(), torch.arange(0, num_rows + CHUNK, CHUNK)).tolist()
    for chunk, (first, last) in enumerate(pairwise(bounds)):
        if first == last:
            continue
        block = _padded(hidden[chunk * CHUNK : (chunk + 1) * CHUNK])
        logprobs = project(block).to(DTYPES[logits_dtype]).log_softmax(dim=-1)
        _read_chunk(result, logprobs, rows[first:last] - chunk * CHUNK, targets[first:last], top_k)
    return result


def _padded(block: Tensor) -> Tensor:
    missing = CHUNK - block.shape[0]
    return torch.nn.functional.pad(block, (0, 0, 0, missing)) if missing else block


def _read_chunk(result: Readout, logprobs: Tensor, rows: Tensor, targets: Tensor, top_k: int) -> None:
    picked = logprobs[rows, targets]
    result.logprobs.extend(picked.float().clamp(max=0.0).tolist())
    result.is_greedy.extend((logprobs.argmax(dim=-1)[rows] == targets).tolist())
    if top_k:
        values, ids = logprobs.topk(min(top_k, logprobs.shape[-1]), dim=-1)
        table = [
            tuple(zip(tokens, scores, strict=True))
            for tokens, scores in zip(ids.tolist(), values.float().clamp(max=0.0).tolist(), strict=True)
        ]
        result.top.extend(table[row] for row in rows.tolist())
        result.ranks.extend(_rank(logprobs[row], target) for row, target in zip(rows.tolist(), targets, strict=True))


def _rank(logprobs: Tensor, target: Tensor) -> int:
    """Tokens that come before `target` in the row's order: the more likely ones, and equals with a lower index."""
    own = logprobs[target]
    return int((logprobs > own).sum() + (logprobs[: int(target)] == own).sum())
