"""A model's matrices laid out for products of few rows, as decoding makes them.

A decoding step multiplies a few dozen rows by every weight, and there general kernels reach half of the machine's
rate. Two others start from a weight that was rearranged once: the project's own (`compiled`), and oneDNN's. Narrower
weights are widened at the same time, since the processors this helps multiply float32 best (accumulated in float32,
rounded once to the dtype of the rows). The copies cost four bytes a parameter and live as long as their model.
"""

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from llm.models.compiled import compiled_kernels
from llm.models.timing import fastest

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

PACKED_BYTES = 6 << 30
"""No model is packed whose copies would need more than this."""
_MIN_ELEMENTS = 100_000
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PROBE_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """How a weight is rearranged and multiplied with; `any_rows` says that a row's bits are its own in a product of
    any number of rows.
    """

    pack: Callable[[Tensor], Any]
    multiply: Callable[[Tensor, Any, Tensor | None], Tensor]
    any_rows: bool


class PackedWeights:
    """The packed matrices of one model, each made when it is first used and again after its weight has changed."""

    def __init__(self, model: nn.Module, kernel: Kernel) -> None:
        self._kernel = kernel
        self._known = {(p.data_ptr(), p.shape): p for p in _matrices(model)}  # keeps them, so no address is reused
        self._packed: dict[int, tuple[int, Any]] = {}
        smallest = min(p.numel() for p in model.parameters() if p.ndim == 2)
        self.any_rows = kernel.any_rows and smallest >= _MIN_ELEMENTS
        """Whether each row of any product with the model's matrices keeps its bits whatever the number of rows."""

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """`x @ weight.T + bias` for x (T, in) and weight (out, in); None for a weight that is not the model's."""
        address = weight.data_ptr()
        if (address, weight.shape) not in self._known:
            return None
        version = 0 if weight.is_inference() else weight._version
        made, packed = self._packed.get(address, (None, None))
        if made != version:
            packed = self._kernel.pack(weight)
            self._packed[address] = (version, packed)
        if x.dtype == torch.float32:
            return self._kernel.multiply(x, packed, bias)
        return self._kernel.multiply(x.float(), packed, None if bias is None else bias.float()).to(x.dtype)


_OF_MODEL: "weakref.WeakKeyDictionary[nn.Module, PackedWeights | None]" = weakref.WeakKeyDictionary()


def packed_weights(model: object, plain: Product) -> PackedWeights | None:
    """The packed weights of a model on the CPU; None where `plain` is faster, or they would be too large.

    Decided once for each model, by timing its middle matrix, so that bits do not change from call to call.
    """
    if not isinstance(model, nn.Module):
        return None
    if model not in _OF_MODEL:
        kernel = _fastest(model, plain)
        _OF_MODEL[model] = PackedWeights(model, kernel) if kernel is not None else None
    return _OF_MODEL[model]


def _kernels() -> dict[str, Kernel]:
    found = {"onednn": Kernel(pack=_pack_onednn, multiply=_multiply_onednn, any_rows=False)}
    if (own := compiled_kernels()) is not None:
        found["compiled"] = Kernel(pack=own.pack, multiply=own.multiply, any_rows=True)
    return found


def _pack_onednn(weight: Tensor) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().float().contiguous(), _PROBE_ROWS)


def _multiply_onednn(x: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
    out = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    assert isinstance(out, Tensor)
    return out


def _matrices(model: nn.Module) -> list[Tensor]:
    return [p.detach() for p in model.parameters() if p.ndim == 2 and p.numel() >= _MIN_ELEMENTS]


def _fastest(model: nn.Module, plain: Product) -> Kernel | None:
    """The kernel for few rows of this model, by its middle matrix; None where `plain` serves best."""
    matrices = sorted(_matrices(model), key=Tensor.numel)
    if not matrices or any(p.device.type != "cpu" or p.dtype not in _DTYPES for p in matrices):
        return None
    if 4 * sum(p.numel() for p in matrices) > PACKED_BYTES:
        return None
    weight = matrices[len(matrices) // 2]
    x = torch.ones(_PROBE_ROWS, weight.shape[1], dtype=weight.dtype)
    kernels = _kernels()
    with torch.inference_mode():
        calls: dict[str, Callable[[], object]] = {"plain": lambda: plain(x, weight, None)}
        for name, kernel in kernels.items():
            with contextlib.suppress(RuntimeError, AttributeError):  # a torch without oneDNN, or with another one
                calls[name] = _probe(kernel, x, weight)
        return kernels.get(fastest(calls, usual="compiled" if "compiled" in calls else "plain"))


def _probe(kernel: Kernel, x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """A product by this kernel to be timed; it was tried once."""
    packed, wide = kernel.pack(weight), x.float()
    kernel.multiply(wide, packed, None)
    return lambda: kernel.multiply(wide, packed, None).to(x.dtype)
