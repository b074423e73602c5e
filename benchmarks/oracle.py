"""Our scores against recorded ones of stock lm-eval's HFLM on the same weights; prints JSON, exits 1 on a miss.

    python benchmarks/oracle.py [--oracle ../shared/oracle] [--sets arc,arc5,mmlu,cont,wiki] [--limit N]

Every log-likelihood must lie within max(1e-3 nat, 1e-5 of its size) of the recorded one; the greedy flags and every
prediction (the argmax over an item's choices, and over their lengths) must be the same.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SETS = ("arc", "arc5", "mmlu", "cont", "wiki")
ATOL, RTOL = 1e-3, 1e-5


def compare(lm: Any, recorded: dict[str, Any], *, limit: int | None = None) -> dict[str, Any]:
    """Score the recorded requests of one file and count what differs; `limit` is per task."""
    samples = [sample for task in recorded["samples"].values() for sample in task[:limit]]
    rolling = samples[0]["args"] is None
    started = time.perf_counter()
    ours = _rolled(lm, samples) if rolling else _scored(lm, samples)
    seconds = time.perf_counter() - started
    theirs = [[tuple(r) for r in s["resps"]] if not rolling else [(_total(s), None)] for s in samples]
    pairs = [(a, b) for mine, stock in zip(ours, theirs, strict=True) for a, b in zip(mine, stock, strict=True)]
    excess = [abs(a[0] - b[0]) / max(ATOL, RTOL * abs(b[0])) for a, b in pairs]
    return {
        "items": len(samples),
        "requests": len(pairs),
        "seconds": round(seconds, 2),
        "largest_difference": max(abs(a[0] - b[0]) for a, b in pairs),
        "largest_share_of_tolerance": max(excess),
        "outside_tolerance": sum(value > 1 for value in excess),
        "greedy_flags_differ": 0 if rolling else sum(a[1] != b[1] for a, b in pairs),
        "predictions_differ": 0 if rolling else sum(map(_picks_differ, samples, ours, theirs)),
    }


def _scored(lm: Any, samples: Sequence[dict[str, Any]]) -> list[list[tuple[float, bool]]]:
    asked = [tuple(pair) for sample in samples for pair in sample["args"]]
    answers = iter(lm.loglikelihood(_instances("loglikelihood", asked)))
    return [[tuple(next(answers)) for _ in sample["args"]] for sample in samples]


def _rolled(lm: Any, samples: Sequence[dict[str, Any]]) -> list[list[tuple[float, None]]]:
    texts = [(sample["target"],) for sample in samples]
    return [[(total, None)] for total in lm.loglikelihood_rolling(_instances("loglikelihood_rolling", texts))]


def _instances(verb: str, arguments: Sequence[tuple[str, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type=verb, doc={}, arguments=args, idx=index, metadata=("oracle", index, 1))
        for index, args in enumerate(arguments)
    ]


def _total(sample: dict[str, Any]) -> float:
    """A page's recorded sum, however deep it is nested."""
    value = sample["resps"]
    while isinstance(value, list):
        value = value[0]
    return float(value)


def _picks_differ(sample: dict[str, Any], mine: Sequence[Any], stock: Sequence[Any]) -> bool:
    lengths = np.array([len(pair[1].lstrip()) for pair in sample["args"]], dtype=float)
    ours, theirs = (np.array([answer[0] for answer in answers]) for answers in (mine, stock))
    return bool(ours.argmax() != theirs.argmax() or (ours / lengths).argmax() != (theirs / lengths).argmax())


def main() -> int:
    """Compare the sets asked for and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "oracle"
    parser.add_argument("--oracle", type=Path, default=beside)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--limit", type=int, help="items of each task; all by default")
    options = parser.parse_args()

    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
    from llm.models import load_model

    lm = LlamaLmEvalLM(*load_model(dtype="float32", device="cpu"))
    found = {}
    for name in options.sets.split(","):
        recorded = json.loads((options.oracle / f"{name}.json").read_text(encoding="utf-8"))
        found[name] = compare(lm, recorded, limit=options.limit)
        print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
    missed = sum(
        entry["outside_tolerance"] + entry["greedy_flags_differ"] + entry["predictions_differ"]
        for entry in found.values()
    )
    largest = max(entry["largest_difference"] for entry in found.values())
    print(json.dumps({"sets": found, "largest_difference": largest, "missed": missed}, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
