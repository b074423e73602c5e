"""Prefixes that stay held: what is served was computed before, and nothing that is read is given away."""

from hypothesis import given
from hypothesis import strategies as st

from llm.scoring.prefix_cache import FEW, PrefixCache
from llm.scoring.prefix_tree import PrefixTree


def long(shape):
    """A sequence of runs of 20 tokens: long enough to be worth keeping, few enough symbols to share beginnings."""
    return tuple(token for symbol in shape for token in [symbol] * 20)


calls = st.lists(
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(long), st.floats(0, 1)),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=5,
)


def run(cache, holder, sequences, limits, pack_tokens):
    """One call as the engine makes it; `holder` maps slots to the prefixes they hold. Returns the tokens computed."""
    tree = PrefixTree(sequences, cache.known(sequences, limits))
    reserved = cache.reserve(tree, limits)
    for slot in [slot for slot in holder if slot >= cache.capacity]:
        del holder[slot]
    for pack in tree.packs(pack_tokens, first_slot=cache.capacity, reserved=reserved):
        row, full = 0, []
        for chunk in pack.chunks:
            prefix = holder[chunk.path[chunk.start - 1]] if chunk.start else ()
            for position in range(chunk.start, chunk.stop):
                prefix = (*prefix, pack.ids[row])
                holder[chunk.path[position]] = prefix
                row += 1
            full.append((chunk, prefix))
        for chunk, prefix in full:
            assert [holder[slot] for slot in chunk.path] == [prefix[: end + 1] for end in range(len(prefix))]
    for number, (tokens, limit) in enumerate(zip(sequences, limits, strict=True)):
        assert len(tree.flat_indices(number, limit, len(tokens))) == len(tokens) - limit
    return len(tree)


@given(calls, st.integers(0, 400), st.integers(16, 200))
def test_what_is_held_is_right_over_many_calls(given_calls, capacity, pack_tokens):
    cache, holder = PrefixCache(capacity), {}
    for call in given_calls:
        sequences = [tokens for tokens, _ in call]
        limits = [int(share * (len(tokens) - 1)) for tokens, share in call]
        distinct = len({tokens[: end + 1] for tokens in sequences for end in range(len(tokens))})
        assert run(cache, holder, sequences, limits, pack_tokens) <= distinct
        assert cache.extent <= capacity


def test_a_few_shot_prefix_is_computed_once_over_batches():
    cache, holder = PrefixCache(1000), {}
    prefix = tuple(range(320))
    for batch in range(3):
        sequences = [(*prefix, *[1000 + 10 * batch + item] * 30) for item in range(5)]
        computed = run(cache, holder, sequences, [len(tokens) - 1 for tokens in sequences], 256)
        assert computed == (320 if batch == 0 else 0) + 5 * 30


def test_single_requests_share_a_prefix_too():
    cache, holder = PrefixCache(1000), {}
    prefix = tuple(range(320))
    costs = [run(cache, holder, [(*prefix, *[1000 + item] * 30)], [349], 256) for item in range(3)]
    assert costs[0] == 350
    assert costs[1] == costs[2] == 30


def test_the_entry_used_longest_ago_makes_room():
    cache, holder = PrefixCache(2 * 320), {}

    def batch(subject):
        sequences = [(*[subject] * 320, *[1000 + item] * 8) for item in range(FEW + 1)]
        return run(cache, holder, sequences, [len(tokens) - 1 for tokens in sequences], 256)

    fresh, held = 320 + (FEW + 1) * 8, (FEW + 1) * 8
    assert [batch(subject) for subject in (1, 2, 1, 3, 1, 2)] == [fresh, fresh, held, fresh, held, fresh]


def test_a_scored_position_inside_a_held_prefix_is_computed_again():
    cache, holder = PrefixCache(1000), {}
    tokens = tuple(range(200))
    assert run(cache, holder, [tokens], [199], 64) == 200
    assert run(cache, holder, [tokens], [199], 64) == 1
    assert run(cache, holder, [tokens], [50], 64) == 150
    assert run(cache, holder, [tokens, (*tokens[:100], 7)], [50, 100], 64) == 151


def test_without_room_nothing_is_held():
    cache, holder = PrefixCache(0), {}
    assert run(cache, holder, [tuple(range(100))], [99], 64) == 100
    assert run(cache, holder, [tuple(range(100))], [99], 64) == 100
