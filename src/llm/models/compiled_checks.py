"""Whether the compiled kernels answer right on this machine: tried before they serve."""

from typing import Any

import torch


def answers_right(kernels: Any) -> bool:
    """Whether `CompiledKernels` agree with torch, and a row's bits are its own."""
    checks = (_multiplies_right, _gates_right, _attends_right, _branches_right, _steps_right)
    return all(check(kernels) for check in checks)


def _multiplies_right(kernels: Any) -> bool:
    """Both products against torch, each row alone to the bit."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((13, 200), (37, 200), (37,)))
    packed = kernels.pack(weight)
    out = kernels.multiply(x, packed, bias)
    alone = torch.cat([kernels.multiply(row[None], packed, bias) for row in x])
    right = torch.allclose(out, x @ weight.T + bias, atol=1e-4)
    return right and torch.equal(out, alone) and torch.equal(out, kernels.multiply_rows(x, weight, bias))


def _gates_right(kernels: Any) -> bool:
    """A product and its gating in one against the two."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((21, 40), (62, 40), (62,)))
    out = kernels.multiply_rows(x, weight, bias, gated=True)
    return torch.equal(out, kernels.swiglu(kernels.multiply_rows(x, weight, bias)))


def _attends_right(kernels: Any) -> bool:
    """Against torch, for rows of two tiles and unlike lengths."""
    generator = torch.Generator().manual_seed(0)
    keys, values, new_k, new_v = (torch.randn(2, 4, 2, 16, 24, generator=generator) for _ in range(4))
    q, k, v = torch.randn(2, 6, 24, generator=generator), new_k[0, :2, :, 0], new_v[0, :2, :, 0]
    table, first, last = torch.tensor([[0, 2], [3, 1]]), torch.tensor([0, 5]), torch.tensor([7, 29])
    out = kernels.attend(q, k, v, keys[0], values[0], table, first, last)
    wanted = []
    for row in range(2):
        seen = slice(int(first[row]), int(last[row]) + 1)
        own_keys, own_values = (torch.cat(list(x[0][table[row]]), dim=1)[:, seen] for x in (keys, values))
        if not (torch.equal(own_keys[:, -1], k[row]) and torch.equal(own_values[:, -1], v[row])):
            return False
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q[row].view(2, 3, 24)[None], own_keys[None], own_values[None]
        )
        wanted.append(mixed.reshape(-1))
    return torch.allclose(out, torch.stack(wanted), atol=1e-5)


def _branches_right(kernels: Any) -> bool:
    """Against torch, for two branches of one beginning, with a window and without; and each query alone to the bit."""
    generator = torch.Generator().manual_seed(0)
    table, q = torch.randn(150, 2, 2, 20, generator=generator), torch.randn(30, 6, 20, generator=generator)
    paths = torch.stack([torch.arange(110), torch.cat([torch.arange(70), torch.arange(110, 150)])])
    positions = torch.cat([torch.arange(95, 110), torch.arange(60, 75)])
    strips = torch.tensor([[0, 45, 0], [45, 45, 110]])
    rows = torch.arange(30)
    all_keys, all_values = table.unbind(1)
    for window in (0, 50):
        out = kernels.attend_branches(q, all_keys, all_values, rows, positions, 4 * paths, strips, window=window)
        for row in range(30):
            last = int(positions[row]) + 1
            path = paths[row // 15, max(0, last - window) if window else 0 : last]
            keys, values = table[path].permute(1, 2, 0, 3).repeat_interleave(3, dim=1)
            wanted = torch.nn.functional.scaled_dot_product_attention(q[row][:, None], keys, values)
            own = (rows[:1], positions[row : row + 1], 4 * paths[row // 15], torch.tensor([[0, 3, 0]]))
            alone = kernels.attend_branches(q[row : row + 1], all_keys, all_values, *own, window=window)
            if not (torch.equal(out[row], alone[0]) and torch.allclose(alone[0], wanted.flatten(), atol=1e-5)):
                return False
    return True


def _steps_right(kernels: Any) -> bool:
    """Against torch, for sizes that fill no vector."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 46, generator=generator) * 9, torch.randn(46, generator=generator)
    heads, angles = torch.randn(3, 2, 22, generator=generator), torch.randn(3, 11, generator=generator)
    cosine, sine = angles.cos(), angles.sin()
    first, second = heads.split(11, dim=-1)
    c, s = cosine[:, None], sine[:, None]
    pairs = (
        (kernels.rms_norm(x, weight, 0.1), x * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt() * weight),
        (kernels.peaks_and_sums(x), torch.stack([x.amax(-1), (x - x.amax(-1, keepdim=True)).exp().sum(-1)])),
        (kernels.swiglu(x), torch.nn.functional.silu(x[:, :23]) * x[:, 23:]),
        (kernels.rotate(heads, cosine, sine), torch.cat([first * c - second * s, second * c + first * s], dim=-1)),
    )
    return all(torch.allclose(ours, wanted, rtol=1e-5, atol=1e-5) for ours, wanted in pairs)
