"""Text that grows token by token equals the tokenizer's own decoding, for byte-level and for SentencePiece kinds."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from llm.models import load_tokenizer
from llm.scoring.stops import GrowingText, Vocabulary

NEVER = ("\x00 never said",)


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """A small Llama-2 kind of tokenizer: ▁ for spaces, single bytes as <0x..>, the first space dropped on decoding."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁a",
        "a",
        "b",
        "▁the",
        "é",
        "▁b",
    ]
    core = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def kinds(tiny_checkpoint):
    """Both tokenizers, each with ids that decode to text of their own, by name."""
    byte_level, metaspace = load_tokenizer(str(tiny_checkpoint)), sentencepiece_like()
    return {
        "byte-level": SimpleNamespace(tokenizer=byte_level, vocabulary=Vocabulary(byte_level), ordinary=20),
        "sentencepiece": SimpleNamespace(tokenizer=metaspace, vocabulary=Vocabulary(metaspace), ordinary=261),
    }


def grown(kind, prompt, new, *, skip, look):
    """(text, the state) after adding `new`, looking for a stop string after each token if `look`."""
    text = GrowingText(kind.vocabulary, prompt, skip_special_tokens=skip)
    for token in new:
        text.add(token)
        if look:
            assert text.find(NEVER) is None
    return text.text()


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_p46_text_is_what_decoding_adds(kinds, name, data):
    kind = kinds[name]
    tokenizer, size = kind.tokenizer, len(kind.tokenizer)
    ids = st.lists(st.integers(0, size - 1), max_size=12)
    prompt = [*data.draw(ids), kind.ordinary]
    new = data.draw(st.lists(st.integers(0, size - 1), max_size=14))
    skip = data.draw(st.booleans())

    before = tokenizer.decode(prompt, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    after = tokenizer.decode(prompt + new, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert after.startswith(before)
    assert grown(kind, prompt, new, skip=skip, look=False) == after[len(before) :]
    assert grown(kind, prompt, new, skip=skip, look=True) == after[len(before) :]


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece"])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_p42_the_earliest_of_the_stops_is_found_once_it_is_whole(kinds, name, data):
    kind = kinds[name]
    prompt = [kind.ordinary]
    new = data.draw(st.lists(st.integers(3, len(kind.tokenizer) - 1), min_size=2, max_size=14))
    text = grown(kind, prompt, new, skip=True, look=False)
    if "\ufffd" in text or len(text) < 2:
        return
    first = data.draw(st.integers(0, len(text) - 1))
    stop = text[first : data.draw(st.integers(first + 1, len(text)))]
    state = GrowingText(kind.vocabulary, prompt, skip_special_tokens=True)
    for token in new:
        state.add(token)
        if (found := state.find((stop, *NEVER))) is not None:
            break
    assert found == text.find(stop)
    assert state.text()[:found] == text[:found]


def test_a_prompt_that_ends_inside_a_character(kinds):
    kind = kinds["byte-level"]
    ids = kind.tokenizer("é", add_special_tokens=False).input_ids
    assert len(ids) == 2
    assert grown(kind, [kind.ordinary, ids[0]], ids[1:], skip=True, look=True) == "é"


def test_ids_without_a_token(kinds):
    vocabulary = kinds["sentencepiece"].vocabulary
    size = len(kinds["sentencepiece"].tokenizer)
    assert vocabulary.undecodable(size) is None
    missing = vocabulary.undecodable(size + 3)
    assert missing is not None
    assert missing.nonzero()[0].tolist() == [size, size + 1, size + 2]
    fewer = vocabulary.undecodable(size, num_decodable=size - 2)
    assert fewer is not None
    assert fewer.nonzero()[0].tolist() == [size - 2, size - 1]
