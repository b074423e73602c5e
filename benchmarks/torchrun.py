"""Two processes against one: ARC-Easy through lm-eval under torchrun, each process with one thread.

    python -m benchmarks.torchrun [--runs 3] [--data ../shared/data] [--limit 400] [--processes 2]

Runs alternate: one process, then several. Each loads the default model in float32 and has stock lm-eval evaluate
stock `arc_easy` on `LlamaLmEvalLM`. Two ratios are printed: of whole wall time, from starting the command to its end
(imports and loading included), and of the evaluation alone, from the first rank's start to the last one's end. Items
are compared after sorting by doc_id: log-likelihoods and 0/1 metrics must be the same floats, sums agree to 1e-12.
The last line is JSON; exit code 1 if anything differs.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REF = "smollm2-135m-instruct"
METRICS = ("acc", "acc_norm")
TOLERANCE = 1e-12


def evaluate_here(data: str, limit: int) -> dict[str, Any] | None:
    """This process's share of the evaluation; the report on the first rank, None on the others."""
    from llm.evaluation.harness.adapter import build_task_dict, evaluate
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
    from llm.models import load_model

    lm = LlamaLmEvalLM(*load_model(REF, dtype="float32", device="cpu"))
    lm.barrier()
    started = time.perf_counter()
    results = evaluate(lm, build_task_dict("arc_easy", data=data), limit=limit, bootstrap_iters=0)
    lm.barrier()
    seconds = time.perf_counter() - started
    peaks = lm.gather_object(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)
    if results is None:
        return None
    samples = sorted(results["samples"]["arc_easy"], key=lambda sample: sample["doc_id"])
    return {
        "processes": lm.world_size,
        "evaluation_seconds": seconds,
        "peak_gb": max(peaks or [0.0]),
        "items": [[s["doc_id"], s["filtered_resps"], *(s[metric] for metric in METRICS)] for s in samples],
        "results": {metric: results["results"]["arc_easy"][f"{metric},none"] for metric in METRICS},
    }


def run(processes: int, given: argparse.Namespace) -> dict[str, Any]:
    """One measured run, in processes of its own."""
    launcher = (
        [] if processes == 1 else ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    )
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", *launcher, "benchmarks.torchrun", "--worker", str(report)]
        command += ["--data", given.data, "--limit", str(given.limit)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        seconds = time.perf_counter() - started
        if done.returncode:
            sys.exit(f"the run with {processes} processes failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return found | {"wall_seconds": seconds}


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """One process and several in turn, `given.runs` times each."""
    alone: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []
    for number in range(given.runs):
        for processes, runs in ((1, alone), (given.processes, together)):
            runs.append(run(processes, given))
            print(f"# run {number + 1}, {processes}: {runs[-1]['wall_seconds']:.2f} s", file=sys.stderr)
    sums = [
        abs(one["results"][metric] - other["results"][metric]) / max(abs(one["results"][metric]), 1e-300)
        for one, other in zip(alone, together, strict=True)
        for metric in METRICS
    ]
    return {
        "task": "arc_easy",
        "items": len(alone[0]["items"]),
        "processes": together[0]["processes"],
        "threads_each": 1,
        "runs": given.runs,
        **_ratios("wall", alone, together),
        **_ratios("evaluation", alone, together),
        "peak_gb_of_a_process": round(max(one["peak_gb"] for one in [*alone, *together]), 2),
        "items_identical": all(one["items"] == alone[0]["items"] for one in [*alone, *together]),
        "largest_relative_difference_of_a_sum": max(sums),
        "results": alone[0]["results"],
    }


def _ratios(kind: str, alone: list[dict[str, Any]], together: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [(one[f"{kind}_seconds"], other[f"{kind}_seconds"]) for one, other in zip(alone, together, strict=True)]
    return {
        f"{kind}_seconds_one": [round(one, 2) for one, _ in pairs],
        f"{kind}_seconds_several": [round(other, 2) for _, other in pairs],
        f"median_ratio_of_{kind}": round(statistics.median(one / other for one, other in pairs), 2),
    }


def main() -> int:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--limit", type=int, default=400, help="items")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        with contextlib.redirect_stdout(sys.stderr):
            found = evaluate_here(given.data, given.limit)
        if found is not None:
            given.worker.write_text(json.dumps(found), encoding="utf-8")
        return 0
    report = compare(given)
    print(json.dumps(report, indent=2))
    return int(not report["items_identical"] or report["largest_relative_difference_of_a_sum"] > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
