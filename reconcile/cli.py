"""The command line: parses and checks everything that can be checked before torch or a harness is imported.

Exit codes: 0 the gap is accounted for; 1 items are unexplained, a proof failed or a gap is past what is allowed; 2
usage or input at fault, said in one sentence; 3 internal fault; 130 interrupted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from llm.errors import InputError
from reconcile.faults import full_disk, internal_fault, one_line
from reconcile.options import (
    DTYPES,
    LOGITS_DTYPES,
    METRICS,
    NORMALISATIONS,
    PAGE_TEXTS,
    READOUTS,
    TASKS,
    TEMPLATES,
    TIE_BREAKS,
    RunOptions,
    native_protocol,
    with_overrides,
)
from reconcile.runs import Protocol

EXIT_ACCOUNTED, EXIT_UNEXPLAINED, EXIT_USAGE, EXIT_FAULT, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

DEFAULT_MODEL = "smollm2-135m-instruct"

_POINT = {False: "a point is 0.01 of the score", True: "for wikitext a point is 0.01 bit per byte"}
"""What --fail-over counts, by whether the score is of pages."""

_EPILOG = """\
exit codes: 0 the gap is accounted for, 1 items are unexplained, a proof failed or a gap is past what is allowed,
2 usage or input at fault, 3 internal fault, 130 interrupted"""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one sentence, without the usage block."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; nothing but the code says how it ended."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        command = _parse(arguments)
        return command()
    except InputError as error:
        print(f"reconcile: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt as error:
        print(f"reconcile: interrupted{': ' if str(error) else ''}{error}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_INTERRUPTED
    except ImportError as error:
        print(f"reconcile: {one_line(error)}", file=sys.stderr)
        return EXIT_USAGE
    except Exception as error:
        full = full_disk(error)
        if full is not None:
            print(f"reconcile: {full}", file=sys.stderr)
            return EXIT_USAGE
        print(f"reconcile: {internal_fault(error)}", file=sys.stderr)
        return EXIT_FAULT


def _parse(arguments: list[str]) -> Callable[[], int]:
    parser = _build_parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        raise InputError(f"unknown task or command {arguments[0]!r}: one of {', '.join(_COMMANDS)}")
    if not arguments:
        raise InputError(f"no task given: one of {', '.join(TASKS)}, or a command ({', '.join(_COMMANDS[3:])})")
    parsed = parser.parse_args(arguments)
    return lambda: parsed.run(parsed)


_COMMANDS = (*TASKS, "logs", "agreement", "report", "diff", "cache")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m reconcile",
        description="Run one model behind lm-evaluation-harness and Inspect AI and account for the score gap exactly.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="|".join(_COMMANDS), required=True, parser_class=_Parser)
    for task in TASKS:
        about = f"run both harnesses on {task} and reconcile their scores"
        _add_task(commands.add_parser(task, help=about, description=_sentence(about)), task)
    about = "reconcile two finished runs, of any engine, from their own logs"
    _add_logs(commands.add_parser("logs", help=about, description=_sentence(about)))
    about = "correlation and ranking over sub-tasks and models"
    _add_agreement(commands.add_parser("agreement", help=about, description=_sentence(about)))
    about = "make any form of a finished run's report again, from its folder alone"
    _add_report(commands.add_parser("report", help=about, description=_sentence(about)))
    about = "what changed between two finished runs"
    _add_diff(commands.add_parser("diff", help=about, description=_sentence(about)))
    about = "look into the store of scored requests, check it or make it smaller"
    _add_cache(commands.add_parser("cache", help=about, description=_sentence(about)))
    return parser


def _sentence(about: str) -> str:
    return about[0].upper() + about[1:] + "."


def _add_task(parser: argparse.ArgumentParser, task: str) -> None:
    parser.set_defaults(run=_run_task, task=task)
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="REF",
        help="default: %(default)s; or a .gguf file, a checkpoint folder, a Hub id",
    )
    parser.add_argument(
        "--data",
        default="sample",
        metavar="sample|hub|DIR",
        help="default: the sample data in the package; DIR is laid out as the Hub",
    )
    parser.add_argument("--limit", type=_whole_number(1), metavar="N", help="only the first N items of each sub-task")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="of the model's weights (auto: float32 on a CPU)"
    )
    parser.add_argument(
        "--logits-dtype", choices=LOGITS_DTYPES, default="float32", help="that logits are rounded to before log-softmax"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--seed", type=_whole_number(0), default=0, help="of the random tie-break")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/<task>-<hash of what was asked>)"
    )
    parser.add_argument("--plots", action="store_true", help="SVG of each plot; a run's folder has them in any case")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no tables: the verdict alone")
    about = f"exit 1 when the gap is more than X points, accounted for or not; {_POINT[task == 'wikitext']}"
    parser.add_argument("--fail-over", type=_distance, metavar="X", help=about)
    parser.add_argument(
        "--no-cache", action="store_true", help="share nothing between the harnesses: no score store, an engine each"
    )
    _add_engines(parser)
    if task == "mmlu":
        parser.add_argument("--subjects", metavar="A,B,…", help="only these of the 57 subjects")
    if task == "wikitext":
        _add_page_texts(parser)
        return
    parser.add_argument("--metric", choices=tuple(METRICS), help="lm-eval's metric to compare (default: acc)")
    parser.add_argument(
        "--num-fewshot",
        type=_whole_number(0),
        metavar="K",
        help="shots on both sides (default: 5 for mmlu, 0 for arc_easy)",
    )
    about = "also run either side's protocol on both, nothing shared, and hold every request against its twin"
    parser.add_argument("--prove", action="store_true", help=about)
    about = "also compute N items' requests (default: 20) in the other dtype and through the plain padded path"
    parser.add_argument("--numerics", type=_whole_number(1), nargs="?", const=20, metavar="N", help=about)
    _add_side(parser, "lm-eval")
    _add_side(parser, "inspect")


def _add_page_texts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what pages are scored as: lm-eval's detokenised text, or the data's own")
    group.add_argument("--lm-eval-text", choices=PAGE_TEXTS, default="detokenised", help="default: %(default)s")
    group.add_argument("--inspect-text", choices=PAGE_TEXTS, default="raw", help="default: %(default)s")


def _add_engines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("other engines, in place of --model on one side or both")
    group.add_argument("--lm-eval-model", metavar="NAME", help="lm-eval's --model: local-completions, hf, vllm, …")
    group.add_argument("--lm-eval-model-args", default="", metavar="K=V,…", help="lm-eval's --model_args for it")
    about = (
        "Inspect's --model, of a provider that returns prompt logprobs: openai-api-completions/…, vllm-completions/…"
    )
    group.add_argument("--inspect-model", metavar="PROVIDER/NAME", help=about)
    about = "send that model this reference's token ids instead of text"
    group.add_argument("--tokenizer", metavar="REF", help=about)


def _add_side(parser: argparse.ArgumentParser, side: str) -> None:
    group = parser.add_argument_group(f"{side} side's protocol (default: the one it uses natively)")
    group.add_argument(f"--{side}-template", choices=TEMPLATES, help="who words the text the model sees")
    group.add_argument(f"--{side}-num-fewshot", type=_whole_number(0), metavar="K")
    group.add_argument(f"--{side}-normalisation", choices=NORMALISATIONS, help="of a choice's logprob by its length")
    group.add_argument(f"--{side}-tie-break", choices=TIE_BREAKS)
    about = "of its random tie-break, where it differs from --seed"
    group.add_argument(f"--{side}-seed", type=_whole_number(0), metavar="N", help=about)
    about = "scores this close count as tied (default: 0)"
    group.add_argument(f"--{side}-tie-atol", type=_distance, metavar="NATS", help=about)
    if side == "inspect":
        about = "generate: Inspect's published way, parse the answer out of a generation"
        group.add_argument("--inspect-readout", choices=READOUTS, help=about)


def _distance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number, 0 or more")
    return value


def _whole_number(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return convert


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_logs)
    parser.add_argument(
        "--lm-eval",
        type=Path,
        metavar="DIR",
        action="append",
        default=[],
        help="folder of an lm-eval run, or its results file",
    )
    parser.add_argument(
        "--inspect", type=Path, metavar="FILE", action="append", default=[], help="an Inspect log, .eval or .json"
    )
    parser.add_argument("--task", metavar="NAME", help="which of lm-eval's tasks, where the run has several")
    parser.add_argument("--metric", metavar="NAME", help="which of lm-eval's metrics (default: acc, else its first)")
    parser.add_argument("--scorer", metavar="NAME", help="which of Inspect's scorers (default: its headline)")
    parser.add_argument("--tokenizer", metavar="REF", help="counts tokens where a log does not: that model's tokenizer")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the report's folder (default: runs/logs-<hash of the logs>)"
    )
    parser.add_argument("--plots", action="store_true", help="SVG of each plot; the folder has them in any case")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no tables: the verdict alone")


def _add_agreement(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_agreement)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of finished runs, a model each")
    about = "run these models first; REF@bfloat16 names a dtype"
    parser.add_argument("--models", nargs="+", default=[], metavar="REF", help=about)
    parser.add_argument("--task", choices=("mmlu", "arc_easy"), default="arc_easy", help="that --models run")
    parser.add_argument("--data", default="sample", metavar="sample|hub|DIR", help="that --models run on")
    parser.add_argument("--limit", type=_whole_number(1), metavar="N", help="only the first N items of each sub-task")
    parser.add_argument("--seed", type=_whole_number(0), default=0, help="of the resampling")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no tables: the verdict alone")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the report's folder (default: runs/agreement)")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_report)
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a finished run")
    about = "any of html, md, latex, plots, parquet, csv, json, separated by commas (default: all)"
    parser.add_argument("--format", metavar="A,B,…", help=about)
    parser.add_argument("--plots", action="store_true", help="the plots as SVG: short for --format plots")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write them there (default: into the run's folder)")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_diff)
    parser.add_argument("before", type=Path, metavar="RUN_A", help="the folder of a finished run")
    parser.add_argument("after", type=Path, metavar="RUN_B", help="the folder of the run to hold against it")
    about = f"exit 1 when a score or the gap changed by more than X points; {_POINT[False]}, {_POINT[True]}"
    parser.add_argument("--fail-over", type=_distance, metavar="X", help=about)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it there too, as Markdown")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_run_cache)
    about = (
        "info: what it holds; verify: whether it is whole (exit 1 if not); prune: drop what was not used for longest"
    )
    parser.add_argument("action", choices=("info", "prune", "verify"), help=about)
    about = "for prune: keep this much, such as 500MB or 2GiB (default: the store's own bound, 4GiB)"
    parser.add_argument("--max-size", metavar="SIZE", help=about)
    parser.add_argument("--store", type=Path, metavar="FILE", help="default: the one that runs use")


def _run_cache(parsed: argparse.Namespace) -> int:
    from reconcile.cache import run_cache

    return run_cache(parsed.action, store=parsed.store, max_size=parsed.max_size)


def _run_report(parsed: argparse.Namespace) -> int:
    from reconcile.report.folder import run_report
    from reconcile.report.forms import FORMATS, checked_formats

    asked = ",".join(text for text in (parsed.format, "plots" if parsed.plots else None) if text is not None)
    return run_report(
        parsed.folder, checked_formats(asked) if asked or parsed.format is not None else FORMATS, out=parsed.out
    )


def _run_diff(parsed: argparse.Namespace) -> int:
    from reconcile.report.diff import run_diff

    return run_diff(parsed.before, parsed.after, fail_over=parsed.fail_over, out=parsed.out)


def _run_task(parsed: argparse.Namespace) -> int:
    options = _options(parsed)
    from reconcile.ledger_run import run_task

    return run_task(options)


def _run_logs(parsed: argparse.Namespace) -> int:
    given = len(parsed.lm_eval) + len(parsed.inspect)
    if given != 2:
        raise InputError(
            f"{given} logs given: name two, with --lm-eval DIR and --inspect FILE (either may stand twice)"
        )
    from reconcile.logs_run import run_logs

    return run_logs(
        lm_eval=parsed.lm_eval,
        inspect=parsed.inspect,
        task=parsed.task,
        metric=parsed.metric,
        scorer=parsed.scorer,
        tokenizer=parsed.tokenizer,
        out=parsed.out,
        quiet=parsed.quiet,
    )


def _run_agreement(parsed: argparse.Namespace) -> int:
    asked = [_options(_build_parser().parse_args(_model_run(parsed, ref))) for ref in parsed.models]
    if len(parsed.runs) + len(asked) < 2:
        raise InputError("an agreement needs two or more models: name finished runs, or models with --models")
    from reconcile.agreement_run import run_agreement, run_models

    return run_agreement([*parsed.runs, *run_models(asked)], out=parsed.out, seed=parsed.seed, quiet=parsed.quiet)


def _model_run(parsed: argparse.Namespace, ref: str) -> list[str]:
    """The command line of one model's run."""
    name, _, dtype = ref.rpartition("@")
    words = [parsed.task, "--model", *([name, "--dtype", dtype] if name and dtype in DTYPES else [ref])]
    words += ["--data", parsed.data, *(["--quiet"] if parsed.quiet else [])]
    return [*words, *(["--limit", str(parsed.limit)] if parsed.limit is not None else [])]


def _options(parsed: argparse.Namespace) -> RunOptions:
    lm_eval, inspect = _protocols(parsed)
    subjects = getattr(parsed, "subjects", None)
    return RunOptions(
        task=parsed.task,
        model=parsed.model,
        data=parsed.data,
        limit=parsed.limit,
        metric=getattr(parsed, "metric", None) or _metric_of(lm_eval, parsed.task),
        dtype=parsed.dtype,
        logits_dtype=parsed.logits_dtype,
        device=parsed.device,
        seed=parsed.seed,
        subjects=tuple(name.strip() for name in subjects.split(",") if name.strip()) if subjects is not None else None,
        cache=not parsed.no_cache,
        out=parsed.out,
        lm_eval=lm_eval,
        inspect=inspect,
        fail_over=parsed.fail_over,
        lm_eval_model=parsed.lm_eval_model,
        lm_eval_model_args=parsed.lm_eval_model_args,
        inspect_model=parsed.inspect_model,
        tokenizer=parsed.tokenizer,
        prove=getattr(parsed, "prove", False),
        numerics=getattr(parsed, "numerics", None),
        quiet=parsed.quiet,
        lm_eval_text=getattr(parsed, "lm_eval_text", "detokenised"),
        inspect_text=getattr(parsed, "inspect_text", "raw"),
    )


def _protocols(parsed: argparse.Namespace) -> tuple[Protocol, Protocol]:
    """Both protocols: native, then what is said for both sides, then what is said for one."""
    shared = {"num_fewshot": getattr(parsed, "num_fewshot", None), "seed": parsed.seed}
    metric = getattr(parsed, "metric", None)
    named = {"normalisation": METRICS[metric]} if metric else {}
    own = getattr(parsed, "lm_eval_normalisation", None)
    if metric and own and own != METRICS[metric]:
        raise InputError(
            f"--metric {metric} is normalisation {METRICS[metric]!r}, --lm-eval-normalisation says {own!r}: give one"
        )
    sides = []
    for side, base in (("lm_eval", {**shared, **named}), ("inspect", shared)):
        protocol = with_overrides(native_protocol(parsed.task, side), base)  # type: ignore[arg-type]
        sides.append(with_overrides(protocol, _given(parsed, side)))
    return sides[0], sides[1]


def _given(parsed: argparse.Namespace, side: str) -> dict[str, object]:
    """The side's own options by field name."""
    names = ("template", "num_fewshot", "normalisation", "tie_break", "seed", "readout", "tie_atol")
    return {name: getattr(parsed, f"{side}_{name}", None) for name in names}


def _metric_of(protocol: Protocol, task: str) -> str:
    """lm-eval's name for the score its side's normalisation gives; a rule it has no name for is reported as acc."""
    if task == "wikitext":
        return "bits_per_byte"
    return next((name for name, rule in METRICS.items() if rule == protocol.normalisation), "acc")
