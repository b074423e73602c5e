"""Attention of one pack by the compiled kernel: every query reads its own branch's keys in place, in one go.

Where there is no such kernel, torch does the same in parts: `spans` and `attention`, `cached_attention` for prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from llm.models.compiled import STRIP, CompiledKernels, compiled_kernels
from llm.scoring.spans import Queries


@dataclass(frozen=True, kw_only=True)
class Branches:
    """The queries of a pack, all int64: `rows` and `positions` (n,), `paths` and `strips` (s, 3) as in many_queries.c,
    and `idle`, the rows that nobody asks for.
    """

    rows: Tensor
    positions: Tensor
    paths: Tensor
    strips: Tensor
    idle: Tensor


def branch_kernels(table: Tensor) -> CompiledKernels | None:
    """The kernels that attend over keys and values (…, D) kept like these, if there are any."""
    if table.device.type != "cpu" or table.dtype != torch.float32 or table.shape[-1] % 4:
        return None
    return compiled_kernels()


def branches(chunks: Sequence[Queries], num_rows: int, *, group: int, step: int) -> Branches:
    """What the kernel reads of `chunks`, whose rows lie below `num_rows`; `group` query heads share a key head, and
    the first heads of two slots in a row lie `step` heads apart.
    """
    strips: list[np.ndarray] = []
    num_queries = num_slots = 0
    for chunk in chunks:
        first = num_queries * group
        num_queries += len(chunk.rows)
        starts = np.arange(first, num_queries * group, STRIP)
        lanes = np.minimum(num_queries * group - starts, STRIP)
        strips.append(np.stack([starts, lanes, np.full_like(starts, num_slots)], axis=1))
        num_slots += len(chunk.path)
    positions, rows = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("positions", "rows"))
    table = np.concatenate(strips)
    longest_first = np.argsort(-positions[(table[:, 0] + table[:, 1] - 1) // group], kind="stable")
    return Branches(
        rows=_tensor(rows),
        positions=_tensor(positions),
        paths=_tensor(step * np.concatenate([chunk.path for chunk in chunks])),
        strips=_tensor(table[longest_first]),
        idle=_tensor(np.setdiff1d(np.arange(num_rows), rows)),
    )


def attend_branches(
    kernels: CompiledKernels, plan: Branches, keys: Tensor, values: Tensor, q: Tensor, *, window: int | None
) -> Tensor:
    """Attention output (N, Hq * D) of queries q (N, Hq, D) over keys and values as `CompiledKernels.attend_branches`
    takes them; q's dtype. Idle rows are 0.

    With a sliding `window` a query sees the last `window` positions, itself included.
    """
    queries = (plan.rows, plan.positions, plan.paths, plan.strips)
    out = kernels.attend_branches(q, keys, values, *queries, window=window or 0)
    out[plan.idle] = 0
    return out.to(q.dtype)


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
