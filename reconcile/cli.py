"""The command line: parses and checks everything that can be checked before torch or a harness is imported.

Exit codes: 0 the gap is accounted for; 1 items are unexplained; 2 usage or input at fault, said in one sentence;
3 internal fault; 130 interrupted.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from llm.errors import InputError
from reconcile.options import (
    DTYPES,
    LOGITS_DTYPES,
    METRICS,
    NORMALISATIONS,
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

_EPILOG = """\
exit codes: 0 the gap is accounted for, 1 items are unexplained, 2 usage or input at fault,
3 internal fault, 130 interrupted"""


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
        print(f"reconcile: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("reconcile: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_INTERRUPTED
    except ImportError as error:
        print(f"reconcile: {error}", file=sys.stderr)
        return EXIT_USAGE
    except Exception:
        traceback.print_exc()
        print("reconcile: an internal fault; the lines above belong in the report of it", file=sys.stderr)
        return EXIT_FAULT


def _parse(arguments: list[str]) -> Callable[[], int]:
    parser = _build_parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        raise InputError(f"unknown task or command {arguments[0]!r}: one of {', '.join(_COMMANDS)}")
    if not arguments:
        raise InputError(f"no task given: one of {', '.join(TASKS)}, or a command ({', '.join(_COMMANDS[3:])})")
    parsed = parser.parse_args(arguments)
    return lambda: parsed.run(parsed)


_COMMANDS = (*TASKS, "logs", "agreement")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m reconcile",
        description="Run one model behind lm-evaluation-harness and Inspect AI and account for the score gap exactly.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="|".join(_COMMANDS), required=True, parser_class=_Parser)
    for task in TASKS:
        _add_task(commands.add_parser(task, **_about(f"run both harnesses on {task} and reconcile their scores")), task)
    _add_logs(commands.add_parser("logs", **_about("reconcile two finished runs, of any engine, from their own logs")))
    _add_agreement(commands.add_parser("agreement", **_about("correlation and ranking over sub-tasks and models")))
    return parser


def _about(sentence: str) -> dict[str, str]:
    return {"help": sentence, "description": sentence[0].upper() + sentence[1:] + "."}


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
    parser.add_argument(
        "--no-cache", action="store_true", help="share nothing between the harnesses: no score store, an engine each"
    )
    if task == "mmlu":
        parser.add_argument("--subjects", metavar="A,B,…", help="only these of the 57 subjects")
    if task == "wikitext":
        _add_side(parser, "lm-eval", templates_only=True)
        _add_side(parser, "inspect", templates_only=True)
        return
    parser.add_argument("--metric", choices=tuple(METRICS), help="lm-eval's metric to compare (default: acc)")
    parser.add_argument(
        "--num-fewshot",
        type=_whole_number(0),
        metavar="K",
        help="shots on both sides (default: 5 for mmlu, 0 for arc_easy)",
    )
    _add_side(parser, "lm-eval")
    _add_side(parser, "inspect")


def _add_side(parser: argparse.ArgumentParser, side: str, *, templates_only: bool = False) -> None:
    group = parser.add_argument_group(f"{side} side's protocol (default: the one it uses natively)")
    about = "who words the text the model sees"
    group.add_argument(
        f"--{side}-template",
        choices=TEMPLATES,
        help=about if not templates_only else "lm-eval: the detokenised page; inspect: the raw page",
    )
    if templates_only:
        return
    group.add_argument(f"--{side}-num-fewshot", type=_whole_number(0), metavar="K")
    group.add_argument(f"--{side}-normalisation", choices=NORMALISATIONS, help="of a choice's logprob by its length")
    group.add_argument(f"--{side}-tie-break", choices=TIE_BREAKS)
    group.add_argument(
        f"--{side}-tie-atol", type=float, metavar="NATS", help="scores this close count as tied (default: 0)"
    )
    group.add_argument(
        f"--{side}-seed", type=_whole_number(0), help="of its random tie-break, where it differs from --seed"
    )
    if side == "inspect":
        group.add_argument(
            "--inspect-readout",
            choices=READOUTS,
            help="generate: Inspect's published way, parse the answer out of a generation",
        )


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
