"""MMLU as an Inspect task: the likelihood of each answer's letter, or Inspect's own generated answer.

inspect eval tasks/mmlu.py [--model decoder/REF] [-T data=sample|hub|DIR] [-T subjects=a,b] [-T num_fewshot=5]
    [-T template=inspect|lm-eval] [-T normalisation=none|char|byte|token|pmi]
    [-T tie_break=first|last|random|fractional|any|none] [-T seed=0] [-T tie_atol=0]
    [-T readout=loglikelihood|generate] [-T limit_per_subject=N] [-T tokenizer=REF]
    [-T unconditional=true]
"""

from inspect_ai import Task, task
from inspect_ai._util.error import PrerequisiteError

try:
    from tasks.benchmark import choice_task
except ImportError as error:
    raise PrerequisiteError(
        "this task needs this project's own packages `tasks`, `providers` and `llm`, and another package of that name "
        f"comes first on the path ({error}): uninstall it or put this project first on PYTHONPATH"
    ) from error


@task
def mmlu(
    subjects: str | list[str] | None = None,
    num_fewshot: int = 5,
    template: str = "inspect",
    normalisation: str = "token",
    tie_break: str = "random",
    seed: int = 0,
    tie_atol: float = 0.0,
    readout: str = "loglikelihood",
    data: str = "sample",
    limit_per_subject: int | None = None,
    tokenizer: str | None = None,
    unconditional: bool = False,
) -> Task:
    """MMLU: 57 subjects, four choices, five examples from the subject's dev rows."""
    return choice_task(
        "mmlu",
        data=data,
        subjects=subjects,
        limit_per_subject=limit_per_subject,
        tokenizer=tokenizer,
        unconditional=unconditional,
        num_fewshot=num_fewshot,
        template=template,
        normalisation=normalisation,
        tie_break=tie_break,
        seed=seed,
        tie_atol=tie_atol,
        readout=readout,
    )
