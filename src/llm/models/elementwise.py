"""The steps between a decoder's products: by the compiled kernels for float32 on a CPU, else by torch.

Shapes: T tokens, H heads, D head_dim, I intermediate size.
"""

import torch
from torch import Tensor

from llm.models.compiled import CompiledKernels, compiled_kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, reduced in float32 (Zhang & Sennrich 2019); dtype of x."""
    if x.is_contiguous() and (kernels := _kernels(x, weight)) is not None:
        return kernels.rms_norm(x, weight, eps)
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` (T, I) of gate and up side by side (T, 2 * I), which may be overwritten (Shazeer 2020)."""
    if gate_up.is_contiguous() and (kernels := _kernels(gate_up)) is not None:
        return kernels.swiglu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate, inplace=True).mul_(up)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x (T, H, D) by (cos, sin), each (T, 1, D / 2); i pairs with i + D / 2."""
    cos, sin = rotation
    in_pieces = x.stride()[1:] == (x.shape[2], 1) and cos.is_contiguous() and sin.is_contiguous()
    if in_pieces and (kernels := _kernels(x, cos, sin)) is not None:
        return kernels.rotate(x, cos, sin)
    first, second = x.chunk(2, dim=-1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    out_first, out_second = out.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return out


def peaks_and_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row of float32 x (N, V): its largest value, and the sum of `exp(x - largest)`; each (N,)."""
    if x.is_contiguous() and (kernels := _kernels(x)) is not None:
        peak, total = kernels.peaks_and_sums(x)
        return peak, total
    peak = x.amax(dim=-1)
    return peak, (x - peak[:, None]).exp_().sum(dim=-1)


def _kernels(*tensors: Tensor) -> CompiledKernels | None:
    if any(t.dtype != torch.float32 or t.device.type != "cpu" or t.requires_grad for t in tensors):
        return None
    return compiled_kernels()
