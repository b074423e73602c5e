"""A thread for one piece of work, and awaiting another thread's under asyncio or trio (anyio runs on either)."""

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def start_in_own_thread(work: Callable[[], T]) -> "Future[T]":
    """Its result, from a thread that ends with it.

    A thread that has called torch keeps OpenMP's helpers for as long as it lives. Where there are more of these than
    cores, all of them go to sleep after each parallel loop, and every next one is late.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()  # so that no caller who gives up cancels it for the others
    threading.Thread(target=run, daemon=True).start()
    return future


async def wait_for(future: "Future[T]") -> T:
    """The future's result. If the caller is cancelled, the future is too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return await _wait_in_trio(future)
    return await asyncio.wrap_future(future)


async def _wait_in_trio(future: "Future[T]") -> T:
    trio: Any = importlib.import_module("trio")
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def wake(_: "Future[T]") -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nobody is left to be woken
            token.run_sync_soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
    except BaseException:
        future.cancel()
        raise
    return future.result()
