"""lm-eval is optional: the one sentence that says how to get it."""

LM_EVAL_HINT = "lm_eval is not installed: pip install 'harness-bridge[lm-eval]'"


def lm_eval_missing(cause: ImportError | None = None) -> ImportError:
    """The error for using what needs lm-eval; the import's own failure, where known, is told with it."""
    if cause is None or getattr(cause, "name", None) in (None, "lm_eval"):
        return ImportError(LM_EVAL_HINT, name="lm_eval")
    return ImportError(f"lm_eval cannot be imported ({cause}): pip install 'harness-bridge[lm-eval]'", name="lm_eval")
