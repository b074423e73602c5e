"""How long calls take beside each other."""

import time
from collections.abc import Callable, Mapping

ROUNDS = 5
SECONDS = 0.05


def least_seconds(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The fastest run of each call.

    They run in turns, so that a busy machine does not decide, and for long enough (`ROUNDS` of each, and `SECONDS` for
    each on average) that threads which were just started have found a core of their own.
    """
    times = dict.fromkeys(calls, float("inf"))
    rounds, started = 0, time.perf_counter()
    while rounds < ROUNDS or time.perf_counter() - started < SECONDS * len(calls):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name] = min(times[name], time.perf_counter() - began)
        rounds += 1
    return times
