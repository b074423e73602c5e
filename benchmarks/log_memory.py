"""Memory and time of reading big logs: `python -m benchmarks.log_memory RUN DIR [--items N]`.

RUN is the folder of a finished `python -m reconcile` run. Its logs are blown up to N items (14,042, all of MMLU, by
default) in DIR, with questions of their own, in a process of their own; then `reconcile logs` reads them in another,
whose peak memory and seconds are printed as JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

MAKE, READ = "make", "read"


def make_logs(run: Path, folder: Path, num_items: int) -> None:
    """Both harnesses' logs of `run`, its items repeated until there are so many."""
    folder.mkdir(parents=True, exist_ok=True)
    _make_lm_eval(run / "lm_eval", folder / "lm_eval", num_items)
    _make_inspect(next((run / "inspect").glob("*.eval")), folder / "big.eval", num_items)


def _make_lm_eval(source: Path, target: Path, num_items: int) -> None:
    """One results file and one samples file of a single task."""
    target.mkdir(exist_ok=True)
    (results,) = source.glob("results_*.json")
    (samples,) = source.glob("samples_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    total = 0.0
    with (target / samples.name).open("w") as file:
        for number in range(num_items):
            line = dict(lines[number % len(lines)])
            line["doc_id"] = number
            line["doc"] = {**line["doc"], "question": f"{number}: {line['doc']['question']}"}
            line.pop("doc_hash", None)
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
    own = list(log.samples)
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
