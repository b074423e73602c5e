"""How the C library treats memory that is freed and needed again a moment later."""

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_* of <malloc.h>
_KEPT_BYTES = 256 * 2**20
_LARGEST_ON_HEAP = 32 * 2**20


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 256 MiB of freed memory for the next allocation; True where it agreed.

    By default it hands tens of MiB back to the kernel after every layer and faults them in again, zeroed, in the
    next: some percent of a pack's time. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
