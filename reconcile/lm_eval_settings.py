"""What an lm-eval results file says about its run beside the scores, under the names Inspect's settings have too."""

from collections.abc import Mapping
from typing import Any


def lm_eval_settings(results: Mapping[str, Any], leaf: str) -> dict[str, str]:
    """Settings of a run by name, as text, those of a task by its sub-task `leaf`; what is not said is left out."""
    run, task = results.get("config", {}), results.get("configs", {}).get(leaf, {})
    metadata = _mapping(task.get("metadata"))
    data = _mapping(metadata.get("data"))
    version = results.get("lm_eval_version")
    generation = task.get("generation_kwargs") or {}
    named: dict[str, Any] = {
        "defined_by": _defined_by(results, leaf, metadata),
        "harness": f"lm_eval {version}" if version else None,
        "model": results.get("model_name") or run.get("model"),
        "model_fingerprint": run.get("model_fingerprint"),
        "dtype": str(run["model_dtype"]).removeprefix("torch.") if run.get("model_dtype") else None,
        "logits_dtype": run.get("logits_dtype"),
        "max_length": results.get("max_length"),
        "prefix_token_id": run.get("prefix_token_id"),
        "bos_token": results.get("tokenizer_bos_token"),
        "eos_token": results.get("tokenizer_eos_token"),
        "chat_template": results.get("chat_template_sha"),
        "system_instruction": results.get("system_instruction"),
        "dataset": task.get("dataset_path"),
        "data": data.get("source"),
        "data_fingerprint": data.get("fingerprint"),
        "limit": run.get("limit"),
        "fewshot_rows": _fewshot_rows(results, leaf, task, metadata),
        "stop": generation.get("until") or "none",
        "temperature": generation.get("temperature"),
        "max_tokens": generation.get("max_gen_toks"),
        "target_delimiter": repr(task["target_delimiter"]) if "target_delimiter" in task else None,
        "batch_size": run.get("batch_size"),
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _defined_by(results: Mapping[str, Any], leaf: str, metadata: Mapping[str, Any]) -> str:
    if metadata.get("stock") is False:
        return f"this project's rules in lm-eval's task {leaf} (not stock)"
    version = results.get("versions", {}).get(leaf)
    return f"lm-eval task {leaf}" + (f", version {version}" if version is not None else "")


def _fewshot_rows(
    results: Mapping[str, Any], leaf: str, task: Mapping[str, Any], metadata: Mapping[str, Any]
) -> str | None:
    """Which rows the shots are, as far as the log says."""
    protocol = _mapping(metadata.get("protocol"))
    number = protocol.get("num_fewshot", results.get("n-shot", {}).get(leaf, task.get("num_fewshot")))
    if not number:
        return None if number is None else "none"
    about = _mapping(task.get("fewshot_config"))
    split = (
        about.get("split") or task.get("fewshot_split") or task.get("training_split") or task.get("validation_split")
    )
    if about.get("sampler") == "first_n" or protocol.get("template", "lm-eval") != "lm-eval":
        return f"{split} rows 0 to {number - 1}"
    if about.get("fewshot_indices"):
        return f"{split} rows {about['fewshot_indices']}"
    return f"{number} rows of {split} drawn anew for each item, seed {results.get('config', {}).get('fewshot_seed')}"
