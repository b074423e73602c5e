"""Tokenizers: the one saved in a checkpoint folder, or one built from what a GGUF file records.

A GGUF names its pre-tokenizer by a word (`tokenizer.ggml.pre`), not by its rule; the table below gives the rule of
each word as the models' own tokenizer.json has it, and an unknown word is refused: a wrong split changes ids silently.
(transformers' own reading of a GGUF drops that word: SmolLM2's digits are then not split from spaces before them.)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm.errors import InputError
from llm.models.small_files import check_small

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """How text is cut before byte-pair merging. `split` None means the GPT-2 rule."""

    split: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_GPT2 = _Rule()
_DIGITS = _Rule(single_digits=True)
_LLAMA_BPE = _Rule(split=_LLAMA3, ignore_merges=True, adds_bos=True)
_QWEN = _Rule(split=_QWEN2, nfc=True)
PRE_TOKENIZERS: Mapping[str, _Rule] = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "tekken": _Rule(split=_TEKKEN, ignore_merges=True, adds_bos=True),
}
"""`tokenizer.ggml.pre` -> its rule (llama.cpp's src/llama-vocab.cpp names them)."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


def folder_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer saved in a checkpoint folder; raises InputError where there is none that can be used."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise InputError(f"{folder}: no tokenizer files (tokenizer.json and tokenizer_config.json) are there")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if (folder / name).is_file():
            check_small(folder / name)
    with _one_sentence(f"{folder}: the tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise InputError(f"{folder}: the tokenizer has no tokenizer.json form, which is needed")
    return _quiet(tokenizer)


@contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    """Whatever transformers and tokenizers raise for broken files, as an InputError; tokenizers panics for some."""
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise InputError(f"{what} ({reason})") from error


def gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer that GGUF metadata describes: merges, pre-tokenizer, special tokens and chat template.

    Raises:
        InputError: the metadata is incomplete or names a tokenizer or pre-tokenizer whose rule is not known.
    """
    with _one_sentence(f"{path}: the tokenizer cannot be made from the file's metadata"):
        return _gguf_tokenizer(metadata, path)


def _gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    facts = _Facts.read(metadata, path)
    build = {"gpt2": _byte_level, "llama": _sentencepiece}.get(facts.model)
    if build is None:
        raise InputError(f"{path}: tokenizer model {facts.model!r} is not supported (gpt2 and llama are)")
    backend = build(facts)
    _add_special_tokens(backend, facts)
    special = {f"{name}_token": facts.tokens[i] for name, i in facts.special_ids.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        model_max_length=metadata.get(f"{metadata.get('general.architecture')}.context_length", int(1e30)),
        clean_up_tokenization_spaces=False,
        **special,
    )
    return _quiet(tokenizer)


def _quiet(tokenizer: "PreTrainedTokenizerFast") -> "PreTrainedTokenizerFast":
    """Without transformers' warning that a long text will not fit: whole pages are tokenised, then cut in windows."""
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What a GGUF file records of its tokenizer, checked."""

    path: Path
    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    special_ids: Mapping[str, int]
    add_bos: bool | None
    add_eos: bool
    add_space_prefix: bool

    @classmethod
    def read(cls, metadata: Mapping[str, Any], path: Path) -> "_Facts":
        prefix = "tokenizer.ggml."
        given: dict[str, Any] = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
        get = given.get
        tokens = get("tokens")
        if not tokens or "model" not in given:
            raise InputError(f"{path}: the GGUF file holds no tokenizer (tokenizer.ggml.model and tokens)")
        keys = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}
        special = {name: int(given[key]) for name, key in keys.items() if key in given}
        for name, token_id in special.items():
            if not 0 <= token_id < len(tokens):
                raise InputError(f"{path}: the {name} token id is {token_id}, the vocabulary has {len(tokens)} tokens")
        types = get("token_type") or [_NORMAL] * len(tokens)
        if len(types) != len(tokens):
            raise InputError(f"{path}: {len(tokens)} tokens but {len(types)} token types; the file is damaged")
        return cls(
            path=path,
            model=given["model"],
            pre=get("pre", ""),
            tokens=tokens,
            types=types,
            scores=get("scores") or (),
            merges=get("merges") or (),
            special_ids=special,
            add_bos=get("add_bos_token"),
            add_eos=bool(get("add_eos_token", False)),
            add_space_prefix=bool(get("add_space_prefix", True)),
        )

    @property
    def vocabulary(self) -> dict[str, int]:
        return {token: token_id for token_id, token in enumerate(self.tokens)}


def _byte_level(facts: _Facts) -> "Tokenizer":
    """GPT-2's kind: bytes as letters, merges in order of rank."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rule = PRE_TOKENIZERS.get(facts.pre)
    if rule is None:
        raise InputError(
            f"{facts.path}: pre-tokenizer {facts.pre!r} is not known ({', '.join(PRE_TOKENIZERS)} are); "
            "load the checkpoint folder with its tokenizer.json instead"
        )
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in facts.merges)]
    try:
        bpe = models.BPE(vocab=facts.vocabulary, merges=merges, ignore_merges=rule.ignore_merges)
    except Exception as error:  # tokenizers raises bare Exception for merges outside the vocabulary
        raise InputError(f"{facts.path}: the tokenizer's merges do not fit its vocabulary ({error})") from error
    tokenizer = Tokenizer(bpe)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.split is None)
    first: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule.single_digits else []
    if rule.split is not None:
        first.append(pre_tokenizers.Split(Regex(rule.split), behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, byte_level])
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_template(tokenizer, facts, adds_bos=rule.adds_bos)
    return tokenizer


def _sentencepiece(facts: _Facts) -> "Tokenizer":
    """Llama 2's kind: spaces as U+2581, merges ranked by the score of the piece they make, bytes where none fits."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    if len(facts.scores) != len(facts.tokens):
        raise InputError(
            f"{facts.path}: {len(facts.tokens)} tokens but {len(facts.scores)} scores; the file is damaged"
        )
    unknown = facts.special_ids.get("unk")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=facts.vocabulary,
            merges=_merges_by_score(facts),
            unk_token=None if unknown is None else facts.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space, prefix = normalizers.Replace(" ", "▁"), [normalizers.Prepend("▁")] if facts.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, space])
    strip = [decoders.Strip(" ", 1, 0)] if facts.add_space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    _add_template(tokenizer, facts, adds_bos=True)
    return tokenizer


def _merges_by_score(facts: _Facts) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first; of equal ones the longer left part goes first, as in
    transformers' generate_merges (tokenization_utils_base.py), which wrote the models' tokenizer.json.
    """
    whole = (_UNKNOWN, _CONTROL, _BYTE)  # never made by a merge nor part of one
    pieces = {token: i for i, token in enumerate(facts.tokens) if facts.types[i] not in whole}
    ranked = []
    for piece, piece_id in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                ranked.append((-facts.scores[piece_id], -cut, -len(right), pieces[left], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _add_special_tokens(tokenizer: "Tokenizer", facts: _Facts) -> None:
    """Control and user-defined tokens are found whole in text; only control ones are skipped when decoding."""
    from tokenizers import AddedToken

    named = set(facts.special_ids.values())
    control, user_defined = [], []
    for token_id, (token, kind) in enumerate(zip(facts.tokens, facts.types, strict=True)):
        if kind == _CONTROL or (kind == _UNKNOWN and token_id in named):
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            user_defined.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(user_defined)


def _add_template(tokenizer: "Tokenizer", facts: _Facts, *, adds_bos: bool) -> None:
    """BOS before and EOS after a text, where the file asks for them (or its kind does by default)."""
    from tokenizers.processors import TemplateProcessing

    wanted = {"bos": adds_bos if facts.add_bos is None else facts.add_bos, "eos": facts.add_eos}
    given = {name: facts.special_ids[name] for name, on in wanted.items() if on and name in facts.special_ids}
    if not given:
        return
    before = [facts.tokens[given["bos"]]] if "bos" in given else []
    after = [facts.tokens[given["eos"]]] if "eos" in given else []
    second = [f"{token}:1" for token in before], [f"{token}:1" for token in after]
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *second[0], "$B:1", *second[1]],
        special_tokens=[(facts.tokens[token_id], token_id) for token_id in given.values()],
    )
