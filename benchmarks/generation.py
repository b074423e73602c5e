"""Generation speed beside Inspect's own `hf` provider: the same questions, weights, dtype and machine, runs in turn.

    python -m benchmarks.generation [--runs 3] [--data ../shared/data] [--prompts 64] [--tokens 64] [--solo 64]

Both sides are asked through Inspect's `get_model(…).generate`: ARC-Easy questions as user messages, 32 calls at a
time, greedy, float32, at most 64 new tokens each. Every run is a process of its own that loads the model, makes one
short call and then times all the others; peak memory is the process's. Tokens are those of the texts that came back,
counted alike on both sides. Afterwards `--solo` of the questions are asked once more together and each alone, with
logprobs, and must give the same texts and floats. The last line is JSON; exit code 1 if an output is not its solo one.

The bound is what the model's products alone would take at the best rate measured in the same process: the linear
layers over each distinct prompt token and each generated one, the vocabulary head for each generated one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REF = "smollm2-135m-instruct"
AT_ONCE = 32


def questions_of(data: str, count: int) -> list[str]:
    """The first ARC-Easy test questions."""
    from llm.evaluation.data import load_items

    return [item.question for item in load_items("arc_easy", data, limit=count)]


def peer_model(folder: str, num_tokens: int) -> Any:
    """Inspect's hf provider on a folder that `write_checkpoint` has made."""
    from inspect_ai.model import GenerateConfig, get_model

    config = GenerateConfig(max_tokens=num_tokens, max_connections=AT_ONCE)
    return get_model("hf/local", config=config, model_path=folder, dtype="float32", device="cpu", do_sample=False)


def our_model(num_tokens: int, *, at_once: int = AT_ONCE, logprobs: bool = False) -> Any:
    """This project's provider on the default model."""
    from inspect_ai.model import GenerateConfig, get_model

    config = GenerateConfig(max_tokens=num_tokens, max_connections=at_once, logprobs=logprobs or None)
    return get_model(f"decoder/{REF}", config=config, memoize=False, dtype="float32", device="cpu", batch_size=AT_ONCE)


def write_checkpoint(folder: str) -> None:
    """The default model's weights and tokenizer as transformers reads them."""
    from benchmarks.peers import transformers_twin

    model, tokenizer = transformers_twin(REF, "float32")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


async def ask(model: Any, questions: Sequence[str]) -> list[Any]:
    """All outputs, in order; Inspect's own limit on connections decides how many are under way."""
    return list(await asyncio.gather(*[model.generate(question) for question in questions]))


def measure(side: str, folder: str, data: str, num_prompts: int, num_tokens: int) -> dict[str, Any]:
    """One measured run in this process."""
    import torch

    questions = questions_of(data, num_prompts)

    async def run() -> tuple[float, list[Any]]:
        model = peer_model(folder, num_tokens) if side == "peer" else our_model(num_tokens)
        short = type(model.config)(max_tokens=2)
        await model.generate(questions[0], config=short)  # loaded, kernels chosen
        started = time.perf_counter()
        outputs = await ask(model, questions)
        return time.perf_counter() - started, outputs

    seconds, outputs = asyncio.run(run())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    texts = [output.completion for output in outputs]
    report = {"seconds": seconds, "peak_gb": peak, "threads": torch.get_num_threads(), "texts": texts}
    report["tokens"] = sum(map(len, _ids_of(texts)))
    return report | (_bound(questions, outputs, seconds) if side == "ours" else {})


def _ids_of(texts: Sequence[str]) -> list[list[int]]:
    from llm.models import load_tokenizer

    tokenizer = load_tokenizer(REF)
    return [list(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]


def _bound(questions: Sequence[str], outputs: Sequence[Any], seconds: float) -> dict[str, Any]:
    from benchmarks.speed import best_rate, flops_of
    from llm.models import load_model

    model, tokenizer = load_model(REF, dtype="float32", device="cpu")
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    distinct = len({tuple(ids[:end]) for ids in prompts for end in range(1, len(ids) + 1)})
    generated = sum(output.usage.output_tokens for output in outputs)
    layer_flops, head_flops = flops_of(model)
    rate = best_rate(model)
    bound = ((distinct + generated - len(outputs)) * layer_flops + generated * head_flops) / rate
    return {
        "distinct_prompt_tokens": distinct,
        "generated_tokens": generated,
        "best_gflops": rate / 1e9,
        "share_of_bound": bound / seconds,
    }


def check_solo(data: str, num_prompts: int, num_tokens: int, num_solo: int) -> dict[str, Any]:
    """The questions once together, and some of them each alone, logprobs included."""
    questions = questions_of(data, num_prompts)

    async def run() -> tuple[list[Any], list[Any]]:
        together = await ask(our_model(num_tokens, logprobs=True), questions)
        alone = await ask(our_model(num_tokens, at_once=1, logprobs=True), questions[:num_solo])
        return together, alone

    together, alone = asyncio.run(run())
    equal = sum(_said(one) == _said(other) for one, other in zip(together, alone, strict=False))
    return {"solo_runs": len(alone), "equal_to_solo": equal, "texts": [output.completion for output in together]}


def _said(output: Any) -> tuple[str, list[tuple[str, float]]]:
    choice = output.choices[0]
    return choice.message.text, [(entry.token, entry.logprob) for entry in choice.logprobs.content]


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Peer and ours in turn, then the solo runs."""
    measured: dict[str, list[dict[str, Any]]] = {"peer": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        if given.runs:
            _in_process("checkpoint", folder, given)
        for run in range(given.runs):
            for side in ("peer", "ours"):
                report = _in_process(side, folder, given)
                measured[side].append(report)
                print(f"# run {run + 1} {side}: {report['seconds']:.2f} s, {report['peak_gb']:.2f} GB", file=sys.stderr)
        solo = _in_process("solo", folder, given) if given.solo else {}
    report = {
        "prompts": given.prompts,
        "new_tokens": given.tokens,
        "at_once": AT_ONCE,
        "dtype": "float32",
        "runs": given.runs,
    }
    if given.runs:
        report |= _figures(measured["peer"], measured["ours"])
    if solo:
        texts = solo.pop("texts")
        report |= solo
        if given.runs:
            report["timed_texts_equal_to_checked"] = all(run["texts"] == texts for run in measured["ours"])
    return report


def _figures(theirs: Sequence[dict[str, Any]], mine: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ratios = [(b["tokens"] / b["seconds"]) / (a["tokens"] / a["seconds"]) for a, b in zip(theirs, mine, strict=True)]
    return {
        "peer": f"Inspect's hf provider, batch {AT_ONCE}",
        "threads": mine[0]["threads"],
        "peer_seconds": [round(run["seconds"], 2) for run in theirs],
        "our_seconds": [round(run["seconds"], 2) for run in mine],
        "peer_tokens": theirs[0]["tokens"],
        "our_tokens": mine[0]["tokens"],
        "median_ratio_of_tokens_per_second": round(statistics.median(ratios), 2),
        "texts_equal_to_peer": sum(a == b for a, b in zip(theirs[0]["texts"], mine[0]["texts"], strict=True)),
        "peer_peak_gb": round(max(run["peak_gb"] for run in theirs), 2),
        "our_peak_gb": round(max(run["peak_gb"] for run in mine), 2),
        "distinct_prompt_tokens": mine[0]["distinct_prompt_tokens"],
        "generated_tokens": mine[0]["generated_tokens"],
        "best_gflops": round(statistics.median(run["best_gflops"] for run in mine), 1),
        "share_of_bound": round(statistics.median(run["share_of_bound"] for run in mine), 3),
    }


def _in_process(job: str, folder: str, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.generation", "--worker", job, "--folder", folder]
    for name in ("data", "prompts", "tokens", "solo"):
        command += [f"--{name}", str(getattr(given, name))]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"the {job} run failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _worker(given: argparse.Namespace) -> dict[str, Any]:
    if given.worker == "checkpoint":
        write_checkpoint(given.folder)
        return {}
    if given.worker == "solo":
        return check_solo(given.data, given.prompts, given.tokens, given.solo)
    return measure(given.worker, given.folder, given.data, given.prompts, given.tokens)


def main() -> int:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each side; 0 for the solo runs alone")
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each prompt, at most")
    parser.add_argument("--solo", type=int, default=64, help="questions also asked alone; 0 for none")
    parser.add_argument("--worker", choices=("checkpoint", "peer", "ours", "solo"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        with contextlib.redirect_stdout(sys.stderr):
            report = _worker(given)
        print(json.dumps(report))
        return 0
    report = compare(given)
    print(json.dumps(report, indent=2))
    return int(report.get("equal_to_solo") != report.get("solo_runs"))


if __name__ == "__main__":
    sys.exit(main())
