"""The files that a recipe's lm-eval command reads: task definitions of protocols that stock lm-eval has not."""

from pathlib import Path

from reconcile.options import RunOptions
from reconcile.recipe import FOLDER, is_stock, protocol_folder
from reconcile.runs import Protocol

_RENDERERS = {"lm-eval": None, "inspect": "tasks.rendering:render_inspect"}


def write_recipe_files(folder: Path, options: RunOptions) -> None:
    """Writes `recipe/…_protocol` for each side's protocol that needs one; nothing where there is nothing to change."""
    if options.task == "wikitext" or options.engines or options.lm_eval == options.inspect:
        return
    for side, protocol in (("lm_eval", options.lm_eval), ("inspect", options.inspect)):
        if protocol.readout == "loglikelihood" and not is_stock(options.task, protocol):
            _write(folder / FOLDER / protocol_folder(side), options, protocol)


def _write(folder: Path, options: RunOptions, protocol: Protocol) -> None:
    from llm.evaluation.harness.protocol_files import write_protocol_files

    folder.mkdir(parents=True)
    write_protocol_files(
        folder,
        options.task,
        options.source,
        {
            "normalisation": protocol.normalisation,
            "tie_break": protocol.tie_break,
            "seed": protocol.seed,
            "tie_atol": protocol.tie_atol,
        },
        render=_RENDERERS[protocol.template],
        num_fewshot=protocol.num_fewshot,
        chosen=options.subjects,
    )
