"""What an Inspect log says about its run beside the scores, under the names that `lm_eval_settings` uses too."""

import re
from collections.abc import Mapping
from typing import Any

_OWN_PROVIDER = "decoder"
_SECRET = re.compile(r"key|secret|password|auth|header|token$", re.IGNORECASE)
_MODEL_FACTS = ("model_fingerprint", "dtype", "logits_dtype", "max_length", "prefix_token_id", "bos_token", "eos_token")


def model_facts(output: Mapping[str, Any]) -> dict[str, Any]:
    """What this project's provider says of the model in an output's metadata; {} of another provider's."""
    return {name: output[name] for name in _MODEL_FACTS if output.get(name) is not None}


def inspect_settings(header: Any, *, scorer: str, about_model: Mapping[str, Any]) -> dict[str, str]:
    """Settings by name, as text; what the log does not say is left out."""
    spec = header.eval
    config, protocol = spec.model_generate_config, _block(spec.metadata, "protocol")
    provider, _, ref = spec.model.partition("/")
    own = provider == _OWN_PROVIDER and bool(ref)
    version = (spec.packages or {}).get("inspect_ai")
    named = {
        "defined_by": protocol.get("defined_by") or f"Inspect task {spec.task}",
        "harness": f"inspect_ai {version}" if version else None,
        "model": ref if own else spec.model,
        "provider": provider if own else None,
        **about_model,
        "dataset": spec.dataset.location or spec.dataset.name,
        "data": _block(spec.metadata, "data").get("source"),
        "data_fingerprint": _block(spec.metadata, "data").get("fingerprint"),
        "limit": _limit(spec),
        "fewshot_rows": (spec.metadata or {}).get("fewshot_rows"),
        "stop": config.stop_seqs or "none",
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
        "epochs": spec.config.epochs,
        "epochs_reducer": ",".join(spec.config.epochs_reducer or ()) or None,
        "scorer": scorer,
    }
    arguments = {
        f"model_arg {name}": value
        for name, value in (spec.model_args or {}).items()
        if isinstance(value, str | int | float | bool) and not _SECRET.search(name)
    }
    return {name: str(value) for name, value in {**named, **arguments}.items() if value is not None}


def _block(metadata: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """A block of what this project's tasks log about themselves."""
    about = (metadata or {}).get(name)
    return about if isinstance(about, Mapping) else {}


def _limit(spec: Any) -> Any:
    """`--limit`, or the limit a sub-task that this project's tasks take."""
    return (spec.task_args or {}).get("limit_per_subject") if spec.config.limit is None else spec.config.limit
