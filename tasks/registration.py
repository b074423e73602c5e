"""What Inspect's entry point loads: the task functions, under their registry names. Nothing slow is imported."""

from tasks.arc_easy import arc_easy
from tasks.mmlu import mmlu
from tasks.wikitext import wikitext

__all__ = ["arc_easy", "mmlu", "wikitext"]
