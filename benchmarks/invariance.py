"""Bit-identity of the scoring engine: one set of requests, asked alone, in batches, and in other orders.

    python -m benchmarks.invariance [--dtype float32] [--requests 400] [--data ../shared/data]

The requests are MMLU 5-shot, ARC-Easy 0-shot and 5-shot, Inspect-rendered MMLU, and WikiText windows, in equal parts.
Their scores in one call are compared, logprob by logprob, with those in batches of 1 (alone), 8 and 64 and with those
of three shuffles of the whole. Nothing is held between calls, so every batch is computed anew. The last line is JSON.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from typing import Any

from benchmarks.speed import REF, SETS, pairs_of
from llm.scoring.requests import ScoreRequest, TokenScores

BATCHES = (1, 8, 64)
SHUFFLES = 3


def mixed_requests(tokenizer: Any, model: Any, count: int, data: str) -> list[ScoreRequest]:
    """`count` distinct requests, the tasks in turn."""
    from llm.scoring.encoding import encode_pair, prefix_token_id, rolling_windows

    kinds = []
    for name in SETS:
        pairs = pairs_of(name, data, 2 if name == "wikitext" else None)
        if name == "wikitext":
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for (text,) in pairs]
            windows = [rolling_windows(page, prefix_token_id(tokenizer), model.max_length) for page in ids]
            kinds.append([window for page in windows for window in page])
        else:
            kinds.append([encode_pair(tokenizer, context, text) for context, text in pairs])
    kinds.append(_inspect_requests(tokenizer, data))
    in_turn = (request for row in zip_longest(*kinds) for request in row if request is not None)
    return list(islice(dict.fromkeys(in_turn), count))


def _inspect_requests(tokenizer: Any, data: str) -> list[ScoreRequest]:
    from llm.evaluation.data import load_items
    from llm.scoring.encoding import encode_pair
    from tasks.rendering import render_inspect

    prompts = [render_inspect(item, ()) for item in load_items("mmlu", data, subjects=["anatomy"], limit=40)]
    return [encode_pair(tokenizer, prompt.context, text) for prompt in prompts for text in prompt.continuations]


def scored(engine: Any, requests: Sequence[ScoreRequest], size: int) -> dict[ScoreRequest, TokenScores]:
    """The scores when asked in batches of `size`."""
    batches = (requests[first : first + size] for first in range(0, len(requests), size))
    return dict(chain.from_iterable(zip(batch, engine.score(batch), strict=True) for batch in batches))


def runs(engine: Any, requests: Sequence[ScoreRequest]) -> Iterator[tuple[str, dict[ScoreRequest, TokenScores]]]:
    """(name, scores) of every way of asking that is compared with the one call."""
    for size in BATCHES:
        yield f"batches of {size}", scored(engine, requests, size)
    for seed in range(SHUFFLES):
        order = random.Random(seed).sample(requests, len(requests))
        yield f"shuffle {seed}", scored(engine, order, len(order))


def largest_difference(found: dict[ScoreRequest, TokenScores], wanted: dict[ScoreRequest, TokenScores]) -> float:
    """The largest difference of any token's logprob, in nats; infinite where a greedy flag differs."""
    if any(found[request].is_greedy != scores.is_greedy for request, scores in wanted.items()):
        return float("inf")
    return max(
        abs(a - b)
        for request, scores in wanted.items()
        for a, b in zip(found[request].logprobs, scores.logprobs, strict=True)
    )


def main() -> None:
    """Parse the command line, measure, print JSON; exit 1 where a bit differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=REF)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--data", default="../shared/data")
    given = parser.parse_args()

    from llm.models import load_model
    from llm.scoring.engine import ScoringEngine

    model, tokenizer = load_model(given.model, dtype=given.dtype, device="cpu")
    requests = mixed_requests(tokenizer, model, given.requests, given.data)
    engine = ScoringEngine(model, retain_bytes=0)
    together = scored(engine, requests, len(requests))
    differences = {}
    for name, found in runs(engine, requests):
        differences[name] = largest_difference(found, together)
        print(f"# {name}: {differences[name]} nats", file=sys.stderr)
    logprobs = sum(len(scores.logprobs) for scores in together.values())
    report = {"dtype": given.dtype, "requests": len(requests), "logprobs": logprobs, "engine": engine.version}
    print(json.dumps(report | {"largest_difference_nats": differences}, indent=2))
    sys.exit(1 if any(differences.values()) else 0)


if __name__ == "__main__":
    main()
