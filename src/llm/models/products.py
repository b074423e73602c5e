"""The matrix products of a decoder; which kernel serves them is chosen here, once a process and dtype.

Which CPU kernel is fastest differs by machine: the project's own (`compiled`), torch's, oneDNN's, or, for 16-bit
weights on processors without 16-bit arithmetic, the float32 product of their exact float32 values (accumulated in
float32, rounded once: the same semantics). The choice is timed on the first weight large enough, and the project's own,
or else torch's, is kept unless another is clearly faster. It never depends on the number of rows. Reduced-precision
float32 modes are not float32: what computes scores does so under `full_precision`.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn

from llm.models.compiled import CompiledKernels, compiled_kernels
from llm.models.elementwise import swiglu
from llm.models.packed import PackedWeights, packed_weights
from llm.models.timing import fastest

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_PROBE_ROWS = 512
_PROBE_ELEMENTS = 100_000


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` for x of shape (T, in) and weight of shape (out, in); dtype of x."""
    if x.device.type != "cpu":
        return torch.nn.functional.linear(x, weight, bias)
    packed = _PACKED.get()
    if packed is not None and x.ndim == 2 and (found := packed.multiply(x, weight, bias)) is not None:
        return found
    return _PRODUCTS[_CHOSEN.get(x.dtype) or _choose(weight)](x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`silu(gate) * up` (T, I) of the product of x (T, in) and weight (2 * I, in), gates first (Shazeer 2020).

    In one go where the compiled product serves, else in two steps; the compiled ones give the same bits.
    """
    together = x.ndim == 2 and _PACKED.get() is None and _CHOSEN.get(x.dtype) == "compiled"
    kernels = _kernels_for(x, weight) if together else None
    return swiglu(linear(x, weight, bias)) if kernels is None else kernels.multiply_rows(x, weight, bias, gated=True)


def chosen_product(model: nn.Module) -> str:
    """The kernel that serves the model's products, chosen now if it was not yet; "torch" anywhere but on the CPU."""
    matrices = [p for p in model.parameters() if p.ndim == 2 and p.numel() >= _PROBE_ELEMENTS]
    if not matrices or matrices[0].device.type != "cpu":
        return "torch"
    middle = sorted(matrices, key=Tensor.numel)[len(matrices) // 2]
    name = _CHOSEN.get(middle.dtype) or _choose(middle)
    return f"float32 ({_CHOSEN.get(torch.float32, 'torch')})" if name == "float32" else name


_PACKED: ContextVar[PackedWeights | None] = ContextVar("packed", default=None)


def weights_for_few_rows(model: object) -> PackedWeights | None:
    """What `few_rows` multiplies with; None where that is what `linear` does anyway."""
    return packed_weights(model, linear)


@contextlib.contextmanager
def few_rows(model: object) -> Iterator[None]:
    """Products with this model's weights as suits a few dozen rows: by packed copies of them, where that is faster."""
    token = _PACKED.set(weights_for_few_rows(model))
    try:
        yield
    finally:
        _PACKED.reset(token)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Float32 products in float32, whatever faster mode the process has switched on; put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _compiled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    kernels = _kernels_for(x, weight)
    if kernels is None:
        return torch.nn.functional.linear(x, weight, bias)
    out = kernels.multiply_rows(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])


def _kernels_for(x: Tensor, weight: Tensor) -> CompiledKernels | None:
    """The compiled kernels, where they can multiply these: float32 on the CPU, without gradients, that fit."""
    both = (x, weight)
    plain = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in both)
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in both)
    return compiled_kernels() if plain and not learns and x.shape[-1] == weight.shape[1] > 0 else None


def _via_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


_PRODUCTS: dict[str, Product] = {
    "compiled": _compiled,
    "torch": torch.nn.functional.linear,
    "onednn": _onednn,
    "float32": _via_float32,
}
_CHOSEN: dict[torch.dtype, str] = {}


def _choose(weight: Tensor) -> str:
    """The kernel for products with weights of this dtype; remembered if the weight is large enough to tell."""
    if weight.numel() < _PROBE_ELEMENTS:
        return "torch"
    rows = max(64, min(_PROBE_ROWS, 2**31 // weight.numel()))
    x = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
    names = ["torch", "onednn"] if weight.dtype == torch.float32 else ["torch", "float32"]
    usual = "torch"
    if weight.dtype == torch.float32 and compiled_kernels() is not None:
        names.append(usual := "compiled")
    with torch.inference_mode():
        kernels = [name for name in names if _works(_PRODUCTS[name], x, weight)]
        calls = {name: partial(_PRODUCTS[name], x, weight, None) for name in kernels}
        _CHOSEN[weight.dtype] = fastest(calls, usual=usual)
    return _CHOSEN[weight.dtype]


def _works(product: Product, x: Tensor, weight: Tensor) -> bool:
    try:
        product(x[:1], weight, None)
    except (RuntimeError, AttributeError):  # a torch without oneDNN, or with another one
        return False
    return True
