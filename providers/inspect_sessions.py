"""Loaded decoders that provider objects share: one for each (reference, loading arguments) in a process.

A provider object holds no model, so Inspect may build as many as it likes; the first call that needs weights loads
them, once. A caller who has a model already hands it in with `register_loaded`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm.scoring.waiting import start_in_own_thread
from providers.inspect_arguments import DecoderArguments

if TYPE_CHECKING:
    from concurrent.futures import Future

    from llm.scoring.requests import Scorer
    from llm.scoring.service import ScoringService


@dataclass(frozen=True, kw_only=True)
class LoadedDecoder:
    """A decoder ready to be asked: `service` gathers concurrent calls into one batch on its own thread."""

    model: Any
    tokenizer: Any
    service: ScoringService
    logits_dtype: str

    @property
    def max_length(self) -> int:
        """Positions the model has."""
        return int(self.model.max_length)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end a generation: the tokenizer's EOS and the model's own."""
        from llm.scoring.stops import end_token_ids

        return end_token_ids(self.model, self.tokenizer)


class Session:
    """A decoder that is loaded on first use, by whichever thread comes first; `loaded` is None until then."""

    def __init__(self, ref: str, arguments: DecoderArguments, loaded: LoadedDecoder | None = None) -> None:
        self.ref = ref
        self.arguments = arguments
        self.loaded = loaded
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._loading: Future[LoadedDecoder] | None = None

    def load(self) -> LoadedDecoder:
        """The decoder, loading it if need be; blocks."""
        with self._lock:
            if self.loaded is None:
                self.loaded = _load(self.ref, self.arguments)
            return self.loaded

    def start_loading(self) -> Future[LoadedDecoder]:
        """The same without waiting, in one thread whoever asks; after a failure the next call tries again."""
        with _LOCK:
            if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
                self._loading = start_in_own_thread(self.load)
            return self._loading

    def tokenizer(self) -> Any:
        """The tokenizer alone, without weights; blocks."""
        with self._lock:
            if self.loaded is not None:
                return self.loaded.tokenizer
            if self._tokenizer is None:
                from llm.models import load_tokenizer

                self._tokenizer = load_tokenizer(self.ref)
            return self._tokenizer


_LOCK = threading.Lock()
_SESSIONS: dict[tuple[object, ...], Session] = {}
_HANDED_IN: dict[str, list[LoadedDecoder]] = {}


def register_loaded(ref: str, *, model: Any, tokenizer: Any, scorer: Scorer, logits_dtype: str = "float32") -> str:
    """Let `decoder/<ref>` mean a model that is in memory already, scored by `scorer` (its store included).

    `model` is a DecoderModel, what `load_model("hf:…")` returns, or a module with their `dtype`, `device` and
    `max_length`; lm-eval's `LlamaLmEvalLM` takes a bare module.

    It serves every call whose `dtype`, `device` and `logits_dtype` arguments are left alone or name what it has; other
    arguments load another copy beside it. The latest registration of a reference wins. Returns the model name for
    `get_model` and `--model`.
    """
    from llm.scoring.service import ScoringService

    service = ScoringService(model, tokenizer, scorer)
    decoder = LoadedDecoder(model=model, tokenizer=tokenizer, service=service, logits_dtype=logits_dtype)
    with _LOCK:
        _HANDED_IN.setdefault(ref, []).insert(0, decoder)
    return f"decoder/{ref}"


def forget_loaded(ref: str) -> None:
    """Take back every registration of `ref` and end their worker threads."""
    with _LOCK:
        decoders = _HANDED_IN.pop(ref, [])
    for decoder in decoders:
        decoder.service.close()


def find_session(ref: str, arguments: DecoderArguments) -> Session:
    """The session that a reference and its arguments share; nothing is loaded here."""
    with _LOCK:
        for decoder in _HANDED_IN.get(ref, ()):
            if _serves(decoder, arguments):
                return Session(ref, arguments, decoder)
        key = (ref, *arguments.loading)
        if key not in _SESSIONS:
            _SESSIONS[key] = Session(ref, arguments)
        return _SESSIONS[key]


def _serves(decoder: LoadedDecoder, arguments: DecoderArguments) -> bool:
    dtype = str(decoder.model.dtype).removeprefix("torch.")
    device = str(decoder.model.device)
    return (
        arguments.dtype in ("auto", dtype)
        and arguments.device in ("auto", device, device.split(":")[0])
        and arguments.logits_dtype == decoder.logits_dtype
        and arguments.store is None
    )


def _load(ref: str, arguments: DecoderArguments) -> LoadedDecoder:
    from llm.models import load_model
    from llm.scoring.plain import make_scorer
    from llm.scoring.service import ScoringService

    model, tokenizer = load_model(ref, dtype=arguments.dtype, device=arguments.device)
    scorer = _stored(make_scorer(model, logits_dtype=arguments.logits_dtype), model, arguments)
    return LoadedDecoder(
        model=model,
        tokenizer=tokenizer,
        service=ScoringService(model, tokenizer, scorer, batch_size=arguments.batch_size),
        logits_dtype=arguments.logits_dtype,
    )


def _stored(scorer: Scorer, model: Any, arguments: DecoderArguments) -> Scorer:
    """The scorer behind the score store asked for, if one was; whatever changes a score is in its namespace."""
    path = arguments.store_path()
    if path is None:
        return scorer
    from llm.scoring.store import ScoreStore
    from llm.scoring.stored_scorer import StoredScorer

    version = getattr(scorer, "version", type(scorer).__name__)
    return StoredScorer(
        scorer, ScoreStore(path), f"{model.fingerprint}|{model.dtype}|{arguments.logits_dtype}|{version}"
    )
