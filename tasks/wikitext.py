"""WikiText as an Inspect task: the perplexity of raw pages, as Inspect's own `perplexity()` computes it.

inspect eval tasks/wikitext.py [--model decoder/REF] [-T data=sample|hub|DIR] [-T limit_per_subject=N]
                               [-T text=raw|detokenised]
"""

from inspect_ai import Task, task
from inspect_ai._util.error import PrerequisiteError

try:
    from tasks.benchmark import page_task
    from tasks.samples import PageText
except ImportError as error:
    raise PrerequisiteError(
        "this task needs this project's own packages `tasks`, `providers` and `llm`, and another package of that name "
        f"comes first on the path ({error}): uninstall it or put this project first on PYTHONPATH"
    ) from error


@task
def wikitext(data: str = "sample", limit_per_subject: int | None = None, text: PageText = "raw") -> Task:
    """WikiText-2 pages, whole; a page longer than the model's context is scored in disjoint windows."""
    return page_task(data=data, limit=limit_per_subject, text=text)
