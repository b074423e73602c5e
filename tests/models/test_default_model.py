"""The default model against transformers' own reading of the same file: its GGUF loader and its LlamaForCausalLM."""

import pytest
import torch

from llm.models import products, resolve_ref

PROMPTS = [
    "The capital of France is",
    "Water boils at a temperature of",
    "Question: Which gas do plants absorb from the air?\nAnswer:",
    "The following are multiple choice questions (with answers) about anatomy.\n\nWhich bone is the longest?\n"
    "A. Femur\nB. Tibia\nC. Ulna\nD. Skull\nAnswer:",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "1, 2, 3, 4, 5, 6, 7,",
    "In 1969, the first humans",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "Mary had a little",
    "La capitale de la France est",
    "你好",
    "E = mc",
    "The opposite of hot is",
    " = Robert Boulter = \n Robert Boulter is an English film , television and theatre actor .",
    "Roses are red, violets are",
    "A",
    "😀",
    "To be, or not to be, that is the",
    "The mitochondrion is the powerhouse of the",
]
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def theirs():
    from transformers import AutoModelForCausalLM

    path = resolve_ref("smollm2-135m-instruct").path
    return AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32).eval()


@torch.inference_mode()
def test_logits_and_greedy_tokens_equal_transformers(default_model, theirs, monkeypatch):
    """Logits of prompt and continuation to 1e-4, with the product that transformers uses (another kernel's rounding
    alone moves logits by 1.8e-4, and transformers' own lie 1.3e-4 from float64's); where every argmax along
    transformers' greedy continuation agrees, greedy decoding gives the same ids."""
    monkeypatch.setitem(products._CHOSEN, torch.float32, "torch")
    model, tokenizer = default_model
    assert len(PROMPTS) == 20
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left", return_token_type_ids=False)
    generated = theirs.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    for prompt, row in zip(PROMPTS, generated[:, -NEW_TOKENS:], strict=True):
        prompt_ids = tokenizer(prompt, return_tensors="pt").input_ids
        ids = torch.cat([prompt_ids, row[None]], dim=1)
        ours, expected = model(ids), theirs(ids).logits
        assert float((ours - expected).abs().max()) <= 1e-4, prompt
        assert ours[0, -NEW_TOKENS - 1 : -1].argmax(-1).tolist() == row.tolist(), prompt


def test_the_default_model_is_what_it_is(default_model):
    model, tokenizer = default_model
    config = model.config
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (49152, 576, 30)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.rope_theta, config.rms_norm_eps, model.max_length) == (100000.0, 1e-5, 8192)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)
    assert model.num_decodable == len(tokenizer) == 49152
