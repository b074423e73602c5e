"""How attention is cut: every query reads each key before it exactly once, whatever the kernel and the tiles."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.scoring import attention, kernels
from llm.scoring.key_values import KeyValuePool
from llm.scoring.prefix_tree import PrefixTree
from llm.scoring.spans import BLOCK, GRAIN, Queries, full_spans, plan

CPU = torch.device("cpu")


@given(st.integers(0, 200))
def test_full_spans_cover_what_lies_before_the_block_largest_first(block):
    spans = full_spans(block)
    covered = [position for start, length in spans for position in range(start, start + length)]
    assert covered == list(range(block * BLOCK))
    lengths = [length for _, length in spans]
    assert lengths == sorted(lengths, reverse=True)


def reference(q, k, v, window):
    """Attention (T, Hq * D) of one sequence, written out."""
    length, group = len(q), q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * q.shape[-1] ** -0.5
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
    if window is not None:
        unseen |= torch.ones(length, length, dtype=torch.bool).tril(-window)
    weights = scores.masked_fill(unseen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1)).flatten(1)


def attend_tree(sequences, pack_tokens, window, heads=4, kv_heads=2, head_dim=16):
    """Every sequence's attention through packs, and the same written out; q, k and v depend on the prefix alone."""
    tree = PrefixTree(sequences)
    pool = KeyValuePool(
        num_layers=1,
        num_heads=kv_heads,
        head_dim=head_dim,
        dtype=torch.float32,
        device=CPU,
    )
    pool.resize(tree.capacity(pack_tokens), keep=0)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(tree), h, head_dim, generator=generator) for h in (heads, kv_heads, kv_heads))
    found = []
    for pack in tree.packs(pack_tokens):
        here = slice(pack.first, pack.first + len(pack.ids))
        pool.store(0, torch.tensor(pack.slots), k[here], v[here])
        chunks, first = [], 0
        for chunk in pack.chunks:
            last = first + chunk.stop - chunk.start
            chunks.append(Queries(np.arange(chunk.start, chunk.stop), np.arange(first, last), np.array(chunk.path)))
            first = last
        rows = -(-first // 64) * 64
        queries = torch.nn.functional.pad(q[here], (0, 0, 0, 0, 0, rows - first))
        found.append(
            attention.attend(plan(chunks, rows, num_heads=kv_heads, window=window, device=CPU), pool, 0, queries)[
                :first
            ]
        )
    out = torch.cat(found)
    for number, sequence in enumerate(sequences):
        flat = tree.flat_indices(number, 0, len(sequence))
        yield out[flat], reference(q[flat], k[flat], v[flat], window)


FAMILIES = [
    [(1,) * 700 + (2,) * 30, (1,) * 700 + (3,) * 300, (1,) * 130 + (4,) * 60, (5,)],
    [tuple([1] * 200 + [n] * 10) for n in range(2, 40)],
]


@pytest.mark.parametrize("window", [None, 5, 150, 600])
@pytest.mark.parametrize("family", [0, 1])
def test_each_query_sees_each_key_before_it_once(family, window):
    for found, expected in attend_tree(FAMILIES[family], 256, window):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=8),
    st.integers(1, 300),
    st.sampled_from([None, 33]),
)
def test_random_trees_attend_right(shapes, pack_tokens, window):
    sequences = [tuple(token for bit in shape for token in [bit] * 37) for shape in shapes]
    for found, expected in attend_tree(sequences, pack_tokens, window):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_without_the_kernel_two_products_do(monkeypatch):
    monkeypatch.setattr(kernels, "_has_flash", lambda device, dtype: False)
    for found, expected in attend_tree(FAMILIES[0], 256, None):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


def test_where_rows_are_not_free_small_tiles_give_the_same_bits(monkeypatch):
    freely = [found for found, _ in attend_tree(FAMILIES[1], 256, None)]
    assert kernels.rows_are_free(2, 2, 16, torch.get_num_threads())
    monkeypatch.setattr(attention, "rows_are_free", lambda *shape: False)
    tiled = [found for found, _ in attend_tree(FAMILIES[1], 256, None)]
    assert all(torch.equal(a, b) for a, b in zip(freely, tiled, strict=True))


def test_a_mask_shows_what_stands_before_and_within_the_window():
    mask = attention.causal_mask(48, 32, None, 2, torch.float32, CPU)
    assert mask.shape == (2 * GRAIN, 48)
    assert (mask[0] == 0).sum() == 33  # the query at 32 sees keys 0 … 32
    assert torch.equal(mask[0], mask[1])  # both queries of a group
    windowed = attention.causal_mask(48, 32, 5, 1, torch.float32, CPU)
    assert (windowed[3] == 0).nonzero().flatten().tolist() == [31, 32, 33, 34, 35]
