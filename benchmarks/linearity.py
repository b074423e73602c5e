"""Cost follows distinct tokens: MMLU high_school_psychology, 5-shot, at 25, 50, 100 and 200 items.

    python -m benchmarks.linearity [--runs 3] [--dtype float32] [--data ../shared/data]

Each size is scored anew `--runs` times, the sizes in turn, and its fastest run counts. Printed are the seconds, the
distinct tokens, and the milliseconds each *added* distinct token took from one size to the next. JSON.
"""

import argparse
import json
import time
from typing import Any

from benchmarks.speed import REF

SUBJECT = "high_school_psychology"
SIZES = (25, 50, 100, 200)


def requests_of(tokenizer: Any, data: str, num_items: int) -> list[Any]:
    """The loglikelihood requests of the first items, as stock lm-eval words them."""
    from llm.evaluation.data import load_items
    from llm.evaluation.lm_eval_prompts import mmlu_shots, render
    from llm.scoring.encoding import encode_pair

    shots = mmlu_shots(data, SUBJECT, 5)
    prompts = [render(item, shots) for item in load_items("mmlu", data, subjects=[SUBJECT], limit=num_items)]
    return [encode_pair(tokenizer, prompt.context, text) for prompt in prompts for text in prompt.continuations]


def measure(model: Any, tokenizer: Any, data: str, runs: int) -> list[dict[str, float]]:
    """One row a size: items, distinct tokens, seconds, and milliseconds for each token more than the size before."""
    from llm.scoring.engine import ScoringEngine

    sizes = {size: requests_of(tokenizer, data, size) for size in SIZES}
    ScoringEngine(model).score(sizes[SIZES[0]][:4])
    fastest, distinct = dict.fromkeys(SIZES, float("inf")), {}
    for _ in range(runs):
        for size, requests in sizes.items():
            engine = ScoringEngine(model, retain_bytes=0)
            started = time.perf_counter()
            engine.score(requests)
            fastest[size] = min(fastest[size], time.perf_counter() - started)
            distinct[size] = engine.stats.num_distinct_tokens
    rows, seconds, tokens = [], 0.0, 0
    for size in SIZES:
        added = (fastest[size] - seconds) / (distinct[size] - tokens)
        seconds, tokens = fastest[size], distinct[size]
        rows.append({"items": size, "distinct_tokens": tokens, "seconds": seconds, "ms_per_added_token": 1000 * added})
    return rows


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--data", default="../shared/data")
    given = parser.parse_args()

    from llm.models import load_model

    model, tokenizer = load_model(REF, dtype=given.dtype, device="cpu")
    rows = measure(model, tokenizer, given.data, given.runs)
    costs = [row["ms_per_added_token"] for row in rows]
    print(json.dumps({"dtype": given.dtype, "sizes": rows, "largest_over_smallest": max(costs) / min(costs)}, indent=2))


if __name__ == "__main__":
    main()
