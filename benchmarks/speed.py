"""Scoring speed beside lm-eval's own HFLM: the same requests, weights, dtype and machine, in alternated runs.

    python -m benchmarks.speed mmlu [--dtype float32] [--runs 3] [--data ../shared/data]

Sets: `mmlu` (5-shot; four subjects, first 25 test items each), `arc_easy` (0-shot, first 200), `arc_easy_5shot`
(first 60), `wikitext` (rolling windows of the first 6 pages). Every run is a process of its own, peer and ours in
turn, that loads the model, then times the scoring call alone; peak memory is the process's. The ratio of processor time
is told beside that of seconds: on a busy machine it is the surer one. The last line is JSON.

The bound is what the model's products alone would take: FLOPs of the linear layers over the distinct tokens and of
the vocabulary head over the scored positions, divided by the best product rate of that dtype measured in the same
process on the model's own shapes. Attention's products are left out.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SUBJECTS = ("abstract_algebra", "electrical_engineering", "high_school_psychology", "moral_disputes")
SETS = ("mmlu", "arc_easy", "arc_easy_5shot", "wikitext")
PEER_BATCH = {"mmlu": 8, "arc_easy": 8, "arc_easy_5shot": 8, "wikitext": 1}
REF = "smollm2-135m-instruct"
WARM_UP = ("Kernels are chosen and memory is touched by a text that shares no beginning with the set, such as", " this")


def pairs_of(name: str, data: str, limit: int | None) -> list[tuple[str, ...]]:
    """The set's (context, continuation) pairs, or (page,) texts, as stock lm-eval builds them."""
    from llm.evaluation.data import load_items, load_pages
    from llm.evaluation.lm_eval_prompts import arc_shots, mmlu_shots, render

    if name == "wikitext":
        from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer

        return [(wikitext_detokenizer({"page": page}),) for page in load_pages(data, limit=limit or 6)]
    if name == "mmlu":
        items = load_items("mmlu", data, subjects=list(SUBJECTS), limit=limit or 25)
        shots = {subject: mmlu_shots(data, subject, 5) for subject in SUBJECTS}
        prompts = [render(item, shots[item.subject]) for item in items]
    else:
        items = load_items("arc_easy", data, limit=limit or (60 if name == "arc_easy_5shot" else 200))
        drawn = arc_shots(data, 5, limit=len(items)) if name == "arc_easy_5shot" else [()] * len(items)
        prompts = [render(item, shots) for item, shots in zip(items, drawn, strict=True)]
    return [(prompt.context, text) for prompt in prompts for text in prompt.continuations]


def peer(dtype: str, batch_size: int) -> Any:
    """Stock HFLM around transformers' own Llama holding the default model's weights."""
    from lm_eval.models.huggingface import HFLM

    from benchmarks.peers import transformers_twin

    model, tokenizer = transformers_twin(REF, dtype)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, dtype=dtype, device="cpu")


def ours(dtype: str) -> tuple[Any, Any]:
    """Our LM on the same weights, and the engine it asks."""
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
    from llm.models import load_model
    from llm.scoring.engine import ScoringEngine

    model, tokenizer = load_model(REF, dtype=dtype, device="cpu")
    engine = ScoringEngine(model)
    return LlamaLmEvalLM(model, tokenizer, scorer=engine), engine


def score(lm: Any, pairs: list[tuple[str, ...]]) -> list[Any]:
    """Both harnesses' call for the set."""
    from lm_eval.api.instance import Instance

    kind = "loglikelihood" if len(pairs[0]) == 2 else "loglikelihood_rolling"
    instances = [
        Instance(request_type=kind, doc={}, arguments=pair, idx=0, metadata=("speed", index, 1))
        for index, pair in enumerate(pairs)
    ]
    return getattr(lm, kind)(instances)


def worker(side: str, name: str, dtype: str, data: str, limit: int | None) -> dict[str, Any]:
    """One measured run in this process."""
    import torch

    pairs = pairs_of(name, data, limit)
    lm, engine = ours(dtype) if side == "ours" else (peer(dtype, PEER_BATCH[name]), None)
    score(lm, [WARM_UP[: len(pairs[0])]])
    before = _counts(engine)
    started, cpu_started = time.perf_counter(), time.process_time()
    answers = score(lm, pairs)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    report: dict[str, Any] = {
        "side": side,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "threads": torch.get_num_threads(),
        "answers": [a[0] if isinstance(a, tuple) else float(a) for a in answers],
    }
    if engine is not None:
        after = _counts(engine)
        distinct, total, scored = (b - a for a, b in zip(before, after, strict=True))
        layer_flops, head_flops = flops_of(engine.model)
        rate = best_rate(engine.model)
        bound = (distinct * layer_flops + scored * head_flops) / rate
        report |= {"distinct_tokens": distinct, "total_tokens": total, "scored_positions": scored}
        report |= {"best_gflops": rate / 1e9, "bound_seconds": bound, "share_of_bound": bound / seconds}
    return report


def _counts(engine: Any) -> tuple[int, int, int]:
    if engine is None:
        return (0, 0, 0)
    stats = engine.stats
    return stats.num_distinct_tokens, stats.num_total_tokens, stats.num_scored_positions


def flops_of(model: Any) -> tuple[int, int]:
    """(FLOPs of the linear layers for a token, of the vocabulary head for a scored position)."""
    layers = sum(p.numel() for name, p in model.layers.named_parameters() if p.ndim == 2)
    head = model.lm_head.weight
    return 2 * layers, 2 * head.numel()


def best_rate(model: Any, *, rows: tuple[int, ...] = (512, 1024, 2048), repeats: int = 7) -> float:
    """The best rate (FLOP/s) of any product kernel on the shapes of the model's linear layers."""
    import torch

    from llm.models.products import linear

    layer = model.layers[0]
    weights = [p for p in layer.parameters() if p.ndim == 2]
    best = 0.0
    with torch.inference_mode():
        for weight in weights:
            for num_rows in rows:
                x = torch.randn(num_rows, weight.shape[1]).to(weight.dtype)
                for kernel in (linear, torch.nn.functional.linear):
                    if kernel is not linear and weight.dtype != torch.float32:
                        continue  # ours is at least as fast, it chose by timing
                    best = max(best, 2 * num_rows * weight.numel() / _fastest(lambda: kernel(x, weight), repeats))  # noqa: B023
    return best


def _fastest(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def compare(name: str, dtype: str, runs: int, data: str, limit: int | None) -> dict[str, Any]:
    """Peer and ours in turn, `runs` times each."""
    measured: dict[str, list[dict[str, Any]]] = {"peer": [], "ours": []}
    for run in range(runs):
        for side in ("peer", "ours"):
            report = _in_process(side, name, dtype, data, limit)
            measured[side].append(report)
            print(f"# run {run + 1} {side}: {report['seconds']:.2f} s, {report['peak_gb']:.2f} GB", file=sys.stderr)
    theirs, mine = measured["peer"], measured["ours"]
    differences = [abs(a - b) for a, b in zip(theirs[0]["answers"], mine[0]["answers"], strict=True)]
    return {
        "set": name,
        "dtype": dtype,
        "runs": runs,
        "requests": len(differences),
        "peer": f"HFLM, batch {PEER_BATCH[name]}",
        "peer_seconds": [round(r["seconds"], 2) for r in theirs],
        "our_seconds": [round(r["seconds"], 2) for r in mine],
        "median_ratio": _median_ratio(theirs, mine, "seconds"),
        "median_cpu_ratio": _median_ratio(theirs, mine, "cpu_seconds"),
        "peer_peak_gb": round(max(r["peak_gb"] for r in theirs), 2),
        "our_peak_gb": round(max(r["peak_gb"] for r in mine), 2),
        "distinct_tokens": mine[0]["distinct_tokens"],
        "total_tokens": mine[0]["total_tokens"],
        "scored_positions": mine[0]["scored_positions"],
        "best_gflops": round(statistics.median(r["best_gflops"] for r in mine), 1),
        "share_of_bound": round(statistics.median(r["share_of_bound"] for r in mine), 3),
        "largest_difference_nats": max(differences),
    }


def _median_ratio(theirs: list[dict[str, Any]], mine: list[dict[str, Any]], what: str) -> float:
    return round(statistics.median(a[what] / b[what] for a, b in zip(theirs, mine, strict=True)), 2)


def _in_process(side: str, name: str, dtype: str, data: str, limit: int | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.speed", name, "--dtype", dtype, "--data", data, "--worker", side]
    if limit is not None:
        command += ["--limit", str(limit)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"the {side} run failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--limit", type=int, help="items (of each subject), where fewer than the set's own are wanted")
    parser.add_argument("--worker", choices=("peer", "ours"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        with contextlib.redirect_stdout(sys.stderr):
            report = worker(given.worker, given.set, given.dtype, given.data, given.limit)
        print(json.dumps(report))
    else:
        print(json.dumps(compare(given.set, given.dtype, given.runs, given.data, given.limit), indent=2))


if __name__ == "__main__":
    main()
