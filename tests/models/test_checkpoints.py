"""Checkpoint folders: single and sharded, tied and untied, and every way a file can be broken."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm.errors import InputError
from llm.models import load_model

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def edit(folder, change):
    """Rewrite model.safetensors after change(tensors)."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def set_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(folder):
    """The sentence that loading the folder ends with."""
    with pytest.raises(InputError) as caught:
        load_model(str(folder), device="cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_sharded_weights_load_as_single_ones_do(twin, largest_difference):
    folder, theirs = twin("Llama", max_shard_size="100KB")
    assert not (folder / "model.safetensors").exists()
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert largest_difference(load_model(str(folder), device="cpu")[0], theirs) <= 1e-5


def test_p48_no_head_and_tied(twin, largest_difference):
    folder, theirs = twin("Llama", tie_word_embeddings=True)
    assert HEAD not in load_file(folder / "model.safetensors")
    ours, _ = load_model(str(folder), device="cpu")
    assert ours.lm_head.weight is ours.embed_tokens.weight
    assert largest_difference(ours, theirs) <= 1e-5


def test_p48_head_and_tied(twin, largest_difference):
    folder, theirs = twin("Llama", tie_word_embeddings=True)
    edit(folder, lambda t: t.update({HEAD: t[EMBEDDING].clone()}))
    assert largest_difference(load_model(str(folder), device="cpu")[0], theirs) <= 1e-5


def test_p48_another_head_and_tied_is_refused(twin):
    folder, _ = twin("Llama", tie_word_embeddings=True)
    edit(folder, lambda t: t.update({HEAD: t[EMBEDDING] + 1}))
    assert "tie_word_embeddings is true but lm_head.weight differs" in refusal(folder)


def test_p48_no_head_and_untied_is_refused(twin):
    folder, _ = twin("Llama")
    edit(folder, lambda t: t.pop(HEAD))
    assert "lm_head.weight is missing and tie_word_embeddings is false" in refusal(folder)


def cut_one_byte(data):
    return data[:-1]


def add_bytes(data):
    return data + b"\0\0\0"


def huge_header(data):
    return struct.pack("<Q", 2**40) + data[8:]


def header_past_the_end(data):
    return struct.pack("<Q", len(data)) + data[8:]


def only_a_length(data):
    return data[:8]


def nothing(data):
    return b""


def not_json(data):
    return data[:8] + b"#" + data[9:]


DAMAGE = [cut_one_byte, add_bytes, huge_header, header_past_the_end, only_a_length, nothing, not_json]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_p53_damaged_safetensors(twin, damage):
    folder, _ = twin("Llama")
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert f"{path}: not a whole safetensors file" in refusal(folder)


def test_p53_damaged_shard_is_named(twin):
    folder, _ = twin("Llama", max_shard_size="100KB")
    path = sorted(folder.glob("model-*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refusal(folder)


def test_missing_shard_is_named(twin):
    folder, _ = twin("Llama", max_shard_size="100KB")
    path = sorted(folder.glob("model-*.safetensors"))[1]
    path.unlink()
    assert f"{path}: the file is missing" in refusal(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not an index"),
        ("[]", "not an index"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "'../x.safetensors', which is not"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "'pytorch_model.bin', which is not"),
    ],
)
def test_bad_index(twin, text, message):
    folder, _ = twin("Llama", max_shard_size="100KB")
    (folder / "model.safetensors.index.json").write_text(text)
    assert message in refusal(folder)


def test_index_that_the_shards_contradict(twin):
    folder, _ = twin("Llama", max_shard_size="100KB")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = next(f for f in files if f != index["weight_map"]["model.norm.weight"])
    path.write_text(json.dumps(index))
    assert "lacks the tensor model.norm.weight" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight missing"),
        (lambda t: [t.pop(n) for n in list(t) if ".mlp." in n], "gate_proj.weight and 5 more tensors missing"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}), "q_proj.bias, which this"),
        (lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(112, 64)}), "layers.2.mlp.up_proj"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(63)}),
            r"model.norm.weight has shape (63,), the config asks for (64,)",
        ),
        (lambda t: t["model.layers.1.mlp.down_proj.weight"][3, 5].fill_(float("nan")), "down_proj.weight holds values"),
        (lambda t: t["model.norm.weight"][5:6].fill_(float("inf")), "model.norm.weight holds values"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int64)}),
            "stored as torch.int64, floating point is needed",
        ),
    ],
)
def test_wrong_tensors_are_named(twin, change, message):
    folder, _ = twin("Llama")
    edit(folder, change)
    sentence = refusal(folder)
    assert message in sentence
    assert str(folder) in sentence


def test_large_weights_whose_sum_overflows_are_accepted(twin):
    folder, _ = twin("Llama")
    edit(folder, lambda t: t["model.norm.weight"].fill_(3e38))
    load_model(str(folder), device="cpu")


def test_old_rotary_tables_in_the_file_are_passed_over(twin, largest_difference):
    folder, theirs = twin("Llama")
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert largest_difference(load_model(str(folder), device="cpu")[0], theirs) <= 1e-5


def test_pickle_is_never_read(twin):
    folder, theirs = twin("Llama")
    (folder / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    assert "pickle files are never read" in refusal(folder)


def test_no_weights_at_all(twin):
    folder, _ = twin("Llama")
    (folder / "model.safetensors").unlink()
    assert "neither model.safetensors nor" in refusal(folder)


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_broken_config_json(twin, text):
    folder, _ = twin("Llama")
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder)


def test_no_tokenizer_files(twin):
    folder, _ = twin("Llama")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert "no tokenizer files" in refusal(folder)


def test_broken_tokenizer_json(twin):
    folder, _ = twin("Llama")
    (folder / "tokenizer.json").write_text("{")
    assert "the tokenizer cannot be loaded" in refusal(folder)


def test_stored_dtype_does_not_matter_on_a_cpu(twin, largest_difference):
    folder, theirs = twin("Llama")
    edit(folder, lambda t: t.update({name: tensor.bfloat16() for name, tensor in t.items()}))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.bfloat16())
    ours, _ = load_model(str(folder), device="cpu")
    assert ours.dtype == torch.float32
    assert largest_difference(ours, theirs) <= 1e-5


def test_end_ids_come_from_the_generation_config_too(twin):
    folder, _ = twin("Llama")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert load_model(str(folder), device="cpu")[0].config.eos_token_ids == (2, 9)
