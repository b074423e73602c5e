"""Tokenizers rebuilt from GGUF metadata (P52), against a second derivation that shares no code with the first."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import regex

from llm.errors import InputError
from llm.models import load_tokenizer, resolve_ref
from llm.models.gguf_files import GGUFFile
from llm.models.tokenizer import PRE_TOKENIZERS, gguf_tokenizer

GPT2_SPLIT = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
SMOLLM_SPLITS = (regex.compile(r"\p{N}"), GPT2_SPLIT)  # llama.cpp's src/llama-vocab.cpp, one after the other

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t\tx",
    "a",
    "Hello world",
    " Hello world",
    "Hello  world   three    spaces",
    "trailing   ",
    "   leading",
    "a  12 3",
    "  1",
    "\n  42\n",
    "x\t7",
    "1234567890",
    "3.14159, 1e-5 and 0x1F",
    "2026-11-29",
    "4 ½ months, x², Ⅷ, ٣٤٥, 一二三",
    "the year 1999 had 365 days",
    "don't can't we'll I'd they're you've I'm it's",
    "DON'T CAN'T WE'LL",
    "Question: What is water?\nAnswer:",
    "A. one\nB. two\nC. three\nD. four\nAnswer: B",
    "def f(x):\n    return x + 1  # comment\n",
    "if (a&&b) { c[0] = 'x'; } // done",
    "https://example.org/path?q=1&r=2#frag",
    "naïve café résumé Zoë",
    "Straße größer ÄÖÜ",
    "Привет, мир!",
    "Ελληνικά γράμματα",
    "שלום עולם",
    "مرحبا بالعالم",
    "こんにちは世界",
    "你好，世界。",
    "안녕하세요 세계",
    "हिन्दी में",
    "ไทย",
    "😀😃 😄",
    "👩‍👩‍👧‍👦 family",
    "🇫🇷🇩🇪",
    "e\u0301 decomposed and é composed",
    "zero\u200bwidth and nbsp\u00a0here",
    "control \x00 \x07 \x7f",
    "\ufeffbom",
    "line\r\nwindows\r\n",
    "\u2028separator\u2029",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|im_start|><|im_end|><|endoftext|>",
    "a<|im_end|>b <|im_end|> c",
    "<|im_start| not special|>",
    "<repo_name>x<file_sep>y<empty_output>",
    "<reponame> <jupyter_script>",
    "<|imstart|>",
    "Ġ is a letter of its own, so is Ċ",
    "…“quoted” – dash — ellipsis…",
    "∑∞∫√≠≤≥ αβγ x₁ y₂",
    "ﬁ ligature ﬀ",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    " @-@ decl @,@ 000 @.@ 5 <unk> = = Heading = =",
    "𝒜𝓁𝓅𝒽𝒶 𐍈 𠜎",
]


class ByHand:
    """Byte-pair encoding written out: the control tokens first, then the splits, then merges by rank."""

    def __init__(self, path: Path) -> None:
        fields = GGUFFile(path).metadata  # test_gguf.py holds this reader against gguf's own
        tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
        merges = fields["tokenizer.ggml.merges"]
        self.pre = fields["tokenizer.ggml.pre"]
        self.template = fields["tokenizer.chat_template"]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
        self.control = regex.compile("(" + "|".join(map(regex.escape, sorted(control, key=len, reverse=True))) + ")")
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [b for b in range(256) if b not in printable]
        self.letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}

    def encode(self, text: str) -> list[int]:
        out = []
        for index, piece in enumerate(self.control.split(text)):
            if index % 2:
                out.append(self.ids[piece])
                continue
            for word in self.words(piece):
                out += [self.ids[token] for token in self.merged(word)]
        return out

    def words(self, text: str) -> list[str]:
        pieces = [text] if text else []
        for split in SMOLLM_SPLITS:
            pieces = [part for piece in pieces for part in cut(split, piece)]
        return pieces

    def merged(self, word: str) -> list[str]:
        parts = [self.letters[b] for b in word.encode()]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self.ranks.get(pair, 1 << 30))
            if best not in self.ranks:
                break
            joined, at = [], 0
            while at < len(parts):
                both = tuple(parts[at : at + 2]) == best
                joined.append("".join(best) if both else parts[at])
                at += 2 if both else 1
            parts = joined
        return parts


def cut(split, piece):
    """All of piece, in order: what split matches and what lies between."""
    at, out = 0, []
    for match in split.finditer(piece):
        out += [piece[at : match.start()], match.group()]
        at = match.end()
    return [part for part in [*out, piece[at:]] if part]


@pytest.fixture(scope="module")
def default_path() -> Path:
    return resolve_ref("smollm2-135m-instruct").path


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def by_hand(default_path):
    return ByHand(default_path)


def test_p52_default_tokenizer_gives_the_ids_of_its_metadata(tokenizer, by_hand):
    assert len(TEXTS) >= 50
    assert by_hand.pre == "smollm"
    for text in TEXTS:
        assert tokenizer(text).input_ids == by_hand.encode(text), text


def test_p52_digits_stand_alone_and_spaces_before_them_stay_together(tokenizer):
    assert tokenizer("a  12").tokens() == ["a", "ĠĠ", "1", "2"]


def test_p52_special_tokens_and_template(tokenizer, by_hand):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    assert tokenizer.chat_template == by_hand.template
    assert tokenizer("x").input_ids == tokenizer("x", add_special_tokens=False).input_ids
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_decoding_gives_the_text_back(tokenizer):
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    ids = tokenizer("<|im_start|>user\nHi<|im_end|>").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "user\nHi"


def metadata(**changes):
    """A byte-level tokenizer of three control tokens, the byte letters and a few merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    merges = ["t h", "th e", "Ġ the", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ", "i n"]
    made = [merge.replace(" ", "") for merge in merges]
    tokens = ["<|end|>", "<s>", "<tool>", *sorted(ByteLevel.alphabet()), *made, "whole"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [3, 3, 4] + [1] * (len(tokens) - 3),
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def build(**changes):
    return gguf_tokenizer(metadata(**changes), Path("some.gguf"))


def test_qwen2_rule_is_transformers_own():
    from transformers import Qwen2Tokenizer

    ours = build(pre="qwen2")
    data = metadata()
    vocabulary = {token: i for i, token in enumerate(data["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in data["tokenizer.ggml.merges"]]
    theirs = Qwen2Tokenizer(vocab=vocabulary, merges=merges, unk_token="<|end|>", eos_token="<|end|>", pad_token=None)
    theirs.add_tokens(["<s>", "<tool>"])
    for text in TEXTS:
        assert ours(text).input_ids == theirs(text).input_ids, text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 1234  x", ["it", "'s", "Ġ1234", "Ġ", "Ġx"]),
        ("smollm", "it's 1234  x", ["it", "'s", "Ġ", "1", "2", "3", "4", "Ġ", "Ġx"]),
        ("llama-bpe", "it's 1234  x\n\n y", ["it", "'s", "Ġ", "123", "4", "Ġ", "Ġx", "ĊĊ", "Ġy"]),
        ("qwen2", "IT'S 12  x\n\n y", ["IT", "'S", "Ġ", "1", "2", "Ġ", "Ġx", "ĊĊ", "Ġy"]),
        ("tekken", "it's aB 12 HTTPServer/\n", ["it", "'s", "Ġa", "B", "Ġ", "1", "2", "ĠHTTPServer", "/Ċ"]),
    ],
)
def test_each_rule_cuts_as_its_family_does(pre, text, words):
    split = build(pre=pre).backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [word for word, _ in split] == words


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_no_rule_loses_a_byte(pre):
    tokenizer = build(pre=pre, add_bos_token=False)
    for text in TEXTS:
        expected = text.replace("e\u0301", "é") if PRE_TOKENIZERS[pre].nfc else text
        assert tokenizer.decode(tokenizer(text).input_ids) == expected


def test_llama3_takes_whole_tokens_before_merges():
    assert build(pre="llama-bpe", add_bos_token=False)("whole").tokens() == ["whole"]
    assert build(pre="gpt-2")("whole").tokens() == list("whole")


def test_user_defined_tokens_are_found_whole_and_kept_when_decoding():
    tokenizer = build()
    ids = tokenizer("<s>a<tool>b").input_ids
    assert ids[0] == 1
    assert ids[2] == 2
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a<tool>b"


@pytest.mark.parametrize(
    ("pre", "add_bos", "expected"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_bos_as_the_file_says_or_its_kind_does(pre, add_bos, expected):
    tokenizer = build(pre=pre, add_bos_token=add_bos)
    assert (tokenizer("in").input_ids[0] == 1) is expected
    assert tokenizer("in", add_special_tokens=False).input_ids[0] != 1


def sentencepiece_metadata(**changes):
    pieces = ["▁", "t", "h", "e", "▁t", "he", "▁the", "i", "n", "in", "▁in", "s", "a", "▁a", "is", "1", "2", "▁th"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "scores": [0.0] * 259 + [-float(i) for i in range(len(pieces))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def test_sentencepiece_kind_gives_transformers_llama_ids():
    from transformers import LlamaTokenizer

    data = sentencepiece_metadata()
    ours = gguf_tokenizer(data, Path("some.gguf"))
    vocabulary = {token: i for i, token in enumerate(data["tokenizer.ggml.tokens"])}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "n"), ("▁", "in"), ("▁", "a"), ("i", "s"), ("▁t", "h")]
    theirs = LlamaTokenizer(vocab=vocabulary, merges=merges)
    plain = [text for text in TEXTS if text and "<" not in text and not text.startswith(" ")]
    for text in ["the inn is in the then", "thin this", *plain]:
        ids = ours(text).input_ids
        assert ids == [1, *theirs(text, add_special_tokens=False).input_ids], text
        assert ours.decode(ids, skip_special_tokens=True) == text
    assert ours("the in").tokens() == ["<s>", "▁the", "▁in"]
    # transformers 5 leaves a leading space alone; sentencepiece, llama.cpp and Llama's tokenizer.json add one to it
    assert ours(" in").tokens() == ["<s>", "▁", "▁in"]


def test_sentencepiece_merges_rank_as_transformers_ranks_them():
    from transformers.tokenization_utils_base import generate_merges

    random = np.random.default_rng(0)
    words = {"".join(random.choice(list("ab▁"), size)) for size in (1, 2, 3, 4, 5) for _ in range(40)}
    pieces = sorted(words | {"a", "b", "▁"})
    scores = [-float(score) for score in random.integers(0, 25, len(pieces))]  # many are equal
    data = sentencepiece_metadata(
        tokens=["<unk>", "<s>", "</s>", *pieces],
        token_type=[2, 3, 3] + [1] * len(pieces),
        scores=[0.0, 0.0, 0.0, *scores],
    )
    vocabulary = {piece: 3 + i for i, piece in enumerate(pieces)}
    expected = generate_merges(vocabulary, dict(zip(pieces, scores, strict=True)))
    ours = json.loads(gguf_tokenizer(data, Path("some.gguf")).backend_tokenizer.to_str())["model"]["merges"]
    assert len(ours) > 100
    assert [tuple(pair) for pair in ours] == expected


def test_sentencepiece_without_the_space_in_front():
    ours = gguf_tokenizer(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False), Path("some.gguf"))
    assert ours("the in").tokens() == ["t", "he", "▁in"]
    assert ours.decode(ours(" the").input_ids) == " the"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "porcelain"}, "pre-tokenizer 'porcelain' is not known"),
        ({"pre": None}, "pre-tokenizer '' is not known"),
        ({"model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"model": None}, "holds no tokenizer"),
        ({"tokens": None}, "holds no tokenizer"),
        ({"token_type": [1, 1]}, "but 2 token types"),
        ({"bos_token_id": 5000}, "the bos token id is 5000"),
        ({"merges": ["zz yy"]}, "merges do not fit its vocabulary"),
        ({"model": "llama", "scores": [0.0]}, "but 1 scores"),
    ],
)
def test_what_is_not_known_is_refused(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        build(**changes)
    assert str(caught.value).startswith("some.gguf: ")
