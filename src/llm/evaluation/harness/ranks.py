"""Several processes share one evaluation: what lm-eval's evaluator asks of a model under torchrun or accelerate launch.

lm-eval deals the items out by rank and gathers the scores; a rank scores its own alone. Objects and counts travel
over gloo, on the CPU, whatever the model runs on.
"""

import atexit
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

_TIMEOUT = timedelta(days=7)  # the first rank to finish waits for the last


def world_size() -> int:
    """The number of processes that the launcher started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_device(device: str) -> str:
    """The device of this process: each has its own CUDA device where several processes run."""
    if world_size() > 1 and device.partition(":")[0] in ("cuda", "auto") and torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    return device


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among `size`; the methods are those of lm-eval's `LM`."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> "Ranks":
        """Meet the other processes that the launcher started; alone where there are none."""
        from torch import distributed

        if world_size() <= 1 or not distributed.is_available():
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("gloo", timeout=_TIMEOUT)
            atexit.register(_leave)
        return cls(rank=distributed.get_rank(), size=distributed.get_world_size())

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks in rank order, along the first dimension; of scalars a vector."""
        from torch import distributed

        mine = tensor.detach().cpu()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(parts, mine)
        return (torch.stack(parts) if mine.dim() == 0 else torch.cat(parts)).to(tensor.device)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all ranks in rank order on rank `dst`, None elsewhere."""
        from torch import distributed

        parts: list[Any] | None = [None] * self.size if self.rank == dst else None
        distributed.gather_object(obj, parts, dst=dst)
        return parts

    def barrier(self) -> None:
        """Wait for the others."""
        from torch import distributed

        distributed.barrier()


def _leave() -> None:
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
