"""Decoders and their loading. Importing this package loads no torch: names are fetched when first used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm.models.config import DecoderConfig
    from llm.models.decoder import DecoderModel
    from llm.models.loading import DEFAULT_REF, ModelRef, load_model, load_tokenizer, resolve_ref

_HOME = {
    "DEFAULT_REF": "loading",
    "DecoderConfig": "config",
    "DecoderModel": "decoder",
    "ModelRef": "loading",
    "load_model": "loading",
    "load_tokenizer": "loading",
    "resolve_ref": "loading",
}

__all__ = ["DEFAULT_REF", "DecoderConfig", "DecoderModel", "ModelRef", "load_model", "load_tokenizer", "resolve_ref"]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
