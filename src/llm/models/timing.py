"""Which of several calls is fastest, told so that processes of one machine agree: other kernels round otherwise."""

import time
from collections.abc import Callable, Mapping

CLEARLY = 0.7
"""A call replaces the usual one when it needs less than this share of its time, measured twice."""
_ROUNDS = 5
_SECONDS = 0.05


def fastest(calls: Mapping[str, Callable[[], object]], *, usual: str) -> str:
    """The name of the call to use: `usual`, unless another is clearly faster."""
    best = usual
    for _ in range(2):
        seconds = _least_seconds(calls)
        best = min(seconds, key=lambda name: seconds[name])
        if seconds[best] >= CLEARLY * seconds[usual]:
            return usual
    return best


def _least_seconds(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The fastest run of each call.

    They run in turns, so that a busy machine does not decide, and for long enough (`_ROUNDS` of each, and `_SECONDS`
    for each on average) that threads which were just started have found a core of their own.
    """
    times = dict.fromkeys(calls, float("inf"))
    rounds, started = 0, time.perf_counter()
    while rounds < _ROUNDS or time.perf_counter() - started < _SECONDS * len(calls):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - began)
        rounds += 1
    return times
