"""GGUF files: the same logits as the checkpoint they were converted from, and every way a file can be broken."""

import contextlib
import struct

import numpy as np
import pytest
import torch

from llm.errors import InputError
from llm.models import load_model
from llm.models.gguf_files import GGUFFile

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama": ("Llama", "llama", {}),
    "llama-tied": ("Llama", "llama", {"tie_word_embeddings": True}),
    "llama-wide-heads": ("Llama", "llama", {"head_dim": 32}),
    "llama-biases": ("Llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", "llama", {"sliding_window": None}),
    "qwen2": ("Qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", "qwen3", {"head_dim": 32}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_checkpoint_it_came_from(case, twin, write_gguf, largest_difference):
    family, arch, overrides = CASES[case]
    _, theirs = twin(family, **overrides)
    ours, tokenizer = load_model(str(write_gguf(theirs, arch=arch)), device="cpu")
    assert largest_difference(ours, theirs) <= 1e-5
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ2_0"])
def test_quantised_types(kind, twin, write_gguf, dequantised, largest_difference):
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8} if kind == "TQ2_0" else {}
    _, theirs = twin("Llama", **{"intermediate_size": 128, **sizes})
    path = write_gguf(theirs, kind=kind)
    dequantised(theirs, kind)
    assert largest_difference(load_model(str(path), device="cpu")[0], theirs) <= 1e-4


def test_every_type_gguf_dequantises_is_read(tmp_path):
    """Random blocks of each type: our reading of the file gives what gguf's own reader and dequantisation give."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import _type_traits, dequantize

    path = tmp_path / "types.gguf"
    writer = GGUFWriter(path, "llama")
    random = np.random.default_rng(0)
    for kind in _type_traits:
        rows = random.integers(0, 60, (2, GGML_QUANT_SIZES[kind][1] * 2), dtype=np.uint8)
        writer.add_tensor(kind.name, rows, raw_dtype=GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(path)
    theirs = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(path).tensors}
    assert len(theirs) >= 20
    for name, expected in theirs.items():
        np.testing.assert_array_equal(file.array(name), expected.reshape(file.tensors[name].shape))


def test_header_says_what_ggufs_own_reader_says(twin, write_gguf):
    from gguf import GGUFReader

    _, theirs = twin("Llama")

    def everything(writer):
        writer.add_uint8("x.u8", 200)
        writer.add_int8("x.i8", -3)
        writer.add_uint16("x.u16", 60000)
        writer.add_int16("x.i16", -300)
        writer.add_int32("x.i32", -70000)
        writer.add_uint64("x.u64", 2**40)
        writer.add_int64("x.i64", -(2**40))
        writer.add_float64("x.f64", 0.1)
        writer.add_bool("x.b", True)
        writer.add_string("x.s", "naïve\n")
        writer.add_array("x.af", [0.5, 1.5])
        writer.add_array("x.as", ["a", "é"])
        writer.add_array("x.ai", [1, -2])

    path = write_gguf(theirs, extra=everything)
    ours = GGUFFile(path)
    for key, field in GGUFReader(path).fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key
    assert ours.metadata["x.i64"] == -(2**40)
    assert ours.metadata["x.as"] == ["a", "é"]


def test_p48_no_output_tensor_is_a_tied_head(twin, write_gguf):
    _, theirs = twin("Llama")
    ours, _ = load_model(str(write_gguf(theirs, drop=("output.weight",))), device="cpu")
    assert ours.config.tie_word_embeddings
    assert ours.lm_head.weight is ours.embed_tokens.weight


def test_p49_theta_and_linear_scaling(twin, write_gguf, largest_difference):
    from gguf import RopeScalingType

    _, theirs = twin("Llama", rope_parameters={"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0})

    def scaling(writer):
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    ours, _ = load_model(str(write_gguf(theirs, extra=scaling)), device="cpu")
    assert ours.config.rope_theta == 100000.0
    assert largest_difference(ours, theirs) <= 1e-5


def test_p49_llama3_scaling_comes_as_frequency_divisors(twin, write_gguf, largest_difference):
    """convert_hf_to_gguf.py writes llama3 scaling as the tensor rope_freqs, computed here as it does there."""
    _, theirs = twin("Llama", rope_parameters=LLAMA3)
    frequencies = 1.0 / 500000.0 ** (np.arange(0, 16, 2, dtype=np.float32) / 16)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((32 / wavelengths - 1.0) / (4.0 - 1.0), 0, 1)
    divisors = (1 / ((1 - smooth) / 8.0 + smooth)).astype(np.float32)
    path = write_gguf(theirs, extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors))
    assert largest_difference(load_model(str(path), device="cpu")[0], theirs) <= 1e-5


def test_p54_sliding_window_is_read(twin, write_gguf, largest_difference):
    _, theirs = twin("Mistral", sliding_window=4)
    ours, _ = load_model(str(write_gguf(theirs, extra=lambda w: w.add_sliding_window(4))), device="cpu")
    assert ours.config.sliding_window == 4
    assert largest_difference(ours, theirs) <= 1e-5


def refusal(path):
    """The sentence that loading the file ends with."""
    with pytest.raises(InputError) as caught:
        load_model(str(path), device="cpu")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("arch", ["gpt2", "gemma3", "llama4"])
def test_other_architectures_are_refused_by_name(arch, twin, write_gguf):
    _, theirs = twin("Llama")
    sentence = refusal(write_gguf(theirs, arch=arch))
    assert f"architecture '{arch}' is not supported from GGUF (llama, qwen2, qwen3 are)" in sentence
    assert "hf:REF" in sentence


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda w: w.add_rope_scaling_type(__import__("gguf").RopeScalingType.YARN), "rope.scaling.type 'yarn'"),
        (lambda w: w.add_expert_count(8), "mixture of experts"),
        (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count is 8"),
        (lambda w: w.add_tensor("blk.0.attn_sub_norm.weight", np.ones(64, np.float32)), "attn_sub_norm.weight, which"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.ones(5, np.float32)), "rope_freqs holds 5 divisors"),
    ],
)
def test_what_is_not_computed_is_refused(extra, message, twin, write_gguf):
    _, theirs = twin("Llama")
    assert message in refusal(write_gguf(theirs, extra=extra))


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ("blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight missing"),
        ("token_embd.weight", "lacks the tensor token_embd.weight"),
    ],
)
def test_missing_tensors_are_named(drop, message, twin, write_gguf):
    _, theirs = twin("Llama")
    assert message in refusal(write_gguf(theirs, drop=(drop,)))


def test_weights_that_are_not_numbers(twin, write_gguf):
    _, theirs = twin("Llama")
    theirs.model.layers[0].mlp.up_proj.weight.data[0, 0] = float("nan")
    assert "mlp.up_proj.weight holds values that are not finite" in refusal(write_gguf(theirs))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "not a GGUF file"),
        (lambda data: b"PK" + data[2:], "not a GGUF file"),
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "GGUF version 1"),
        (lambda data: data[:-1], "cut short"),
        (lambda data: data[:300], "cut short"),
        (lambda data: data[:30], "cut short"),
        (lambda data: data + b"\0" * 64, "64 bytes follow the last tensor"),
        (lambda data: data[:16] + struct.pack("<Q", 2**40) + data[24:], "damaged|cut short"),
        (lambda data: data[:8] + struct.pack("<Q", 2**40) + data[16:], "damaged|cut short|unknown"),
        (lambda data: data[:24] + struct.pack("<Q", 2**62) + data[32:], "cut short"),
    ],
)
def test_p53_damaged_files(damage, message, twin, write_gguf):
    _, theirs = twin("Llama")
    path = write_gguf(theirs)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message) as caught:
        load_model(str(path), device="cpu")
    assert str(path) in str(caught.value)


def test_flipped_header_bytes_end_in_the_one_error_type(twin, write_gguf):
    """Random bytes in the header end in the one error type, or load."""
    _, theirs = twin("Llama")
    path = write_gguf(theirs)
    data = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(60):
        broken = bytearray(data)
        for at in random.integers(0, 2000, 3):
            broken[at] = random.integers(0, 256)
        path.write_bytes(bytes(broken))
        with contextlib.suppress(InputError):
            GGUFFile(path)


def test_weights_end_up_writable_and_apart_from_the_file(twin, write_gguf):
    _, theirs = twin("Llama")
    path = write_gguf(theirs)
    before = path.read_bytes()
    model, _ = load_model(str(path), device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert path.read_bytes() == before
