"""Task folders that take a protocol to lm-eval's own command line: YAML files, and the functions that they name.

Each YAML includes lm-eval's stock task and replaces its texts and its scoring; the functions are those that
`protocols.apply_protocol` puts into loaded tasks. Nothing here imports lm-eval.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from llm.errors import InputError
from llm.evaluation.data import MMLU_LABELS, dataset_path, subjects
from llm.evaluation.harness.protocols import Doc, Prompts, Protocol, Render, credit_function, doc_choices, doc_key
from llm.evaluation.harness.task_folders import TaskFolder, write_task_folder
from llm.evaluation.hub_layout import resolve_folder

MODULE = "protocol_functions"

_FUNCTIONS = ("doc_to_text", "doc_to_choice", "process_results")
_TEXT = '''"""The functions that the task files beside this one name; they come from harness-bridge."""

from llm.evaluation.harness.protocol_files import functions_of

_FUNCTIONS = functions_of({arguments})
{names}
'''


def write_protocol_files(
    folder: Path,
    task: str,
    data: str,
    protocol: Mapping[str, Any],
    *,
    render: str | None,
    num_fewshot: int = 0,
    chosen: Sequence[str] | None = None,
) -> TaskFolder:
    """Writes the definitions of `task` under a protocol to `folder`, for `--include_path`.

    `protocol` holds normalisation, tie_break, seed and tie_atol. `render` names the wording as `module:function`, shots
    included (the first `num_fewshot` rows of the few-shot split); None is lm-eval's own wording with its own shots.

    Raises:
        InputError: a protocol or a number of shots that the task cannot have.
    """
    Protocol(**protocol).check(task, num_fewshot)
    source = data if data in ("sample", "hub") else str(resolve_folder(data))
    names = tuple(chosen or subjects(source)) if task == "mmlu" else ()
    metrics = ("acc", "acc_mutual_info") if protocol["normalisation"] == "pmi" else ("acc",)
    own_shots = num_fewshot if render is None else 0
    path = dataset_path(task, source)
    written = write_task_folder(folder, task, path, subjects=names, num_fewshot=own_shots, metrics=metrics)
    functions = _FUNCTIONS if render is not None else _FUNCTIONS[-1:]
    lines = [f"{name}: !function {MODULE}.{name}" for name in functions]
    lines += ['target_delimiter: ""', 'description: ""'] if render is not None else []
    about = {**protocol, "template": render or "lm-eval", "num_fewshot": num_fewshot}
    lines.append(f"metadata: {json.dumps({'version': 1.0, 'stock': False, 'protocol': about})}")
    for name in written.tasks:
        with (folder / f"{name}.yaml").open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    own = dict(protocol)
    arguments: dict[str, Any] = {"task": task, "data": source, "protocol": own, "render": render}
    arguments["num_fewshot"] = num_fewshot
    if names:
        arguments["chosen"] = list(names)
    text = _TEXT.format(
        arguments=f"**{arguments!r}", names="\n".join(f'{name} = _FUNCTIONS["{name}"]' for name in functions)
    )
    (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")
    return written


def functions_of(
    task: str,
    data: str,
    protocol: Mapping[str, Any],
    render: str | None,
    num_fewshot: int,
    chosen: Sequence[str] = (),
) -> dict[str, Callable[..., Any]]:
    """The functions of a protocol by the names that lm-eval's task files give them."""
    if render is None:
        return {"process_results": _scoring(task, protocol, chosen, lambda doc: _own_texts(task, doc))}
    prompts = {
        subject: Prompts.load(_named(render), task, data, subject, num_fewshot) for subject in (*chosen,) or ("",)
    }

    def prompts_of(doc: Doc) -> Prompts:
        return prompts[str(doc["subject"]) if chosen else ""]

    def doc_to_text(doc: Doc) -> str:
        return prompts_of(doc).of(doc).context

    def doc_to_choice(doc: Doc) -> list[str]:
        return list(prompts_of(doc).of(doc).continuations)

    scoring = _scoring(task, protocol, chosen, lambda doc: prompts_of(doc).choice_texts(doc))
    return {"doc_to_text": doc_to_text, "doc_to_choice": doc_to_choice, "process_results": scoring}


def _scoring(
    task: str, protocol: Mapping[str, Any], chosen: Sequence[str], texts_of: Callable[[Doc], Sequence[str]]
) -> Callable[..., Any]:
    return credit_function(
        Protocol(**protocol),
        key_of=lambda doc: doc_key(task, str(doc["subject"]) if chosen else "", doc),
        gold_of=lambda doc: _gold(task, doc),
        texts_of=texts_of,
    )


def _own_texts(task: str, doc: Doc) -> Sequence[str]:
    """What lm-eval's own wording has as choices: letters, or ARC's texts."""
    return MMLU_LABELS if task == "mmlu" else doc_choices(task, doc)


def _named(render: str) -> Render:
    module, _, name = render.partition(":")
    try:
        found: Render = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"no wording {render!r}: install harness-bridge, which has it ({error})") from error
    return found


def _gold(task: str, doc: Doc) -> int:
    """The right choice's index in a dataset row."""
    if task == "mmlu":
        return int(doc["answer"])
    return list(doc["choices"]["label"]).index(doc["answerKey"])
