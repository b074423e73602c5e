"""One pack through the layers of a decoder."""

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor

from llm.scoring.attention import attend
from llm.scoring.branches import Branches, attend_branches, branch_kernels, branches
from llm.scoring.key_values import KeyValuePool
from llm.scoring.prefix_tree import Pack
from llm.scoring.spans import Plan, Queries, plan


def run_pack(model: Any, pool: KeyValuePool, pack: Pack, keep: np.ndarray) -> Tensor:
    """Final hidden states (len(keep), hidden) of the pack's rows `keep`; keys and values go to the pack's slots."""
    return _PackRun(model, pool, pack, keep).hidden_states()


def row_quantum() -> int:
    """Packs go through the layers in a multiple of this many rows, the last ones padding: at least 64, and 32 for each
    thread, so that no thread's share of an element-wise step ends in the middle of a vector.
    """
    return max(64, 32 * torch.get_num_threads())


def round_up(number: int, step: int) -> int:
    """The first multiple of `step` that is not below `number`."""
    return -(-number // step) * step


class _PackRun:
    def __init__(self, model: Any, pool: KeyValuePool, pack: Pack, keep: np.ndarray) -> None:
        self.model, self.pool, self.pack = model, pool, pack
        self.num_wanted = len(keep)
        self.keep = keep if len(keep) else np.zeros(1, dtype=np.int64)
        self.num_tokens = len(pack.ids)
        self.num_rows = round_up(self.num_tokens, row_quantum())
        self.num_kept = round_up(len(self.keep), row_quantum())
        self.can_keep = "keep" in inspect.signature(model.hidden_states).parameters
        layers = model.config.num_hidden_layers
        self.last_layer = layers - 1
        self.windows = getattr(model.config, "layer_windows", None) or [model.config.sliding_window] * layers
        self.kernels = branch_kernels(pool.tables[0])
        self.plans: dict[tuple[bool, int | None], Plan] = {}
        self.branches: dict[tuple[bool, int], Branches] = {}
        first, last = min(pack.slots), max(pack.slots) + 1
        together = pack.slots == tuple(range(first, last))
        self.slots = slice(first, last) if together else torch.tensor(pack.slots, device=model.device)

    def hidden_states(self) -> Tensor:
        device = self.model.device
        padding = [0] * (self.num_rows - self.num_tokens)
        ids = torch.tensor([*self.pack.ids, *padding], device=device)
        positions = torch.tensor([*self.pack.positions, *padding], device=device)
        kept = torch.from_numpy(np.pad(self.keep, (0, self.num_kept - len(self.keep)))).to(device)
        if self.can_keep:
            states: Tensor = self.model.hidden_states(ids, positions, self._attend, keep=kept)
        else:
            states = self.model.hidden_states(ids, positions, self._attend)[kept]
        return states[: self.num_wanted]

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.pool.store(layer, self.slots, k[: self.num_tokens], v[: self.num_tokens])
        only_kept, window = self.can_keep and layer == self.last_layer, self.windows[layer]
        if self.kernels is None:
            return attend(self._plan(only_kept, window), self.pool, layer, q)
        made = self._branches(only_kept, q.shape[1] // self.pool.num_heads)
        keys, values = self.pool.tables[layer].unbind(1)
        return attend_branches(self.kernels, made, keys, values, q, window=window)

    def _plan(self, only_kept: bool, window: int | None) -> Plan:
        if (only_kept, window) not in self.plans:
            self.plans[only_kept, window] = plan(
                self._queries(only_kept),
                self._num_rows(only_kept),
                num_heads=self.pool.num_heads,
                window=window,
                device=self.model.device,
            )
        return self.plans[only_kept, window]

    def _branches(self, only_kept: bool, group: int) -> Branches:
        if (only_kept, group) not in self.branches:
            step = 2 * self.pool.num_heads
            made = branches(self._queries(only_kept), self._num_rows(only_kept), group=group, step=step)
            self.branches[only_kept, group] = made
        return self.branches[only_kept, group]

    def _num_rows(self, only_kept: bool) -> int:
        return self.num_kept if only_kept else self.num_rows

    def _queries(self, only_kept: bool) -> list[Queries]:
        """Each chunk's queries; of all its tokens, or of the kept ones, whose rows are then their own numbers."""
        found, first = [], 0
        for chunk in self.pack.chunks:
            last = first + chunk.stop - chunk.start
            rows, positions = np.arange(first, last), np.arange(chunk.start, chunk.stop)
            if only_kept:
                low, high = np.searchsorted(self.keep, [first, last])
                rows, positions = np.arange(low, high), self.keep[low:high] - first + chunk.start
            if len(rows):
                found.append(Queries(positions=positions, rows=rows, path=np.array(chunk.path, dtype=np.int64)))
            first = last
        return found
