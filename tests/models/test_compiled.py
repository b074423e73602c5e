"""The compiled kernels: right answers, bits that depend on a row alone, and torch where there is no compiler."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import linear as torch_linear

from llm.models import packed, products
from llm.models.compiled import compiled_kernels
from llm.models.decoder import DecoderModel
from llm.models.products import few_rows, linear, weights_for_few_rows

kernels = compiled_kernels()
needs_compiler = pytest.mark.skipif(kernels is None, reason="no C compiler, or not Linux: torch's kernels serve")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_compiler
@pytest.mark.parametrize(("num_in", "num_out"), [(576, 960), (1536, 576), (130, 37), (1, 1), (7, 16)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_are_those_of_float64_to_rounding(num_in, num_out, with_bias):
    x, weight = random(33, num_in), random(num_out, num_in, seed=1)
    bias = random(num_out, seed=2) if with_bias else None
    wanted = torch_linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = kernels.multiply(x, kernels.pack(weight), bias)
    assert (found - wanted).abs().max() < 2e-6 * num_in**0.5 * max(1.0, wanted.abs().max())
    assert torch.equal(kernels.multiply_rows(x, weight, bias), found)


@needs_compiler
@pytest.mark.parametrize(("num_in", "half"), [(576, 1536), (130, 37), (7, 1), (1, 100)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_gated_product_is_its_two_steps_to_the_bit(num_in, half, with_bias):
    x, weight = random(35, num_in), random(2 * half, num_in, seed=1)
    bias = random(2 * half, seed=2) if with_bias else None
    found = kernels.multiply_rows(x, weight, bias, gated=True)
    assert torch.equal(found, kernels.swiglu(kernels.multiply_rows(x, weight, bias)))


@needs_compiler
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["packed", "as it stands", "gated"])
def test_p10_a_row_is_the_same_in_any_number_of_rows(num_threads, kind):
    x, weight = random(203, 300), random(100, 300, seed=1)
    packed = kernels.pack(weight)
    product = {
        "packed": lambda rows: kernels.multiply(rows, packed, None),
        "as it stands": lambda rows: kernels.multiply_rows(rows, weight, None),
        "gated": lambda rows: kernels.multiply_rows(rows, weight, None, gated=True),
    }[kind]
    before = torch.get_num_threads()
    wanted = product(x)
    torch.set_num_threads(num_threads)
    try:
        for rows in (*range(1, 30), 96, 97, 150, 203):
            assert torch.equal(product(x[:rows]), wanted[:rows])
        assert torch.equal(product(x.flip(0)), wanted.flip(0))
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("size", [576, 46, 8, 7, 1])
def test_element_wise_steps_are_those_of_float64_to_rounding(size):
    x, weight = random(50, 2 * size) * 20, random(2 * size, seed=1)
    wide = x.double()
    wanted = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    assert (kernels.rms_norm(x, weight, 1e-5) - wanted).abs().max() < 1e-5
    wanted = torch.nn.functional.silu(wide[:, :size]) * wide[:, size:]
    assert torch.allclose(kernels.swiglu(x).double(), wanted, rtol=2e-6, atol=1e-30)
    heads, angles = x.view(25, 2, 2 * size), random(25, 1, size, seed=2).double()
    first, second = heads.double().split(size, dim=-1)
    wanted = torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )
    assert (kernels.rotate(heads, angles.cos().float(), angles.sin().float()) - wanted).abs().max() < 2e-5


@needs_compiler
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_p10_an_element_wise_row_is_the_same_in_any_number_of_rows(num_threads):
    x, weight, angles = random(203, 1100), random(1100, seed=1), random(203, 1, 55, seed=2)
    steps = (
        lambda rows: kernels.rms_norm(x[:rows], weight, 1e-5),
        lambda rows: kernels.swiglu(x[:rows]),
        lambda rows: kernels.rotate(x[:rows].view(rows, 10, 110), angles[:rows].cos(), angles[:rows].sin()),
    )
    before = torch.get_num_threads()
    wanted = [step(203) for step in steps]
    torch.set_num_threads(num_threads)
    try:
        for rows in (1, 2, 7, 64, 150, 203):
            assert all(torch.equal(step(rows), whole[:rows]) for step, whole in zip(steps, wanted, strict=True))
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_element_wise_steps_keep_numbers_that_are_not_finite_apart():
    x = random(4, 32)
    x[0, 3], x[1, 3], x[2, 3] = torch.nan, torch.inf, -200.0
    assert torch.isfinite(kernels.swiglu(x)).all(dim=1).tolist() == [False, False, True, True]
    assert torch.isfinite(kernels.rms_norm(x, torch.ones(32), 1e-5)).all(dim=1).tolist() == [False, False, True, True]


@needs_compiler
@pytest.mark.parametrize(("head_dim", "window"), [(64, None), (64, 40), (128, None), (24, 5), (80, None), (8, 1)])
def test_attention_of_one_position_is_softmax_over_what_it_sees(head_dim, window):
    lengths, tile, kv_heads, group = [1, 9, 64, 65, 130, 191], 64, 2, 3
    keys, values = random(20, kv_heads, tile, head_dim), random(20, kv_heads, tile, head_dim, seed=1)
    q = random(6, kv_heads * group, head_dim, seed=2)
    k, v = random(6, kv_heads, head_dim, seed=3), random(6, kv_heads, head_dim, seed=4)
    table = torch.randperm(18, generator=torch.Generator().manual_seed(5)).add_(1).view(6, 3)
    last = torch.tensor(lengths) - 1
    first = torch.zeros_like(last) if window is None else (last - window + 1).clamp(min=0)
    found = kernels.attend(q, k, v, keys, values, table, first, last)
    for row in range(6):
        seen = slice(int(first[row]), lengths[row])
        own_keys, own_values = (torch.cat(list(x[table[row]]), dim=1)[:, seen].double() for x in (keys, values))
        assert torch.equal(own_keys[:, -1].float(), k[row])
        weights = (q[row].view(kv_heads, group, -1).double() @ own_keys.transpose(1, 2) / head_dim**0.5).softmax(-1)
        assert torch.allclose(found[row].double(), (weights @ own_values).reshape(-1), atol=2e-6)
        alone = kernels.attend(
            q[row, None], k[row, None], v[row, None], keys, values, table[row, None], first[row, None], last[row, None]
        )
        assert torch.equal(alone[0], found[row])


@needs_compiler
def test_attention_keeps_a_nan_and_extreme_scores():
    keys, values = random(2, 1, 64, 8), random(2, 1, 64, 8, seed=1)
    q, k, v = random(3, 2, 8, seed=2), random(3, 1, 8, seed=3), random(3, 1, 8, seed=4)
    q[1] *= 1e4
    q[2, 1, 3] = float("nan")
    table, first, last = torch.tensor([[0], [1], [1]]), torch.zeros(3, dtype=torch.long), torch.tensor([40, 50, 50])
    out = kernels.attend(q[:2], k[:2], v[:2], keys, values, table[:2], first[:2], last[:2])
    assert out.isfinite().all()
    out = kernels.attend(q[2:], k[2:], v[2:], keys, values, table[2:], first[2:], last[2:])
    assert out[0, 8:].isnan().all()
    assert out[0, :8].isfinite().all()


@needs_compiler
def test_the_compiled_product_leaves_to_torch_what_is_not_its_own(monkeypatch):
    monkeypatch.setitem(products._CHOSEN, torch.float32, "compiled")
    x, weight, bias = random(2, 3, 40), random(50, 40, seed=1), random(50, seed=2)
    assert torch.allclose(linear(x, weight, bias), torch_linear(x, weight, bias), atol=1e-5)
    assert linear(x[:, :0], weight).shape == (2, 0, 50)
    wanting = weight.clone().requires_grad_()
    linear(x, wanting).sum().backward()
    assert wanting.grad.isfinite().all()
    with pytest.raises(RuntimeError, match="dtype"):
        linear(x, weight.double())
    with pytest.raises(RuntimeError, match="shapes"):
        linear(x[..., :39], weight)


def test_a_wide_product_names_the_kernel_behind_it(monkeypatch):
    monkeypatch.setattr(products, "_CHOSEN", {torch.bfloat16: "float32", torch.float32: "compiled"})
    assert products.chosen_product(torch.nn.Linear(400, 300).bfloat16()) == "float32 (compiled)"
    assert products.chosen_product(torch.nn.Linear(400, 300)) == "compiled"


@needs_compiler
def test_packed_weights_follow_a_weight_that_changes(default_model, monkeypatch):
    monkeypatch.setattr(packed, "fastest", lambda calls, usual: usual)
    model, _ = default_model
    copy = DecoderModel(model.config)
    copy.load_state_dict(model.state_dict())
    assert weights_for_few_rows(copy) is not None
    weight, x = copy.layers[0].mlp.down_proj.weight, random(5, 1536)
    with torch.no_grad(), few_rows(copy):
        assert torch.allclose(linear(x, weight), torch_linear(x, weight), atol=1e-3)
        weight.mul_(2)
        assert torch.allclose(linear(x, weight), torch_linear(x, weight), atol=1e-3)
        other = random(7, 1536)
        assert torch.allclose(linear(x, other), torch_linear(x, other), atol=1e-3)


def test_without_a_compiler_there_are_none():
    code = "from llm.models.compiled import compiled_kernels; assert compiled_kernels() is None"
    for missing in ({"HARNESS_BRIDGE_COMPILE": "0"}, {"PATH": "", "CC": "no-such-compiler"}):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env={**os.environ, **missing})
