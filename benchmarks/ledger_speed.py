"""How long the full ledger of a whole MMLU takes: `python -m benchmarks.ledger_speed [--items N] [--resamples R]`.

The items are synthetic (57 sub-tasks, four choices, one item in a hundred a copy, one in six tied), so nothing but
the ledger's own arithmetic is measured. Prints one JSON object: seconds by stage and the process's peak memory.
"""

import argparse
import json
import resource
import time

import numpy as np

from reconcile.agreement import agreement_of
from reconcile.decompose import decompose
from reconcile.runs import HarnessRun, Protocol
from reconcile.statistics import measure
from reconcile.synthetic import SyntheticItem, run_of

NUM_SUBJECTS = 57
LM_EVAL = Protocol(template="lm-eval", num_fewshot=5, normalisation="none", tie_break="first")
INSPECT = Protocol(template="inspect", num_fewshot=5, normalisation="token", tie_break="random")


def make_runs(num_items: int, seed: int = 0) -> tuple[HarnessRun, HarnessRun]:
    """Two runs over the same items, their scores correlated, rounded so that ties are common."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(-12, 3, size=(num_items, 4))
    lengths = rng.integers(1, 6, size=(num_items, 4))
    gold = rng.integers(0, 4, size=num_items)
    scores = [np.minimum(np.round(shared + rng.normal(0, 1, shared.shape), 0), 0) for _ in range(2)]
    names = [str(n if n % 100 else max(n - 1, 0)) for n in range(num_items)]
    runs = []
    for harness, protocol, side in (("lm_eval", LM_EVAL, 0), ("inspect", INSPECT, 1)):
        items = [
            SyntheticItem(
                logprobs=tuple(scores[side][n]),
                num_tokens=tuple(int(length) for length in lengths[n]),
                gold=int(gold[n]),
                name=names[n],
                subject=f"subject {n * NUM_SUBJECTS // num_items}",
            )
            for n in range(num_items)
        ]
        runs.append(run_of(harness, items, protocol=protocol))
    return runs[0], runs[1]


def main() -> None:
    """Makes the runs, times the ledger's stages and prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=14_042)
    parser.add_argument("--resamples", type=int, default=10_000)
    options = parser.parse_args()
    lm_eval, inspect = make_runs(options.items)
    marks, cpu = [time.perf_counter()], time.process_time()
    ledger = decompose(lm_eval, inspect)
    marks.append(time.perf_counter())
    measure(ledger, num_resamples=options.resamples)
    marks.append(time.perf_counter())
    agreement_of(ledger)
    marks.append(time.perf_counter())
    stages = dict(zip(("decompose", "statistics", "agreement"), np.diff(marks).round(3).tolist(), strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "items": options.items,
                "resamples": options.resamples,
                "seconds": {**stages, "total": round(marks[-1] - marks[0], 3)},
                "cpu_seconds": round(time.process_time() - cpu, 3),
                "peak_memory_mib": round(peak),
                "accounted": ledger.accounted,
                "gap": float(ledger.gap),
            }
        )
    )


if __name__ == "__main__":
    main()
