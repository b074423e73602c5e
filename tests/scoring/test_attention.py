"""A pack's attention: every query reads each key before it exactly once, whatever the kernel and the tiles."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.scoring import attention, kernels
from llm.scoring.branches import attend_branches, branch_kernels, branches
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


def by_spans(chunks, pool, queries, window):
    made = plan(chunks, len(queries), num_heads=pool.num_heads, window=window, device=CPU)
    return attention.attend(made, pool, 0, queries)


def by_branches(chunks, pool, queries, window):
    if (compiled := branch_kernels(pool.tables[0])) is None:
        pytest.skip("no C compiler, or not Linux: spans serve")
    made = branches(chunks, len(queries), group=queries.shape[1] // pool.num_heads, step=2 * pool.num_heads)
    keys, values = pool.tables[0].unbind(1)
    return attend_branches(compiled, made, keys, values, queries, window=window)


WAYS = pytest.mark.parametrize("way", [by_spans, by_branches], ids=["spans", "branches"])


def attend_tree(sequences, pack_tokens, window, way=by_spans, heads=4, kv_heads=2, head_dim=16):
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
        found.append(way(chunks, pool, queries, window)[:first])
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
@WAYS
def test_each_query_sees_each_key_before_it_once(way, family, window):
    for found, expected in attend_tree(FAMILIES[family], 256, window, way):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (5, 1, 20), (2, 2, 128), (100, 1, 8)])
@pytest.mark.parametrize("window", [None, 70])
def test_any_shape_of_heads_is_attended_right(heads, kv_heads, head_dim, window):
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    sequences = [(1,) * 150, (1,) * 90 + (2,) * 40]
    for found, expected in attend_tree(sequences, 100, window, by_branches, **shape):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)


@WAYS
def test_p10_a_query_is_the_same_in_any_pack(way):
    """Tokens in packs of other sizes stand beside others, and their keys in other slots."""
    whole = [found for found, _ in attend_tree(FAMILIES[0], 2000, None, way)]
    for pack_tokens in (1, 30, 333):
        for found, expected in zip(attend_tree(FAMILIES[0], pack_tokens, None, way), whole, strict=True):
            assert torch.equal(found[0], expected)


def test_a_nan_stays_with_those_who_see_it_and_large_scores_keep_their_weights():
    pool = KeyValuePool(num_layers=1, num_heads=1, head_dim=8, dtype=torch.float32, device=CPU)
    pool.resize(200, keep=0)
    generator = torch.Generator().manual_seed(0)
    keys, values, queries = torch.randn(3, 200, 1, 8, generator=generator)
    keys[130] = torch.nan
    queries[40] *= 1e4
    pool.store(0, slice(0, 200), keys, values)
    ends = (41, 129, 131)
    chunks = [Queries(np.array([end - 1]), np.array([row]), np.arange(200)) for row, end in enumerate(ends)]
    out = by_branches(chunks, pool, torch.stack([queries[end - 1] for end in ends]), None)
    assert out.isfinite().all(dim=1).tolist() == [True, True, False]
    best = (queries[40, 0] @ keys[:41, 0].T).argmax()
    torch.testing.assert_close(out[0], values[best, 0])


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=8),
    st.integers(1, 300),
    st.sampled_from([None, 33]),
)
@WAYS
def test_random_trees_attend_right(way, shapes, pack_tokens, window):
    sequences = [tuple(token for bit in shape for token in [bit] * 37) for shape in shapes]
    for found, expected in attend_tree(sequences, pack_tokens, window, way):
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
