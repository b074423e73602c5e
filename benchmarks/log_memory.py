"""Memory and time of reading big logs: `python -m benchmarks.log_memory RUN DIR [--items N]`.

RUN is the folder of a finished `python -m reconcile arc_easy` run. Its logs are blown up to N items (14,042, as many as
all of MMLU, by default) in DIR, with questions of their own, in a process of their own; then the ledger is made
from them in another, whose peak memory and seconds are printed as JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from reconcile.lm_eval_logs import TRACE_NAME, read_trace
from reconcile.log_values import pair_digest

MAKE, READ = "make", "read"


def make_logs(run: Path, folder: Path, num_items: int) -> None:
    """Both harnesses' logs of `run`, its items repeated until there are so many, in one order in both."""
    folder.mkdir(parents=True, exist_ok=True)
    _make_lm_eval(run / "lm_eval", folder / "lm_eval", num_items)
    _make_inspect(next((run / "inspect").glob("*.eval")), folder / "big.eval", num_items)


def _make_lm_eval(source: Path, target: Path, num_items: int) -> None:
    """One results file, one samples file of a single task and the trace of its requests."""
    target.mkdir(exist_ok=True)
    (results,) = source.glob("results_*.json")
    (samples,) = source.glob("samples_*.jsonl")
    lines = sorted(samples.read_text().strip().split("\n"), key=lambda line: json.loads(line)["doc"]["question"])
    traced, total = read_trace(source), 0.0
    with (target / samples.name).open("w") as file, (target / TRACE_NAME).open("w") as trace:
        for number in range(num_items):
            line = json.loads(lines[number % len(lines)])
            asked, line["doc_id"] = line["doc"]["question"], number
            line["doc"]["question"] = f"{number}: {asked}"
            line.pop("doc_hash", None)
            for pair in line["arguments"].values():
                found = traced.get(pair_digest(pair["arg_0"], pair["arg_1"]), {})
                pair["arg_0"] = pair["arg_0"].replace(asked, line["doc"]["question"])
                trace.write(json.dumps({**found, "pair": pair_digest(pair["arg_0"], pair["arg_1"])}) + "\n")
            total += float(line["acc"])
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    document = json.loads(results.read_text())
    name = samples.name.removeprefix("samples_").rpartition("_")[0]
    document["results"][name]["acc,none"] = total / num_items
    document["n-samples"] = {name: {"original": num_items, "effective": num_items}}
    (target / results.name).write_text(json.dumps(document))


def _make_inspect(source: Path, target: Path, num_items: int) -> None:
    from inspect_ai.log import read_eval_log, write_eval_log

    from reconcile.inspect_logs import score_value

    log = read_eval_log(str(source))
    assert log.samples
    assert log.results
    own = sorted(log.samples, key=lambda sample: sample.metadata["question"])
    samples, total = [], 0.0
    for number in range(num_items):
        sample = own[number % len(own)].model_copy()
        sample.id = f"{number}"
        sample.uuid = None
        sample.metadata = {**sample.metadata, "question": f"{number}: {sample.metadata['question']}"}
        samples.append(sample)
        assert sample.scores
        total += score_value(next(iter(sample.scores.values())).value)
    log.samples, log.reductions = samples, None
    log.results.scores[0].metrics["accuracy"].value = total / num_items
    log.results.total_samples = log.results.completed_samples = num_items
    write_eval_log(log, str(target))


def read_logs(folder: Path) -> None:
    """Reads both logs and accounts for the gap; prints seconds and peak memory."""
    from reconcile import reconcile_runs

    marks = [time.perf_counter()]
    ledger = reconcile_runs(folder / "lm_eval", folder / "big.eval").ledger
    marks.append(time.perf_counter())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "items": ledger.num_items["common"],
                "replayed": ledger.num_items["replayed"],
                "seconds": round(marks[1] - marks[0], 1),
                "peak_memory_mib": round(peak),
                "log_bytes": {path.name: path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()},
                "accounted": ledger.accounted,
            }
        )
    )


def main() -> None:
    """Makes the logs and reads them, a process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=int, default=14_042)
    parser.add_argument("--stage", choices=(MAKE, READ), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage == MAKE:
        make_logs(options.run, options.folder, options.items)
    elif options.stage == READ:
        read_logs(options.folder)
    else:
        for stage in (MAKE, READ):
            subprocess.run([sys.executable, "-m", "benchmarks.log_memory", *sys.argv[1:], "--stage", stage], check=True)


if __name__ == "__main__":
    main()
