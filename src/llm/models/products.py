"""The matrix products of a decoder; which kernel serves them is chosen here, once."""

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` for x of shape (T, in) and weight of shape (out, in); dtype of x."""
    return torch.nn.functional.linear(x, weight, bias)
