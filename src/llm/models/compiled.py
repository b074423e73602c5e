"""The project's own kernels, compiled for this machine from C when they are first wanted.

`few_rows.c` multiplies a few rows by a packed weight, `many_rows.c` many rows by one as it stands; `one_query.c`
attends from one position of each row to its cache, `many_queries.c` from many positions to the branches of a prefix
tree; `by_rows.c` holds the element-wise steps. In all of them a row's bits depend on the row alone.

It takes a C compiler (`$CC`, cc, gcc or clang) and a second; nothing is left on disk. Without one, where threads cannot
be shared with torch, or with HARNESS_BRIDGE_COMPILE=0, there are none, and torch's serve.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch
from torch import Tensor

from llm.models.compiled_checks import answers_right

WIDTH = 16
STRIP = 96
"""The most lanes that `many_queries.c` takes together, whole tiles of 24; it is compiled for this number."""
_NAMES = ("few_rows.c", "many_rows.c", "one_query.c", "many_queries.c", "by_rows.c")
_SOURCES = tuple(str(Path(__file__).with_name(name)) for name in _NAMES)
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", f"-DSTRIP={STRIP}")
_SECONDS = 60
_GRAIN = 8192
"""Elements for which it is worth waking other threads."""


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A weight (out, in) as `few_rows.c` reads it: panels (ceil(out / 16), in, 16)."""

    panels: Tensor
    num_out: int


@dataclass(frozen=True, kw_only=True)
class CompiledKernels:
    """The compiled functions, and torch's own threads for them."""

    functions: Any
    parallel: Any
    thread_number: Any

    def pack(self, weight: Tensor) -> PackedMatrix:
        """A copy of a weight (out, in), float32 whatever it was."""
        wide = weight.detach().float().contiguous()
        num_out, num_in = wide.shape
        panels = torch.empty(-(-num_out // WIDTH), num_in, WIDTH)
        self.functions.pack(wide.data_ptr(), panels.data_ptr(), num_in, num_out)
        return PackedMatrix(panels=panels, num_out=num_out)

    def multiply(self, x: Tensor, weight: PackedMatrix, bias: Tensor | None) -> Tensor:
        """`x @ weight.T + bias`, float32, for x (T, in); a row's bits depend on the row alone."""
        return self._product(self.functions.multiply, x, weight.panels, bias, weight.num_out)

    def multiply_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> Tensor:
        """`x @ weight.T + bias`, float32, for x (T, in) and weight (out, in), to the bit as `multiply` gives it; or,
        with weights of gates above those of as many ups, `silu(gate) * up` (T, out / 2).
        """
        num_out = weight.shape[0] // (2 if gated else 1)
        return self._product(self.functions.multiply_rows, x, weight.contiguous(), bias, num_out, gated)

    def _product(
        self, function: Any, x: Tensor, weight: Tensor, bias: Tensor | None, num_out: int, *more: bool
    ) -> Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape[0], num_out)
        failed = function(
            *(x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr()),
            *(x.shape[0], x.shape[1], num_out, *more),
            *self._threads(),
        )
        if failed:
            raise MemoryError("no memory for the inputs of a product")
        return out

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, first: Tensor, last: Tensor
    ) -> Tensor:
        """Store k and v (R, Hkv, D) at each row's position `last`, then attend from q (R, Hq, D) to `first` … `last`.

        Args:
            keys, values: (N, Hkv, positions, D) tiles, float32 and contiguous; D is a multiple of 8.
            table: (R, W) each row's tiles in order; `first` and `last` are (R,); all int64.

        Returns:
            (R, Hq * D) float32; a row's bits depend on the row alone.
        """
        q, k, v = (_by_rows(x) for x in (q, k, v))
        num_rows, num_kv_heads, head_dim = k.shape
        out = torch.empty(num_rows, q.shape[1] * head_dim)
        failed = self.functions.attend(
            *(x.data_ptr() for x in (q, k, v, keys, values, out, table, first, last)),
            *(num_rows, num_kv_heads, q.shape[1] // num_kv_heads, head_dim, keys.shape[2], table.shape[1]),
            *(q.stride(0), k.stride(0), v.stride(0)),
            *self._threads(),
        )
        if failed:
            raise MemoryError("no memory for the scores of a decoding step")
        return out

    def attend_branches(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Tensor,
        positions: Tensor,
        paths: Tensor,
        strips: Tensor,
        *,
        window: int,
    ) -> Tensor:
        """Causal attention of the rows `rows` of q (N, Hq, D), each over the keys of its own branch.

        Args:
            keys, values: (…, Hkv, …, D) float32 pieces of D, a multiple of 4, laid out alike: heads in dimension 1.
            rows, positions: (n,) the queries' rows in q and the positions they stand at.
            paths: where each branch's positions lie from 0 on, one branch after the other: at the first head's
                piece, counted in pieces of D floats from the start.
            strips: (s, 3) first lane (query * group + head), at most STRIP lanes of one branch, where its path begins.
            window: how many positions a query sees, itself included; 0 for all.

        Returns:
            (N, Hq * D) float32, defined in the rows asked for; a row's bits depend on the row and its keys alone.
        """
        q = _by_rows(q)
        num_heads, head_dim = keys.shape[1], keys.shape[-1]
        out = torch.empty(q.shape[0], q.shape[1] * head_dim)
        failed = self.functions.attend_branches(
            *(x.data_ptr() for x in (q, keys, values, out, rows, positions, paths, strips)),
            *(len(strips), num_heads, q.shape[1] // num_heads, head_dim),
            *(q.stride(0), keys.stride(1) // head_dim, window),
            *self._threads(out.numel()),
        )
        if failed:
            raise MemoryError("no memory for the scores of a pack's attention")
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x²) + eps) * weight` over the last dimension of contiguous x, all float32."""
        out = torch.empty_like(x)
        size = x.shape[-1]
        self.functions.norm(
            *(t.data_ptr() for t in (x, weight, out)), x.numel() // size, size, eps, *self._threads(x.numel())
        )
        return out

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up` (T, I) of contiguous float32 (T, 2 * I), gates first."""
        out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self.functions.gate(gate_up.data_ptr(), out.data_ptr(), *out.shape, *self._threads(out.numel()))
        return out

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Heads x (T, H, D), each in one piece, turned by contiguous angles (T, …, D / 2), all float32."""
        out = torch.empty(x.shape)
        self.functions.turn(
            *(t.data_ptr() for t in (x, cosine, sine, out)),
            *(x.shape[0], x.shape[1], x.shape[2] // 2, x.stride(0)),
            *self._threads(x.numel()),
        )
        return out

    def peaks_and_sums(self, x: Tensor) -> Tensor:
        """Of each row of contiguous float32 x (N, V): its largest value, and the sum of `exp(x - largest)`; (2, N)."""
        out = torch.empty(2, x.shape[0])
        self.functions.sum_up(x.data_ptr(), out.data_ptr(), *x.shape, *self._threads(x.numel()))
        return out

    def _threads(self, num_elements: int = _GRAIN) -> tuple[int, Any, Any]:
        """How many threads so many elements are worth, and torch's way of running them."""
        return torch.get_num_threads() if num_elements >= _GRAIN else 1, self.parallel, self.thread_number


def _by_rows(x: Tensor) -> Tensor:
    """x (R, H, D) in float32 with each row in one piece."""
    x = x.float()
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def compiled_kernels() -> CompiledKernels | None:
    """The compiled kernels, if they can be had and give right answers here; tried once a process."""
    with _ONE_AT_A_TIME:
        return _compile()


def compile_ahead() -> None:
    """Have the kernels compiled while something else is done."""
    Thread(target=compiled_kernels).start()


_ONE_AT_A_TIME = Lock()


@cache
def _compile() -> CompiledKernels | None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    threads = _torch_threads()
    if compiler is None or threads is None or os.environ.get("HARNESS_BRIDGE_COMPILE") == "0":
        return None
    try:
        functions = _load(compiler)
    except (OSError, subprocess.SubprocessError):
        return None
    found = CompiledKernels(functions=functions, parallel=threads[0], thread_number=threads[1])
    return found if answers_right(found) else None


def _load(compiler: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels.so"
        command = [compiler, *_FLAGS, *_SOURCES, "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        functions = ctypes.CDLL(str(target))
    pointer, size = ctypes.c_void_p, ctypes.c_long
    threads = (ctypes.c_int, pointer, pointer)
    functions.pack.argtypes = (*[pointer] * 2, *[size] * 2)
    functions.multiply.argtypes = (*[pointer] * 4, *[size] * 3, *threads)
    functions.multiply_rows.argtypes = (*[pointer] * 4, *[size] * 3, ctypes.c_int, *threads)
    functions.attend.argtypes = (*[pointer] * 9, *[size] * 9, *threads)
    functions.attend_branches.argtypes = (*[pointer] * 8, *[size] * 7, *threads)
    functions.norm.argtypes = (*[pointer] * 3, *[size] * 2, ctypes.c_float, *threads)
    functions.gate.argtypes = (*[pointer] * 2, *[size] * 2, *threads)
    functions.turn.argtypes = (*[pointer] * 4, *[size] * 4, *threads)
    functions.sum_up.argtypes = (*[pointer] * 2, *[size] * 2, *threads)
    for function in (functions.multiply, functions.multiply_rows, functions.attend, functions.attend_branches):
        function.restype = ctypes.c_int
    for function in (functions.pack, functions.norm, functions.gate, functions.turn, functions.sum_up):
        function.restype = None
    return functions


def _torch_threads() -> tuple[Any, Any] | None:
    """(GOMP_parallel, omp_get_thread_num) of the OpenMP library that torch has loaded.

    Another copy's threads would wait for work on the same cores.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        home = Path(torch.__file__).resolve().parent
        paths = {Path(line.split(maxsplit=5)[-1]).resolve() for line in lines if "libgomp" in line or "libiomp" in line}
        library = ctypes.CDLL(str(next(path for path in paths if path.is_relative_to(home))))
        found = (library.GOMP_parallel, library.omp_get_thread_num)
    except (OSError, StopIteration, AttributeError):
        return None
    return ctypes.cast(found[0], ctypes.c_void_p), ctypes.cast(found[1], ctypes.c_void_p)
