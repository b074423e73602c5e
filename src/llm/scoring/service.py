"""One model asked from many places at once: what arrives together is computed together.

A worker thread owns the model. Scoring requests that are queued when it is free become one engine call; generation
requests join the running batch at its next step. A caller that is cancelled, or whose request fails, does not touch
the others.
"""

import atexit
import contextlib
import inspect
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from llm.scoring.generation import Decoding, check, generate, make_decoding
from llm.scoring.requests import Generation, GenerationRequest, Scorer, ScoreRequest, TokenScores
from llm.scoring.rows import GenerationError
from llm.scoring.store import StoreFullError
from llm.scoring.waiting import wait_for

QUIET_SECONDS = 0.01
"""An idle worker starts when nothing has arrived for this long …"""
GATHER_SECONDS = 0.1
"""… or this long after the first arrival."""
IDLE_SECONDS = 30.0
"""A worker thread that has had nothing to do for this long ends; the next request starts another."""

T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class _ScoreJob:
    requests: tuple[ScoreRequest, ...]
    top_k: int
    future: "Future[list[TokenScores]]" = field(default_factory=Future)
    found: dict[int, TokenScores] = field(default_factory=dict)

    def take(self, index: int, scores: TokenScores) -> None:
        """One of the scores; the last one settles the job."""
        self.found[index] = scores
        if len(self.found) == len(self.requests):
            _settle(self.future, [self.found[index] for index in range(len(self.requests))])


@dataclass(kw_only=True, eq=False)
class _GenerationJob:
    request: GenerationRequest
    future: "Future[Generation]" = field(default_factory=Future)


class ScoringService:
    """Scores and generates for any number of concurrent callers of one model.

    Args:
        scorer: what scores; an `on_scored` argument of its `score` lets callers go as soon as theirs is done.
        batch_size: rows generated together, at most.
        max_length: the context for generation in tokens (the model's own by default).
    """

    def __init__(
        self, model: Any, tokenizer: Any, scorer: Scorer, *, batch_size: int = 32, max_length: int | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.scorer = scorer
        self.batch_size = batch_size
        self.max_length = max_length
        self._reports = "on_scored" in inspect.signature(scorer.score).parameters
        self._changed = threading.Condition()
        self._score_jobs: list[_ScoreJob] = []
        self._generation_jobs: list[_GenerationJob] = []
        self._last_arrival = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._decoding: Decoding | None = None
        self._running: dict[int, _GenerationJob] = {}
        _close_at_exit(self)

    # -- asking --------------------------------------------------------------------------------------------------

    async def score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> list[TokenScores]:
        """Scores in request order; raises what the scorer raises for these requests."""
        return await wait_for(self.start_score(requests, top_k=top_k))

    async def generate(self, request: GenerationRequest) -> Generation:
        """The request's generation.

        Raises:
            InputError: the request cannot be met.
            GenerationError: the model failed on it.
        """
        return await wait_for(self.start_generation(request))

    def start_score(self, requests: Sequence[ScoreRequest], *, top_k: int = 0) -> "Future[list[TokenScores]]":
        """The same without waiting: a future, which may be cancelled."""
        job = _ScoreJob(requests=tuple(requests), top_k=top_k)
        if not job.requests:
            job.future.set_result([])
            return job.future
        with self._changed:
            self._score_jobs.append(job)
            self._arrived()
        return job.future

    def start_generation(self, request: GenerationRequest) -> "Future[Generation]":
        """The same without waiting: a future, which may be cancelled."""
        check(request, self.model, max_length=self.max_length)
        job = _GenerationJob(request=request)
        with self._changed:
            self._generation_jobs.append(job)
            self._arrived()
        return job.future

    def close(self, timeout: float | None = None) -> None:
        """End the worker thread after what it is computing; whoever still waits gets a RuntimeError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        self._refuse_all()

    def _arrived(self) -> None:
        if self._closed:
            self._refuse_all()
            raise RuntimeError("the scoring service is closed: make a new one")
        self._last_arrival = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="scoring-service", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _refuse_all(self) -> None:
        with self._changed:
            futures: list[Future[Any]] = [job.future for job in self._score_jobs]
            futures += [job.future for job in (*self._generation_jobs, *self._running.values())]
            self._score_jobs, self._generation_jobs, self._running = [], [], {}
        for future in futures:
            _fail(future, RuntimeError("the scoring service was closed before this request was computed"))

    # -- the worker thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (queued := self._next_jobs()) is not None:
            score_jobs, generation_jobs = queued
            for top_k in sorted({job.top_k for job in score_jobs}):
                self._score_together([job for job in score_jobs if job.top_k == top_k])
            self._generate_on(generation_jobs)

    def _next_jobs(self) -> tuple[list[_ScoreJob], list[_GenerationJob]] | None:
        """Everything that is queued, at once if something is being generated; None when it is time to end."""
        with self._changed:
            if self._closed or not (self._running or self._wait_for_jobs()):
                self._thread = None
                return None
            score_jobs, self._score_jobs = self._score_jobs, []
            generation_jobs, self._generation_jobs = self._generation_jobs, []
        return [job for job in score_jobs if not job.future.cancelled()], generation_jobs

    def _wait_for_jobs(self) -> bool:
        """Wait for an arrival and for those that come with it; False if closed, or idle for long."""
        arrived = self._changed.wait_for(lambda: self._closed or self._has_jobs, IDLE_SECONDS)
        deadline = time.monotonic() + GATHER_SECONDS
        while arrived and not self._closed:
            now = time.monotonic()
            left = min(self._last_arrival + QUIET_SECONDS, deadline) - now
            if left <= 0:
                return True
            self._changed.wait(left)
        return False

    @property
    def _has_jobs(self) -> bool:
        return bool(self._score_jobs or self._generation_jobs)

    # -- scoring -------------------------------------------------------------------------------------------------

    def _score_together(self, jobs: Sequence[_ScoreJob]) -> None:
        """One call for all; if it fails, halves of them, so that the failure reaches the one who caused it."""
        jobs = [job for job in jobs if not job.future.done()]
        if not jobs:
            return
        try:
            self._score_in_one_call(jobs)
        except BaseException as error:
            if len(jobs) == 1 or isinstance(error, StoreFullError) or self._closed:
                for job in jobs:
                    _fail(job.future, error)
                return
            middle = len(jobs) // 2
            self._score_together(jobs[:middle])
            self._score_together(jobs[middle:])

    def _score_in_one_call(self, jobs: Sequence[_ScoreJob]) -> None:
        places = [(job, index) for job in jobs for index in range(len(job.requests))]
        merged = [job.requests[index] for job, index in places]

        def take(indices: Sequence[int], scores: Sequence[TokenScores]) -> None:
            for number, one in zip(indices, scores, strict=True):
                job, index = places[number]
                job.take(index, one)

        if self._reports:
            scorer: Any = self.scorer
            scorer.score(merged, top_k=jobs[0].top_k, on_scored=take)
        else:
            take(range(len(merged)), self.scorer.score(merged, top_k=jobs[0].top_k))

    # -- generating ----------------------------------------------------------------------------------------------

    def _generate_on(self, arrived: Sequence[_GenerationJob]) -> None:
        """Let what arrived in, let what was cancelled go, and take one step."""
        if self._decoding is None and arrived:
            self._decoding = make_decoding(
                self.model, self.tokenizer, batch_size=self.batch_size, max_length=self.max_length
            )
        if self._decoding is None:
            return
        for job in arrived:
            self._running[self._decoding.submit(job.request)] = job
        for ticket in [ticket for ticket, job in self._running.items() if job.future.cancelled()]:
            self._decoding.cancel(ticket)
            self._running.pop(ticket, None)
        try:
            finished = self._decoding.step() if self._decoding.busy else []
        except BaseException:
            self._decoding = None
            self._generate_alone()
            return
        for ticket, outcome in finished:
            if ticket not in self._running:
                continue  # the service was closed meanwhile
            future = self._running.pop(ticket).future
            if isinstance(outcome, GenerationError):
                _fail(future, outcome)
            else:
                _settle(future, outcome)

    def _generate_alone(self) -> None:
        """After a step has failed: each running request by itself, so that the failure reaches its own caller."""
        while self._running:
            _, job = self._running.popitem()
            if job.future.cancelled():
                continue
            try:
                alone = generate(self.model, self.tokenizer, [job.request], batch_size=1, max_length=self.max_length)
            except BaseException as error:
                _fail(job.future, error)
            else:
                _settle(job.future, alone[0])


def _settle(future: "Future[T]", result: T) -> None:
    """Give the result, unless the caller has gone."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(result)


def _fail(future: "Future[Any]", error: BaseException) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)


def _close_at_exit(service: ScoringService) -> None:
    """A thread inside torch while the interpreter is taken down can crash it: wait for it, but not for long."""
    reference = weakref.ref(service)

    def close() -> None:
        living = reference()
        if living is not None:
            living.close(timeout=5.0)

    atexit.register(close)
    weakref.finalize(service, atexit.unregister, close)
