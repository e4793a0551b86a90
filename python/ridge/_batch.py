"""Several sequences in one forward pass."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Mapping, Optional

from . import _library as c
from ._model import Model, Prompt, _Handle, _ids, _numpy

if TYPE_CHECKING:
    import numpy


class Batch(_Handle):
    """n_sequences empty sequences with caches of their own, numbered from 0.

    kv and n_ctx (tokens of each sequence) are the model's where they are not given; n_ubatch is how many tokens a step
    may have, 0 for the library's choice.

    >>> with ridge.Batch(model, 2) as batch:
    ...     rows = batch.step({0: "Once upon a time", 1: "The"})
    ...     rows.shape == (2, model.info.vocab_size), batch.n_past(1)
    (True, 2)
    """

    _kind = "batch"

    def __init__(self, model: Model, n_sequences: int, kv: Optional[str] = None, n_ctx: Optional[int] = None,
                 n_ubatch: int = 0) -> None:
        self.model = model
        self._pointer = ctypes.c_void_p()
        made = c.options("session", c.SessionOptions)
        made.kv, made.n_ctx = (model.kv if kv is None else kv).encode(), model.n_ctx if n_ctx is None else n_ctx
        made.n_ubatch = n_ubatch
        with model._computing:
            c.call("batch_create", model._open, made, n_sequences, ctypes.byref(self._pointer))

    def step(self, appended: Mapping[int, Prompt]) -> "numpy.ndarray":
        """One forward pass: appends a text or tokens to each named sequence.

        Returns the logits behind them, [len(appended), vocab_size] in the order of `appended`: a view of the batch's
        memory, good until its next call.
        """
        numpy, logits = _numpy(), c.Floats()
        rows = (c.BatchRow * len(appended))()
        for row, (sequence, prompt) in zip(rows, appended.items()):
            tokens = self.model._tokens(prompt)
            row.sequence, row.n, row.tokens = sequence, len(tokens), _ids(tokens)
        with self.model._computing:
            c.call("batch_step", self._open, rows, len(rows), ctypes.byref(logits))
        view = numpy.ctypeslib.as_array(logits, (len(rows), self.model.info.vocab_size))
        view.flags.writeable = False
        return view

    def truncate(self, sequence: int, n: int) -> None:
        """Forgets all but the first n tokens of a sequence; 0 empties it."""
        with self.model._computing:
            c.call("batch_truncate", self._open, sequence, n)

    def n_past(self, sequence: int) -> int:
        """Tokens that a sequence holds."""
        return c.lib.ridge_batch_n_past(self._open, sequence)
