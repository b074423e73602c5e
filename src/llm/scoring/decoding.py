"""Continuous batched decoding: rows leave when they are done, and waiting requests take their places.

A row's tokens and logprobs are those of its solo run, to the bit: linear layers see a multiple of 16 rows (below about
a dozen, general CPU kernels change their order of summation) or, with kernels that keep a row's bits in any number, of
4; attention works in fixed shapes (`cached_attention`), and each row chooses with its own settings. A beginning that
another prompt shares is computed once.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llm.models.decoder import DecoderModel
from llm.models.products import few_rows, full_precision, weights_for_few_rows
from llm.scoring.cached_attention import Attend, Placement, decode_attend, one_after_another, pack_attend, place
from llm.scoring.prompt_packs import PromptPack
from llm.scoring.requests import Generation, GenerationRequest
from llm.scoring.rows import GenerationError, Row, common_length
from llm.scoring.sampling import choose
from llm.scoring.stops import Vocabulary
from llm.scoring.tiles import TILE, TilePool, tiles_for

ROWS = 16
"""Linear layers see a multiple of this many rows …"""
ANY_ROWS = 4
"""… or of this many, where every product's rows keep their bits in any number."""
PACK_TOKENS = 2048
"""Prompt tokens computed at a time, at most."""

Finished = list[tuple[int, Generation | GenerationError]]


class DecodingBatch:
    """Generates for requests that come and go: `submit` them, then call `step` until it is no longer `busy`.

    Args:
        model: a DecoderModel, or a module with its `hidden_states`, `project`, `config` and `device`.
        batch_size: rows decoded together, at most.
        cache_bytes: keys and values kept, at most; a request that needs more runs alone.
        max_length: the context in tokens, prompt and new ones together (the model's own by default).
    """

    def __init__(
        self,
        model: Any,
        vocabulary: Vocabulary,
        *,
        batch_size: int = 32,
        cache_bytes: int = 1 << 30,
        max_length: int | None = None,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._batch_size = batch_size
        self._max_length = max_length or model.max_length
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        self._leftover: Row | None = None  # the last row to leave an empty batch: the next prompt may begin like it
        self._placement: Placement | None = None
        self._next_ticket = 0
        self._pool = _pool_for(model)
        self._most_tiles = cache_bytes // self._pool.bytes_per_tile
        self._group = model.config.num_attention_heads // model.config.num_key_value_heads
        missing = vocabulary.undecodable(model.config.vocab_size, getattr(model, "num_decodable", None))
        self._width = getattr(model.config, "intermediate_size", 4 * model.config.hidden_size)
        packed = weights_for_few_rows(model) if isinstance(model, DecoderModel) else None
        self._multiple = ANY_ROWS if packed is not None and packed.any_rows else ROWS
        self._undecodable = None if missing is None else torch.from_numpy(missing).to(model.device)

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    def submit(self, request: GenerationRequest) -> int:
        """Queue a request; `step` returns its generation under the ticket given here."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting.append(Row(request, ticket=ticket, vocabulary=self._vocabulary, max_length=self._max_length))
        return ticket

    def cancel(self, ticket: int) -> None:
        """Drop a request, waiting or running; nothing is returned for it."""
        self._waiting = deque(row for row in self._waiting if row.ticket != ticket)
        for row in [row for row in self._rows if row.ticket == ticket]:
            self._leave(row)

    @torch.inference_mode()
    @full_precision()
    def step(self) -> Finished:
        """Let waiting requests in, then choose one token for every row; what finished, by ticket."""
        finished: Finished = []
        running = list(self._rows)
        entering = self._enter(finished)
        if self._rows:
            with few_rows(self._model):
                logits = self._advance(running, entering)
            self._take([*running, *entering], logits, finished)
        return finished

    def _enter(self, finished: Finished) -> list[Row]:
        """Waiting rows that fit now, in their order, with tiles for their prompts."""
        entering: list[Row] = []
        reserved = sum(tiles_for(row.longest) for row in self._rows)
        while self._waiting and len(self._rows) + len(entering) < self._batch_size:
            row = self._waiting[0]
            if (generation := row.at_limit()) is not None:
                finished.append((self._waiting.popleft().ticket, generation))
                continue
            if (self._rows or entering) and reserved + tiles_for(row.longest) > self._most_tiles:
                break
            reserved += tiles_for(row.longest)
            entering.append(self._waiting.popleft())
        if entering:
            self._pool.reserve(reserved + (len(self._leftover.tiles) if self._leftover else 0))
        for row in entering:
            row.tiles = self._pool.take(tiles_for(len(row.prompt)))
        self._rows += entering
        return entering

    def _advance(self, running: Sequence[Row], entering: Sequence[Row]) -> Tensor:
        """Logits (R, V) after each running row's latest token and each entering row's prompt.

        The last prompts share their pass with the running rows: few rows multiply badly.
        """
        todo = deque(entering)
        hidden: dict[int, Tensor] = {}
        pack = self._next_pack(todo)
        while todo:
            hidden |= self._compute(pack, ())
            pack = self._next_pack(todo)
        hidden |= self._compute(pack, running)
        for row in entering:
            self._pool.show(row.tiles, row.num_cached)
        if entering:
            self._forget_leftover()
            self._placement = None
        return self._project(torch.stack([hidden[row.ticket] for row in (*running, *entering)]))

    def _next_pack(self, todo: deque[Row]) -> PromptPack:
        pack = PromptPack(size=PACK_TOKENS)
        while todo and not pack.is_full:
            row = todo[0]
            if not row.num_cached:
                self._copy_beginning(row)
            if pack.add(row):
                todo.popleft()
        return pack

    def _compute(self, pack: PromptPack, running: Sequence[Row]) -> dict[int, Tensor]:
        """Hidden states (H,) of the prompts' last tokens and of the running rows' latest, by ticket.

        A hidden key that is not a number spoils the tokens before it in its tile all the same, also for a prompt that
        only shares those; so when anything is not finite, each prompt is computed by itself and is no one's source.
        """
        num_prompt = len(pack.ids)
        states = self._pass(pack, running)
        found = {row.ticket: states[num_prompt + index] for index, row in enumerate(running)}
        for row in running:
            row.num_cached += 1
        if not bool(torch.isfinite(states[:num_prompt]).all()):
            for row in pack.rows:
                row.is_sound = False
            if len(pack.rows) > 1:
                return found | self._compute_one_by_one(pack)
        for row, segment in zip(pack.rows, pack.segments, strict=True):
            row.num_cached = segment.stop
        return found | {row.ticket: states[index] for row, index in pack.last_tokens()}

    def _compute_one_by_one(self, pack: PromptPack) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        for row, segment in zip(pack.rows, pack.segments, strict=True):
            row.is_sound = True
            alone = PromptPack(size=segment.stop - row.num_cached)
            alone.add(row)
            found |= self._compute(alone, ())
        return found

    def _pass(self, pack: PromptPack, running: Sequence[Row]) -> Tensor:
        """Hidden states of the pack's tokens, of one more token of each running row, and of some that fill up."""
        attends = [(len(pack.ids), pack_attend(self._pool, pack.segments, group=self._group))] if pack.rows else []
        if running:
            attends.append((len(running), self._decode_attend(running)))
        padding = self._steady(len(pack.ids) + len(running)) - len(pack.ids) - len(running)
        ids = [*pack.ids, *(row.last_token for row in running), *[0] * padding]
        positions = [*pack.positions, *(row.num_cached for row in running), *[0] * padding]
        device = self._pool.device
        states = self._model.hidden_states(
            torch.tensor(ids, device=device), torch.tensor(positions, device=device), one_after_another(attends)
        )
        assert isinstance(states, Tensor)
        return states

    def _copy_beginning(self, row: Row) -> None:
        """Copy the keys and values of the longest beginning that another row's prompt has in the pool already.

        Only of its prompt: what it generated itself was computed in decoding's shapes, whose bits differ.
        """
        source: Row | None = None
        for other in (*self._rows, self._leftover):
            if other is not None and other is not row and other.is_sound:
                shared = min(common_length(row.prompt, other.prompt), other.num_cached, len(row.prompt) - 1)
                if shared > row.num_cached:
                    source, row.num_cached = other, shared
        if source is not None:
            count = tiles_for(row.num_cached)
            self._pool.copy(source.tiles[:count], row.tiles[:count])

    def _decode_attend(self, running: Sequence[Row]) -> Attend:
        """Attention of the running rows' next positions, for which they get a tile where they need one."""
        for row in running:
            if row.num_cached == len(row.tiles) * TILE:
                row.tiles += self._pool.take(1)
                self._placement = None
            self._pool.move_windows(row.tiles, row.num_cached)
        if self._placement is None:
            self._placement = place([row.tiles for row in running], self._pool.device)
        return decode_attend(self._pool, self._placement, [row.num_cached for row in running])

    def _steady(self, num_rows: int) -> int:
        return steady_rows(num_rows, self._width, torch.get_num_threads(), self._multiple)

    def _project(self, hidden: Tensor) -> Tensor:
        """Logits of hidden (R, H), and of the zero rows that fill up the shape."""
        logits = self._model.project(torch.nn.functional.pad(hidden, (0, 0, 0, -hidden.shape[0] % self._multiple)))
        assert isinstance(logits, Tensor)
        return logits

    def _take(self, rows: Sequence[Row], logits: Tensor, finished: Finished) -> None:
        """Choose each row's next token; rows that end leave."""
        choices = choose(logits, [row.chooser for row in rows], self._undecodable)
        for row, choice in zip(rows, choices, strict=True):
            done: Generation | GenerationError | None
            try:
                done = row.add(choice)
            except GenerationError as fault:
                done = fault
            if done is not None:
                self._leave(row)
                finished.append((row.ticket, done))

    def _leave(self, row: Row) -> None:
        self._rows.remove(row)
        self._placement = None
        if self._rows:
            self._pool.give_back(row.tiles)
        else:
            self._forget_leftover()
            self._leftover = row

    def _forget_leftover(self) -> None:
        if self._leftover is not None:
            self._pool.give_back(self._leftover.tiles)
            self._leftover = None


def steady_rows(num_rows: int, width: int, num_threads: int, multiple: int = ROWS) -> int:
    """The next number of rows at which a row's bits depend on nothing but itself.

    Products need a multiple of `multiple`. An element-wise step over rows of `width` is cut into equal shares, one a
    thread and none below torch's grain of 32768 elements; a cut inside a row would change which of its elements go
    through the scalar end of a vector loop, so the shares must be whole rows.
    """
    rows = num_rows + -num_rows % multiple
    while rows % min(num_threads, -(-rows * width // 32768)):
        rows += multiple
    return rows


def _pool_for(model: Any) -> TilePool:
    """An empty pool; on a CPU in float32, which holds every narrower value and multiplies fastest."""
    config = model.config
    shared = [config.sliding_window] * config.num_hidden_layers
    return TilePool(
        windows=getattr(config, "layer_windows", None) or shared,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=torch.float32 if model.device.type == "cpu" else model.dtype,
        device=model.device,
    )
