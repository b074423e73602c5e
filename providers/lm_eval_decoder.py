"""The lm-eval door: registers the decoder as lm-eval's model `decoder` and hands the command line to lm-eval itself.

    python -m providers.lm_eval_decoder run --model decoder --model_args model=REF --tasks arc_easy --limit 20

Everything but the model is lm-eval's: its tasks, evaluator, files and table. Without `--model_args` the default model
is used. Importing this module registers the model where lm-eval is installed; it loads neither torch nor a model.
"""

import os
import sys
from collections.abc import Sequence
from itertools import pairwise

from llm.errors import InputError
from llm.evaluation.harness.lm_eval_lm import LlamaLmEvalLM
from llm.evaluation.harness.optional import lm_eval_missing
from llm.models import DEFAULT_REF

NAME = "decoder"
_NO_DOCS = "did not find any docs"  # lm-eval's words when a rank is dealt no item


def register() -> None:
    """Make `--model decoder` known to lm-eval. Raises ImportError with the install hint where there is no lm-eval."""
    try:
        import lm_eval.models  # noqa: F401  (lm-eval fills its registry only while that is empty)
        from lm_eval.api.registry import model_registry
    except ImportError as error:
        raise lm_eval_missing(error) from error
    if NAME not in model_registry:
        model_registry.register(NAME, target=LlamaLmEvalLM)


def with_default_model(arguments: Sequence[str]) -> list[str]:
    """The command line with the default model named where none is, so that lm-eval's own files and table name it."""
    options = [argument.partition("=")[0] for argument in arguments]
    named = any(option in ("-a", "-C", "--config") or option.startswith("--model_a") for option in options)
    chosen = any(pair in ("--model decoder", "-M decoder") for pair in map(" ".join, pairwise(arguments)))
    if named or not (chosen or "--model=decoder" in arguments):
        return list(arguments)
    return [*arguments, "--model_args", f"model={DEFAULT_REF}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run lm-eval's command line with the decoder registered; 2 with one sentence where the input is at fault."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        sys.argv = ["lm-eval", *with_default_model(arguments)]
        cli_evaluate()
    except (InputError, ImportError) as error:
        return _refused(error)
    except ValueError as error:
        if _NO_DOCS not in str(error) or int(os.environ.get("WORLD_SIZE", "1")) == 1:
            raise
        size = os.environ["WORLD_SIZE"]
        return _refused(f"{size} processes share a task with fewer items: start fewer processes, or raise --limit")
    return 0


def _refused(reason: object) -> int:
    print(f"lm-eval decoder: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
