"""Attention of tiles, with the logsumexp that lets parts be joined."""

from functools import cache

import torch
from torch import Tensor

from llm.scoring.spans import GRAIN, SPANS


def attend_tiles(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Softmax attention of queries (T, H, M, D) over keys and values (T or 1, H, L, D), scaled by D ** -0.5.

    `mask` (M, L) is added to the scores. Returns the output (T, M, H, D) and the logsumexp of the scaled, masked
    scores (T, M, H), float32; both contiguous.
    """
    shape = (queries.shape[0], *keys.shape[1:])
    if _has_flash(queries.device.type, queries.dtype):
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys.expand(shape), values.expand(shape), 0.0, False, attn_mask=mask
        )
        return out.transpose(1, 2).contiguous(), sums.transpose(1, 2).contiguous()
    return _by_products(queries, keys, values, mask)


def _by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same by two batched products, where torch has no kernel that returns the logsumexp."""
    scores = (queries * queries.shape[-1] ** -0.5 @ keys.transpose(-1, -2)).float()
    if mask is not None:
        scores += mask
    sums = torch.logsumexp(scores, dim=-1)
    out = scores.sub_(sums[..., None]).exp_().to(values.dtype) @ values
    return out.transpose(1, 2).contiguous(), sums.transpose(1, 2).contiguous()


@cache
def _has_flash(device: str, dtype: torch.dtype) -> bool:
    """Whether this torch has the CPU kernel, tried once."""
    if device != "cpu" or not hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return False
    tile = torch.zeros(1, 1, GRAIN, 16, dtype=dtype)
    try:
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(tile, tile, tile, 0.0, False, attn_mask=None)
    except (RuntimeError, TypeError):
        return False
    return True


@cache
def rows_are_free(num_heads: int, group: int, head_dim: int, num_threads: int) -> bool:
    """Whether a query's bits are the same in a tile of GRAIN queries and in a call of any more whole grains.

    Tried on this machine once for each shape and number of threads; where it fails, shared spans go in small tiles.
    """
    generator = torch.Generator().manual_seed(0)
    many = 17 * GRAIN * group
    queries = torch.randn(1, num_heads, many, head_dim, generator=generator)
    for length in (SPANS[-1], SPANS[0]):
        keys, values = torch.randn(2, 1, num_heads, length, head_dim, generator=generator)
        small = queries.view(num_heads, 17, GRAIN * group, head_dim).transpose(0, 1)
        wanted = attend_tiles(small, keys, values, None)
        for grains in (2, 3, 4, 7, 17):
            found = attend_tiles(queries[:, :, : grains * GRAIN * group], keys, values, None)
            if not all(
                torch.equal(x.flatten(0, 1), y[:grains].flatten(0, 1)) for x, y in zip(found, wanted, strict=True)
            ):
                return False
    return True
