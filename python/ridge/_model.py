"""Models, sessions and samplers: Python's names for include/ridge/ridge.h."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from . import _library as c

if TYPE_CHECKING:
    import numpy

ChatMessage = Mapping[str, Any]
Prompt = Union[str, Sequence[int]]
Path = Union[str, "os.PathLike[str]"]
#: Tokens of a prompt that are read between two looks for Ctrl-C.
_PIECE = 512


def _numpy():
    try:
        import numpy
    except ImportError as error:
        raise ImportError("rows of numbers need numpy (pip install numpy)") from error
    return numpy


def _ids(tokens: Sequence[int]) -> "ctypes.Array[ctypes.c_int32]":
    return (ctypes.c_int32 * len(tokens))(*tokens)


def _buffer(tokens: Sequence[int]) -> c.TokenBuffer:
    ids = _ids(tokens)
    made = c.TokenBuffer(ctypes.cast(ids, c.Tokens), len(tokens), len(tokens))
    made.ids = ids  # lives as long
    return made


class _Handle:
    """A handle of the library, freed by close(), at the end of a `with`, or when nothing needs it."""

    _kind = ""
    _pointer: Optional[ctypes.c_void_p] = None

    def close(self) -> None:
        """Frees the memory. More than once does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer:
            getattr(c.lib, f"ridge_{self._kind}_free")(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def _open(self) -> ctypes.c_void_p:
        if not self._pointer:
            raise c.UsageError(f"the {self._kind} is closed")
        return self._pointer


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is."""

    name: str
    arch: str
    weight_format: str
    device: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_model: int
    vocab_size: int
    n_ctx_train: int
    n_threads: int
    has_tokenizer: bool
    has_chat_template: bool
    bos: int  #: token that begins texts; -1: none
    n_params: int
    weight_bytes: int
    load_seconds: float


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generated text."""

    text: str
    tokens: list[int]
    stop: str  #: "end token", "stop string", "token limit", "context full" or "interrupted"
    n_prompt: int
    prefill_seconds: float
    decode_seconds: float


@dataclasses.dataclass(frozen=True)
class Kld:
    """A cache format against f16, on a text."""

    format: str
    bits: float  #: of a cached value at 4096 tokens: codes, scales, window and sinks
    kld: float  #: mean divergence in nats
    kld_error: float  #: its standard error
    ppl: float
    ppl_base: float
    same_top: float  #: share of tokens whose likeliest successor is that of f16
    n_scored: int


class Sampler(_Handle):
    """Chooses tokens from logits.

    temperature 0 is the likeliest token; top_k 0, top_p 1, min_p 0 and repeat_penalty 1 are off.
    """

    _kind = "sampler"

    def __init__(self, model: "Model", **settings: float) -> None:
        self._pointer = ctypes.c_void_p()
        c.call("sampler_create", model._open, _sampling(settings), ctypes.byref(self._pointer))
        self._n = model.info.vocab_size

    def sample(self, logits: "numpy.ndarray") -> int:
        """The next token by logits [vocab_size]."""
        numpy = _numpy()
        row = numpy.ascontiguousarray(logits, dtype=numpy.float32)
        if row.shape != (self._n,):
            raise c.UsageError(f"logits have the shape {row.shape}, expected ({self._n},)")
        token = ctypes.c_int32()
        c.call("sampler_sample", self._open, row.ctypes.data_as(c.Floats), ctypes.byref(token))
        return token.value

    def accept(self, tokens: Sequence[int]) -> None:
        """Tells the penalty about tokens that were not sampled."""
        c.call("sampler_accept", self._open, _ids(tokens), len(tokens))


def _sampling(settings: Mapping[str, float]) -> c.SamplerOptions:
    """Sampler options of keyword arguments; raises TypeError for a name that is none."""
    made = c.options("sampler", c.SamplerOptions)
    for name, value in settings.items():
        if name == "size" or not hasattr(made, name):
            raise TypeError(f"unknown setting '{name}'")
        setattr(made, name, value)
    return made


def _generating(max_tokens: int, stop: Union[str, Sequence[str]], ignore_end: bool,
                settings: Mapping[str, float]) -> c.GenerateOptions:
    made = c.options("generate", c.GenerateOptions)
    stops = [stop] if isinstance(stop, str) else list(stop)
    made.sampler = ctypes.pointer(_sampling(settings))
    made.max_tokens = max_tokens
    made.ignore_end = int(ignore_end)
    made.stop = (ctypes.c_char_p * len(stops))(*(s.encode() for s in stops))
    made.n_stop = len(stops)
    return made


class Session(_Handle):
    """One sequence of tokens with its KV cache."""

    _kind = "session"

    def __init__(self, model: "Model", kv: str = "f16", n_ctx: int = 0, n_ubatch: int = 0) -> None:
        self.model = model
        self._pointer = ctypes.c_void_p()
        made = c.options("session", c.SessionOptions)
        made.kv, made.n_ctx, made.n_ubatch = kv.encode(), n_ctx, n_ubatch
        with model._computing:
            c.call("session_create", model._open, made, ctypes.byref(self._pointer))

    def _call(self, name: str, *arguments: Any) -> None:
        with self.model._computing:
            c.call(name, self._open, *arguments)

    @property
    def n_past(self) -> int:
        """Tokens that the session holds."""
        return c.lib.ridge_session_n_past(self._open)

    @property
    def n_ctx(self) -> int:
        """Tokens that it can hold."""
        return c.lib.ridge_session_n_ctx(self._open)

    @property
    def kv_info(self) -> dict[str, float]:
        """Bits a value of K and V, bytes a token, bytes of the cache."""
        info = c.KvInfo(size=ctypes.sizeof(c.KvInfo))
        self._call("session_kv_info", info)
        return {field[0]: getattr(info, field[0]) for field in info._fields_[1:]}

    def _row(self, name: str, *arguments) -> "numpy.ndarray":
        numpy, row = _numpy(), c.Floats()
        self._call(name, *arguments, ctypes.byref(row))
        view = numpy.ctypeslib.as_array(row, (self.model.info.vocab_size,))
        view.flags.writeable = False
        return view

    def prefill(self, prompt: Prompt) -> "numpy.ndarray":
        """Appends a text or tokens; the logits behind them, a view of the session's memory, good until its next call."""
        tokens = self.model._tokens(prompt)
        return self._row("prefill", _ids(tokens), len(tokens))

    def decode(self, token: int) -> "numpy.ndarray":
        """Appends a token; the logits behind it, as prefill()."""
        return self._row("decode", token)

    def _rows(self, name: str, prompt: Prompt) -> "numpy.ndarray":
        numpy, parts = _numpy(), []

        def take(_user, _first, n_rows, n_cols, rows):
            parts.append(numpy.ctypeslib.as_array(rows, (n_rows, n_cols)).copy())
            return 1

        tokens = self.model._tokens(prompt)
        self._call(name, _ids(tokens), len(tokens), c.RowsCallback(take), None)
        return numpy.concatenate(parts)

    def all_logits(self, prompt: Prompt) -> "numpy.ndarray":
        """As prefill(); the logits of every token, [n_tokens, vocab_size]."""
        return self._rows("prefill_logits", prompt)

    def hidden(self, prompt: Prompt) -> "numpy.ndarray":
        """As prefill(); the hidden state of every token behind the last norm, [n_tokens, d_model]."""
        return self._rows("prefill_hidden", prompt)

    def _read_front(self, tokens: list[int], on_progress: Optional[Callable[[int, int], object]],
                    keep: int) -> c.TokenBuffer:
        """Reads a long prompt in pieces, between which Ctrl-C is heard. What is left has the last `keep` tokens."""
        done, total = 0, len(tokens)
        while total - done > _PIECE + keep:
            self._call("prefill", _ids(tokens[done:done + _PIECE]), _PIECE, None)
            done += _PIECE
            if on_progress:
                on_progress(done, total)
        return _buffer(tokens[done:])

    def generate(self, prompt: Prompt, max_tokens: int = -1, *, stop: Union[str, Sequence[str]] = (),
                 ignore_end: bool = False, on_text: Optional[Callable[[str], object]] = None,
                 on_progress: Optional[Callable[[int, int], object]] = None, **sampling: float) -> Generation:
        """Reads a prompt and generates a text behind it.

        on_text hears of every piece and may return False to stop; on_progress hears of (done, total) tokens of a long
        prompt. Settings of sampling are those of Sampler. Ctrl-C raises KeyboardInterrupt; the session then holds what
        was read and generated.
        """
        wanted = _generating(max_tokens, stop, ignore_end, sampling)
        tokens = self.model._tokens(prompt)
        rest = self._read_front(tokens, on_progress, max(1, wanted.sampler.contents.repeat_last_n))
        pieces, stopped = [], False
        with _Stream(self, rest, wanted) as stream:  # not by a callback, in which Ctrl-C would be lost
            for piece in stream:
                pieces.append(piece)
                stopped = on_text is not None and on_text(piece) is False
                if stopped:
                    break
            return stream.result("".join(pieces), len(tokens), stopped)

    def stream(self, prompt: Prompt, max_tokens: int = -1, *, stop: Union[str, Sequence[str]] = (),
               ignore_end: bool = False, **sampling: float) -> Iterator[str]:
        """The pieces of generate()'s text, each as soon as it is there. Use the session again when they have ended."""
        wanted = _generating(max_tokens, stop, ignore_end, sampling)
        rest = self._read_front(self.model._tokens(prompt), None, max(1, wanted.sampler.contents.repeat_last_n))
        with _Stream(self, rest, wanted) as pieces:
            yield from pieces

    def reset(self) -> None:
        """Forgets all tokens."""
        self._call("session_reset")

    def truncate(self, n: int) -> None:
        """Forgets all but the first n tokens."""
        self._call("session_truncate", n)

    def shift(self, n_keep: int, n_discard: int) -> None:
        """Forgets n_discard tokens after the first n_keep and moves the later ones down. Lossy."""
        self._call("session_shift", n_keep, n_discard)

    def copy_from(self, other: "Session") -> None:
        """Becomes a copy of another session with the same cache options."""
        self._call("session_copy", other._open)

    def save(self, path: Path) -> None:
        """Writes the cache to a file."""
        self._call("session_save", os.fsencode(path))

    def load(self, path: Path) -> None:
        """Takes over a saved cache; what follows is equal bit for bit."""
        self._call("session_load", os.fsencode(path))


class _Stream(_Handle):
    _kind = "stream"

    def __init__(self, session: Session, prompt: c.TokenBuffer, options: c.GenerateOptions) -> None:
        self._pointer, self._computing = ctypes.c_void_p(), session.model._computing
        with self._computing:
            c.call("stream_create", session._open, prompt, options, ctypes.byref(self._pointer))

    def __iter__(self) -> Iterator[str]:
        text, n = ctypes.c_void_p(), ctypes.c_size_t(1)
        while True:
            with self._computing:
                c.call("stream_next", self._open, ctypes.byref(text), ctypes.byref(n))
            if n.value == 0:
                return
            yield ctypes.string_at(text, n.value).decode()

    def result(self, text: str, n_prompt: int, stopped: bool) -> Generation:
        """What was generated so far."""
        made = c.Generation(size=ctypes.sizeof(c.Generation))
        c.call("stream_result", self._open, made)
        return Generation(text=text, tokens=made.tokens[:made.n_tokens],
                          stop="interrupted" if stopped else c.STOPS[made.stop], n_prompt=n_prompt,
                          prefill_seconds=made.prefill_seconds, decode_seconds=made.decode_seconds)


@contextlib.contextmanager
def _ctrl_c_noted() -> Iterator[list[int]]:
    """Ctrl-C is only noted meanwhile, and raised at the end: an exception that begins in a callback would be lost."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals come to the main thread
        return
    before = signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


class Model(_Handle):
    """A model: a GGUF file, a Hugging Face directory, or "synth:SHAPE".

    kv is the cache format of its sessions as `ridge run --kv-quant` takes it ("f16", "rotor-3",
    "q8_0/rotor-3:window=32"), device "cpu" or "cuda[:N]", threads 0 for one a processor, n_ctx 0 for the context that
    the model was trained for. On a GPU n_cpu_moe keeps the experts of the first so many layers in host memory, and
    moe_device_gib those of as many more as leave at most so many GiB of experts on it. moe_cache_gib keeps so many GiB of
    them, those that are chosen most often, on the GPU as well. Threads may share a model: each needs a session of its
    own, and calls wait for one another.
    """

    _kind = "model"

    def __init__(self, path: Path, kv: str = "f16", *, device: str = "cpu", threads: int = 0, n_ctx: int = 0,
                 isa: Optional[str] = None, n_cpu_moe: int = 0, moe_device_gib: float = 0,
                 moe_cache_gib: float = 0) -> None:
        self.kv, self.n_ctx = kv, n_ctx
        self._session: Optional[Session] = None
        self._computing = threading.RLock()  # one call at a time; callbacks may call again
        self._pointer = ctypes.c_void_p()
        made = c.options("load", c.LoadOptions)
        made.device, made.isa, made.n_threads = device.encode(), c.text_or_null(isa), threads
        made.n_cpu_moe, made.moe_device_gib, made.moe_cache_gib = n_cpu_moe, moe_device_gib, moe_cache_gib
        c.call("model_load", os.fsencode(path), made, ctypes.byref(self._pointer))
        info = c.ModelInfo(size=ctypes.sizeof(c.ModelInfo))
        c.call("model_get_info", self._open, info)
        values: dict[str, Any] = {field[0]: getattr(info, field[0]) for field in info._fields_[1:]}
        for name, value in values.items():
            values[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        values["has_tokenizer"] = bool(values["has_tokenizer"])
        values["has_chat_template"] = bool(values["has_chat_template"])
        self.info = ModelInfo(**values)

    def close(self) -> None:
        if self._session:
            self._session.close()
        super().close()

    def session(self, kv: Optional[str] = None, n_ctx: Optional[int] = None, n_ubatch: int = 0) -> Session:
        """A session of its own; kv and n_ctx are the model's where they are not given."""
        return Session(self, self.kv if kv is None else kv, self.n_ctx if n_ctx is None else n_ctx, n_ubatch)

    def _own_session(self) -> Session:
        """The session of the methods below, empty."""
        if self._session is None:
            self._session = self.session()
        self._session.reset()
        return self._session

    def _tokens(self, prompt: Prompt) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text. With parse_special, names of control tokens become these tokens.

        >>> model.detokenize(model.tokenize("Once upon a time"))
        'Once upon a time'
        """
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 16))()
        buffer = c.TokenBuffer(ctypes.cast(ids, c.Tokens), len(ids), 0)
        flags = c.ADD_SPECIAL * add_special + c.PARSE_SPECIAL * parse_special
        c.call("tokenize", self._open, data, len(data), flags, buffer)
        return ids[:buffer.n]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        buffer, ids = c.Text(None, 0, 0), _ids(tokens)
        flags = c.PARSE_SPECIAL * special
        c.call("detokenize", self._open, ids, len(tokens), flags, buffer)
        data = ctypes.create_string_buffer(buffer.n + 1)
        buffer.data, buffer.capacity = ctypes.addressof(data), buffer.n
        c.call("detokenize", self._open, ids, len(tokens), flags, buffer)
        return data.raw[:buffer.n].decode(errors="replace")

    def is_end(self, token: int) -> bool:
        """Whether the token ends a text."""
        return c.lib.ridge_is_end(self._open, token) == 1

    def generate(self, prompt: Prompt, max_tokens: int = -1, **options: Any) -> Generation:
        """As Session.generate(), in a session that begins empty."""
        return self._own_session().generate(prompt, max_tokens, **options)

    def stream(self, prompt: Prompt, max_tokens: int = -1, **options: Any) -> Iterator[str]:
        """As Session.stream(), in a session that begins empty.

        >>> "".join(model.stream("Once upon a time", 8, temperature=0))
        ', there was a little girl'
        """
        return self._own_session().stream(prompt, max_tokens, **options)

    def chat_prompt(self, messages: Sequence[ChatMessage], *, tools: Optional[Sequence[Any]] = None,
                    variables: Optional[Mapping[str, Any]] = None, chat_template: Optional[str] = None) -> list[int]:
        """Tokens of a conversation by the model's chat template, or by a named one."""
        made = c.options("chat", c.ChatOptions)
        made.tools = None if tools is None else json.dumps(tools).encode()
        made.variables = None if variables is None else json.dumps(variables).encode()
        made.chat_template = c.text_or_null(chat_template)
        said = json.dumps(list(messages)).encode()
        buffer = c.TokenBuffer()
        c.call("chat_prompt", self._open, said, made, None, buffer)
        ids = (ctypes.c_int32 * max(1, buffer.n))()
        buffer.data, buffer.capacity = ctypes.cast(ids, c.Tokens), buffer.n
        c.call("chat_prompt", self._open, said, made, None, buffer)
        return ids[:buffer.n]

    def chat(self, messages: Sequence[ChatMessage], max_tokens: int = -1, *, tools: Optional[Sequence[Any]] = None,
             variables: Optional[Mapping[str, Any]] = None, chat_template: Optional[str] = None,
             **options: Any) -> Generation:
        """The answer to a conversation in OpenAI's form: [{"role": "user", "content": "Hello"}]. Options as generate()."""
        tokens = self.chat_prompt(messages, tools=tools, variables=variables, chat_template=chat_template)
        if not self.info.has_chat_template and chat_template is None:  # "User: ..." lines: the next one is not the answer
            options.setdefault("stop", ["\nUser:", "\nAssistant:"])
        return self.generate(tokens, max_tokens, **options)

    def logits(self, prompt: Prompt) -> "numpy.ndarray":
        """The logits behind a text, a view of the model's memory, good until its next call.

        >>> model.logits("Once upon a time").shape == (model.info.vocab_size,)
        True
        """
        return self._own_session().prefill(prompt)

    def embed(self, text: Prompt, pooling: str = "mean") -> "numpy.ndarray":
        """An embedding [d_model] of unit length: the mean of the hidden states of all tokens, or the last one's."""
        if pooling not in ("mean", "last"):
            raise c.UsageError(f"pooling '{pooling}' is not mean or last")
        rows = self._own_session().hidden(text)
        row = rows.mean(axis=0) if pooling == "mean" else rows[-1]
        return row / max(float((row * row).sum()) ** 0.5, 1e-30)

    def kld(self, text: str, formats: Union[str, Sequence[str]], *, n_ctx: int = 512, max_chunks: int = 0,
            on_progress: Optional[Callable[[int, int], object]] = None) -> list[Kld]:
        """Compares cache formats with f16 on a text, as `ridge eval kld` does: divergence and perplexity of each.

        on_progress hears of (done, total) tokens and may return False to stop.
        """
        names = formats.split(",") if isinstance(formats, str) else list(formats)
        raised: list[BaseException] = []
        made = c.options("kld", c.KldOptions)
        made.n_ctx, made.max_chunks = n_ctx, max_chunks
        found = (c.Kld * len(names))()
        with _ctrl_c_noted() as noted:
            def step(_user, done, total):
                try:
                    return 0 if noted or (on_progress is not None and on_progress(done, total) is False) else 1
                except BaseException as error:
                    raised.append(error)
                    return 0

            made.on_progress = c.ProgressCallback(step)
            try:
                with self._computing:
                    c.call("measure_kld", self._open, text.encode(), ",".join(names).encode(), made, found, len(names))
            except c.StoppedError:
                if raised:
                    raise raised[0] from None
                if not noted:
                    raise
        return [Kld(name, *(getattr(one, field) for field, _ in one._fields_)) for name, one in zip(names, found)]
