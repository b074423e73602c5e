"""The schedule's promises, on random request sets: coverage, order, no token twice, memory bound kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.scoring.prefix_tree import PrefixTree, common_length

token = st.integers(0, 3)
sequences = st.lists(st.lists(token, min_size=1, max_size=24).map(tuple), min_size=1, max_size=24)
pack_sizes = st.integers(1, 40)


def prefixes(given_sequences):
    return {sequence[: end + 1] for sequence in given_sequences for end in range(len(sequence))}


@given(sequences, pack_sizes)
def test_every_distinct_prefix_is_computed_once_and_nothing_else(given_sequences, pack_tokens):
    tree = PrefixTree(given_sequences)
    wanted = prefixes(given_sequences)
    assert len(tree) == len(wanted)

    holder: dict[int, tuple[int, ...]] = {}  # slot -> the prefix whose keys and values it holds
    computed = []
    for pack in tree.packs(pack_tokens):
        row = 0
        assert pack.first == len(computed)
        for chunk in pack.chunks:
            for position in range(chunk.start, chunk.stop):
                before = holder[chunk.path[position - 1]] if position else ()
                prefix = (*before, pack.ids[row])
                assert pack.positions[row] == position == len(prefix) - 1
                assert pack.slots[row] == chunk.path[position]
                holder[pack.slots[row]] = prefix
                computed.append(prefix)
                row += 1
        assert row == len(pack.ids) == len(pack.slots) <= pack_tokens
    assert len(computed) == len(set(computed))
    assert set(computed) == wanted


@given(sequences, pack_sizes)
def test_every_ancestor_is_still_held_when_the_whole_pack_reads(given_sequences, pack_tokens):
    """All chunks of a pack attend after all its tokens are stored: no slot of a path may be reused within it."""
    tree = PrefixTree(given_sequences)
    holder: dict[int, tuple[int, ...]] = {}
    for pack in tree.packs(pack_tokens):
        assert len(set(pack.slots)) == len(pack.slots)
        row = 0
        full = []
        for chunk in pack.chunks:
            prefix = holder[chunk.path[chunk.start - 1]] if chunk.start else ()
            for position in range(chunk.start, chunk.stop):
                prefix = (*prefix, pack.ids[row])
                holder[chunk.path[position]] = prefix
                row += 1
            full.append((chunk, prefix))
        for chunk, prefix in full:
            assert [holder[slot] for slot in chunk.path] == [prefix[: end + 1] for end in range(len(prefix))]


@given(sequences, pack_sizes)
def test_slots_stay_within_the_bound(given_sequences, pack_tokens):
    tree = PrefixTree(given_sequences)
    longest = max(map(len, given_sequences))
    assert tree.longest == longest
    assert tree.capacity(pack_tokens) <= longest + pack_tokens
    used = {slot for pack in tree.packs(pack_tokens) for chunk in pack.chunks for slot in chunk.path}
    assert max(used) < tree.capacity(pack_tokens)


@given(sequences, pack_sizes, st.data())
def test_flat_indices_name_the_tokens_of_a_sequence(given_sequences, pack_tokens, data):
    tree = PrefixTree(given_sequences)
    flat = [token_id for pack in tree.packs(pack_tokens) for token_id in pack.ids]
    number = data.draw(st.integers(0, len(given_sequences) - 1))
    stop = data.draw(st.integers(1, len(given_sequences[number])))
    start = data.draw(st.integers(0, stop))
    found = tree.flat_indices(number, start, stop)
    assert [flat[index] for index in found] == list(given_sequences[number][start:stop])
    assert found == sorted(found)


@given(sequences)
def test_order_of_the_sequences_does_not_change_the_schedule(given_sequences):
    there, back = PrefixTree(given_sequences), PrefixTree(given_sequences[::-1])
    assert there.branches == back.branches
    assert there.branch_of == back.branch_of[::-1]


@settings(max_examples=200)
@given(st.lists(token).map(tuple), st.lists(token).map(tuple))
def test_common_length(first, second):
    length = common_length(first, second)
    assert first[:length] == second[:length]
    assert length == min(len(first), len(second)) or first[length] != second[length]


def test_an_empty_sequence_is_refused():
    with pytest.raises(ValueError, match="sequence 1 is empty"):
        PrefixTree([(1,), ()])


def test_no_sequences_make_no_packs():
    assert list(PrefixTree([]).packs(8)) == []


def test_a_shared_prefix_is_let_go_when_its_subtree_is_done():
    """Two families of 100-token prefixes with 20 children each: never both prefixes at once, nor all children."""
    family = [tuple([head] * 100 + [child] * 5) for head in (1, 2) for child in range(3, 23)]
    tree = PrefixTree(family)
    held = max(max(pack.slots) for pack in tree.packs(16)) + 1
    assert len(tree) == 2 * (100 + 20 * 5)
    assert held <= 105 + 16
