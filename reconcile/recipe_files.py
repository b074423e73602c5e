"""The files that a recipe's lm-eval command reads: task definitions of protocols that stock lm-eval has not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reconcile.options import RunOptions
from reconcile.recipe import FOLDER, STOCK_TEXT, is_stock, protocol_folder
from reconcile.runs import Protocol

RAW_PAGES: Mapping[str, Any] = {"doc_to_target": "page", "metadata": {"version": 1.0, "stock": False}}
"""What makes lm-eval's WikiText task score pages as the data has them: the name of their column."""

_RENDERERS = {"lm-eval": None, "inspect": "tasks.rendering:render_inspect"}


def write_recipe_files(folder: Path, options: RunOptions) -> None:
    """Writes `recipe/…_protocol` for each side's protocol that needs one; nothing where there is nothing to change."""
    if options.engines:
        return
    if options.task == "wikitext":
        _write_raw_pages(folder, options)
        return
    if options.lm_eval == options.inspect:
        return
    for side, protocol in (("lm_eval", options.lm_eval), ("inspect", options.inspect)):
        if protocol.readout == "loglikelihood" and not is_stock(options.task, protocol):
            _write(folder / FOLDER / protocol_folder(side), options, protocol)


def _write_raw_pages(folder: Path, options: RunOptions) -> None:
    """The task of whichever side scored raw pages, where the other did not."""
    from llm.evaluation.data import dataset_path
    from llm.evaluation.harness.task_folders import write_task_folder

    texts = {"lm_eval": options.lm_eval_text, "inspect": options.inspect_text}
    if len(set(texts.values())) == 1:
        return
    owner = next(side for side, text in texts.items() if text != STOCK_TEXT)
    place = folder / FOLDER / protocol_folder(owner)
    write_task_folder(place, options.task, dataset_path(options.task, options.source))
    with (place / f"{options.task}.yaml").open("a", encoding="utf-8") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n" for name, value in RAW_PAGES.items())


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
