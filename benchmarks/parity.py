"""How far this project's answers lie from the harnesses' own model classes on the same weights.

    python -m benchmarks.parity [--only NAME,…] [--data ../shared/data] [--arc 200] [--mmlu 25] [--out FILE]

For a tiny random checkpoint of each architecture and for the default model, in float32: `loglikelihood`,
`loglikelihood_rolling` and `generate_until` beside lm-eval's stock HFLM; chat prompts, generations and their
log-probabilities beside Inspect's `hf` provider. `largest` is the largest difference in nats (of a page: its whole
sum), `outside` counts those above 1e-3 nat, of a page above 3e-5 nat a token (HFLM's float32 log-softmax errs by nearly
2e-5 nat a token in one direction). `differ` counts other greedy flags, texts or prompts. The last two lines compare the
default model's predictions on real items: `acc` and `acc_norm` picks of ARC-Easy, and of MMLU with five shots. Exits 1
if anything differs or lies outside.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.parity_inspect import chat_rows
from benchmarks.peers import save_twin, stock_lm, stock_provider
from benchmarks.twins import ARCHITECTURES, make_twin

DEFAULT = "smollm2-135m-instruct"
SUBJECTS = ("abstract_algebra", "electrical_engineering", "high_school_psychology", "moral_disputes")
NATS, NATS_PER_TOKEN = 1e-3, 3e-5
STOPS = (["\n"], ["e", "zz"], ["<|im_end|>"])


@dataclass(frozen=True, kw_only=True)
class Row:
    """One verb of one model beside its peer: values compared, the largest difference in nats, how many of them are too
    large, and how many answers are other ones.
    """

    model: str
    verb: str
    peer: str
    compared: int
    largest: float
    outside: int
    differ: int


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a verb, as each is known; write them as JSON where asked."""
    options = _options(argv)
    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.WARNING)  # the peers tell of every text they cut
    rows, started = [], time.perf_counter()
    print(f"{'model':20} {'verb':22} {'peer':12} {'compared':>8} {'largest':>9} {'outside':>7} {'differ':>6}")
    for row in compare_all(options):
        rows.append(row)
        columns = f"{row.peer:12} {row.compared:8} {row.largest:9.1e} {row.outside:7} {row.differ:6}"
        print(f"{row.model:20} {row.verb:22} {columns}", flush=True)
    print(f"{time.perf_counter() - started:.0f} s")
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any(row.differ or row.outside for row in rows))


def compare_all(options: argparse.Namespace) -> Iterator[Row]:
    """Rows of every model asked for."""
    for name, architecture in ARCHITECTURES.items():
        if options.only is None or name in options.only:
            with TemporaryDirectory() as place:
                folder = Path(place) / "twin"
                make_twin(architecture, folder)
                yield from compare_model(name, load(architecture.ref(folder)), folder, *material())
    if options.only is None or "default" in options.only:
        with TemporaryDirectory() as place:
            folder = Path(place) / "twin"
            save_twin(DEFAULT, "float32", folder)
            decoder = load(DEFAULT)
            yield from compare_model("default", decoder, folder, *material())
            yield from compare_predictions(options, decoder, folder)


def load(ref: str) -> tuple[Any, Any]:
    """Model and tokenizer in float32 on the CPU."""
    from llm.models import load_model

    return load_model(ref, dtype="float32", device="cpu")


def material() -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Pairs, documents and prompts that reach edges: an empty context, moved spaces, a join within a token, texts
    longer than windows and contexts, letters of several bytes."""
    from llm.evaluation.data import load_items, load_pages
    from llm.evaluation.lm_eval_prompts import render

    prompts = [render(item) for item in load_items("arc_easy", "sample", limit=6)]
    pairs = [(prompt.context, text) for prompt in prompts for text in prompt.continuations]
    shots = "\n\n".join(prompt.context + prompt.continuations[0] for prompt in prompts)
    pairs += [(f"{shots}\n\n{pairs[0][0]}", pairs[0][1]), (shots[:400], shots[400:520]), ("", "The Moon"), ("A: ", "b")]
    pairs += [("Question: wh", "at is water"), ("naïve café → ", "水 é"), ("x \n", " y"), ("The", " so" * 60)]
    pages = load_pages("sample", limit=2)
    documents = ["Hi", pages[0][:300], pages[1][:2500], "水 — naïve\n\n " * 20]
    return pairs, documents, [prompt.context for prompt in prompts[:4]] + [shots]


def compare_model(
    name: str,
    decoder: tuple[Any, Any],
    folder: Path,
    pairs: list[tuple[str, str]],
    documents: list[str],
    prompts: list[str],
) -> Iterator[Row]:
    """Every verb of a model and tokenizer beside the peers on the checkpoint in `folder`, of the same weights."""
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM

    ours, stock = LlamaLmEvalLM(*decoder), stock_lm(folder)
    yield _scored(name, "loglikelihood", ours, stock, pairs)
    stock.add_bos_token = False  # or HFLM puts its prefix token before a BOS of the tokenizer's, and scores that
    limits = [max(NATS, NATS_PER_TOKEN * len(stock.tok_encode(document))) for document in documents]
    yield _scored(name, "loglikelihood_rolling", ours, stock, [(document,) for document in documents], limits)
    stock.add_bos_token = None
    stock.batch_size_per_gpu = 1  # padding on the left would move the peer's own numbers
    asked = [(prompt, {"until": until, "max_gen_toks": 16}) for prompt in prompts for until in STOPS]
    texts, theirs = (lm.generate_until(instances("generate_until", asked), disable_tqdm=True) for lm in (ours, stock))
    differ = sum(a != b for a, b in zip(texts, theirs, strict=True))
    yield _row(name, "generate_until", "HFLM", [0.0] * len(asked), [0.0] * len(asked), differ)
    for verb, mine, peers, differ in chat_rows(*decoder, stock_provider(folder)):
        yield _row(name, verb, "Inspect hf", mine, peers, differ)


def _row(
    name: str,
    verb: str,
    peer: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    differ: int,
    limits: Sequence[float] | None = None,
) -> Row:
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    outside = sum(not d <= limit for d, limit in zip(differences, limits or [NATS] * len(differences), strict=True))
    largest = max(differences)
    return Row(model=name, verb=verb, peer=peer, compared=len(ours), largest=largest, outside=outside, differ=differ)


def _scored(
    name: str,
    verb: str,
    ours: Any,
    stock: Any,
    asked: Sequence[tuple[str, ...]],
    limits: Sequence[float] | None = None,
) -> Row:
    mine, theirs = ([_pair(answer) for answer in score(lm, verb, asked)] for lm in (ours, stock))
    differ = sum(a != b for (_, a), (_, b) in zip(mine, theirs, strict=True))
    return _row(name, verb, "HFLM", [a for a, _ in mine], [b for b, _ in theirs], differ, limits)


def _pair(answer: Any) -> tuple[float, bool | None]:
    return (float(answer[0]), bool(answer[1])) if isinstance(answer, tuple) else (float(answer), None)


def compare_predictions(options: argparse.Namespace, decoder: tuple[Any, Any], folder: Path) -> Iterator[Row]:
    """What the default model picks on real items, by lm-eval's own rules, with either scorer."""
    from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM

    ours, stock = LlamaLmEvalLM(*decoder), stock_lm(folder)
    for name, prompts in real_prompts(options.data, options.arc, options.mmlu).items():
        asked = [(prompt.context, text) for prompt in prompts for text in prompt.continuations]
        mine, theirs = ([float(value) for value, _ in score(lm, "loglikelihood", asked)] for lm in (ours, stock))
        differ = sum(a != b for a, b in zip(picks(prompts, mine), picks(prompts, theirs), strict=True))
        yield _row("default", f"picks {name}", "HFLM", mine, theirs, differ)


def real_prompts(data: str, num_arc: int, num_mmlu: int) -> dict[str, list[Any]]:
    """The stock prompts of the first ARC-Easy items, and of each MMLU subject's first with its five shots."""
    from llm.evaluation.data import load_items
    from llm.evaluation.lm_eval_prompts import mmlu_shots, render

    shots = {subject: mmlu_shots(data, subject, 5) for subject in SUBJECTS}
    return {
        "arc_easy": [render(item) for item in load_items("arc_easy", data, limit=num_arc)],
        "mmlu 5-shot": [
            render(item, shots[item.subject])
            for item in load_items("mmlu", data, subjects=list(SUBJECTS), limit=num_mmlu)
        ],
    }


def picks(prompts: Sequence[Any], values: Sequence[float]) -> list[int | None]:
    """lm-eval's `acc` and `acc_norm` predictions of every prompt, from the flat scores of its continuations."""
    from llm.evaluation.rules import normalise, pick

    found, at = [], 0
    for prompt in prompts:
        scores = values[at : at + len(prompt.continuations)]
        at += len(scores)
        lengths = [len(text) for text in prompt.choice_texts]
        found.append(pick(scores, tie_break="first"))
        found.append(pick(normalise(scores, rule="char", num_chars=lengths), tie_break="first"))
    return found


def score(lm: Any, verb: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
    """One verb of either LM."""
    return list(getattr(lm, verb)(instances(verb, asked), disable_tqdm=True))


def instances(verb: str, asked: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Requests as lm-eval hands them to a model."""
    from lm_eval.api.instance import Instance

    return [
        Instance(request_type=verb, doc={}, arguments=args, idx=index, metadata=("parity", index, 1))
        for index, args in enumerate(asked)
    ]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"of {', '.join(ARCHITECTURES)}, default")
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--arc", type=int, default=200, help="ARC-Easy items")
    parser.add_argument("--mmlu", type=int, default=25, help="items of each of four MMLU subjects")
    parser.add_argument("--out", type=Path, help="the rows as JSON")
    options = parser.parse_args(argv)
    unknown = set(options.only or ()) - {*ARCHITECTURES, "default"}
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
