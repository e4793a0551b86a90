"""The shared library: its structs and functions (include/ridge/ridge.h), and its errors as exceptions."""

import ctypes
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32,
                    c_uint64, c_void_p)

ABI_VERSION = 1
ADD_SPECIAL, PARSE_SPECIAL = 1, 2
STOPS = ("end token", "stop string", "token limit", "context full", "interrupted")

Tokens = POINTER(c_int32)
Floats = POINTER(c_float)
RowsCallback = CFUNCTYPE(c_int, c_void_p, c_size_t, c_size_t, c_size_t, Floats)
ProgressCallback = CFUNCTYPE(c_int, c_void_p, c_int64, c_int64)


class RidgeError(Exception):
    """What the library refused or could not do, in its own words. The subclass says what kind of trouble it was."""


class UsageError(RidgeError, ValueError):
    """An argument is wrong."""


class BadFileError(RidgeError):
    """A file is missing, malformed, unsafe or unsupported."""


class NoMemoryError(RidgeError, MemoryError):
    """Not enough memory for what was asked."""


class NoDeviceError(RidgeError):
    """A device or driver is missing."""


class StoppedError(RidgeError):
    """A callback asked to stop."""


ERRORS = {2: UsageError, 4: BadFileError, 5: NoMemoryError, 6: NoDeviceError, 130: StoppedError}


class Text(Structure):
    """ridge_text"""
    _fields_ = [("data", c_void_p), ("capacity", c_size_t), ("n", c_size_t)]


class TokenBuffer(Structure):
    """ridge_tokens"""
    _fields_ = [("data", Tokens), ("capacity", c_size_t), ("n", c_size_t)]


class LoadOptions(Structure):
    """ridge_load_options"""
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("isa", c_char_p), ("n_threads", c_int32),
                ("n_cpu_moe", c_int32), ("moe_device_gib", c_double), ("moe_cache_gib", c_double)]


class ModelInfo(Structure):
    """ridge_model_info"""
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("arch", c_char_p), ("weight_format", c_char_p),
                ("device", c_char_p), ("n_layers", c_int32), ("n_heads", c_int32), ("n_kv_heads", c_int32),
                ("head_dim", c_int32), ("d_model", c_int32), ("vocab_size", c_int32), ("n_ctx_train", c_int32),
                ("n_threads", c_int32), ("has_tokenizer", c_int32), ("has_chat_template", c_int32), ("bos", c_int32),
                ("n_params", c_int64), ("weight_bytes", c_int64), ("load_seconds", c_double)]


class ChatOptions(Structure):
    """ridge_chat_options"""
    _fields_ = [("size", c_size_t), ("tools", c_char_p), ("variables", c_char_p), ("chat_template", c_char_p)]


class SessionOptions(Structure):
    """ridge_session_options"""
    _fields_ = [("size", c_size_t), ("kv", c_char_p), ("n_ctx", c_int32), ("n_ubatch", c_int32)]


class BatchRow(Structure):
    """ridge_batch_row"""
    _fields_ = [("sequence", c_int32), ("tokens", Tokens), ("n", c_size_t)]


class KvInfo(Structure):
    """ridge_kv_info"""
    _fields_ = [("size", c_size_t), ("k_bits", c_double), ("v_bits", c_double), ("bytes_per_token", c_int64),
                ("allocated_bytes", c_int64)]


class SamplerOptions(Structure):
    """ridge_sampler_options"""
    _fields_ = [("size", c_size_t), ("temperature", c_float), ("top_k", c_int32), ("top_p", c_float), ("min_p", c_float),
                ("repeat_penalty", c_float), ("repeat_last_n", c_int32), ("seed", c_uint64)]


class GenerateOptions(Structure):
    """ridge_generate_options"""
    _fields_ = [("size", c_size_t), ("sampler", POINTER(SamplerOptions)), ("max_tokens", c_int32),
                ("ignore_end", c_int32), ("stop", POINTER(c_char_p)), ("n_stop", c_size_t)]


class Generation(Structure):
    """ridge_generation"""
    _fields_ = [("size", c_size_t), ("stop", c_int), ("tokens", Tokens), ("n_tokens", c_size_t), ("n_prompt", c_int32),
                ("prefill_seconds", c_double), ("decode_seconds", c_double)]


class Kld(Structure):
    """ridge_kld"""
    _fields_ = [("bits", c_double), ("kld", c_double), ("kld_error", c_double), ("ppl", c_double), ("ppl_base", c_double),
                ("same_top", c_double), ("n_scored", c_int64)]


class KldOptions(Structure):
    """ridge_kld_options"""
    _fields_ = [("size", c_size_t), ("n_ctx", c_int32), ("max_chunks", c_int32), ("on_progress", ProgressCallback),
                ("user", c_void_p)]


# Name behind "ridge_": its arguments. All of these return a status.
CALLS = {
    "model_load": [c_char_p, POINTER(LoadOptions), POINTER(c_void_p)],
    "model_get_info": [c_void_p, POINTER(ModelInfo)],
    "tokenize": [c_void_p, c_char_p, c_size_t, c_int, POINTER(TokenBuffer)],
    "detokenize": [c_void_p, Tokens, c_size_t, c_int, POINTER(Text)],
    "piece": [c_void_p, c_int32, c_int, POINTER(Text)],
    "chat_prompt": [c_void_p, c_char_p, POINTER(ChatOptions), POINTER(Text), POINTER(TokenBuffer)],
    "session_create": [c_void_p, POINTER(SessionOptions), POINTER(c_void_p)],
    "session_kv_info": [c_void_p, POINTER(KvInfo)],
    "prefill": [c_void_p, Tokens, c_size_t, POINTER(Floats)],
    "decode": [c_void_p, c_int32, POINTER(Floats)],
    "prefill_logits": [c_void_p, Tokens, c_size_t, RowsCallback, c_void_p],
    "prefill_hidden": [c_void_p, Tokens, c_size_t, RowsCallback, c_void_p],
    "session_reset": [c_void_p],
    "session_truncate": [c_void_p, c_int32],
    "session_shift": [c_void_p, c_int32, c_int32],
    "session_copy": [c_void_p, c_void_p],
    "session_save": [c_void_p, c_char_p],
    "session_load": [c_void_p, c_char_p],
    "batch_create": [c_void_p, POINTER(SessionOptions), c_int32, POINTER(c_void_p)],
    "batch_step": [c_void_p, POINTER(BatchRow), c_size_t, POINTER(Floats)],
    "batch_truncate": [c_void_p, c_int32, c_int32],
    "sampler_create": [c_void_p, POINTER(SamplerOptions), POINTER(c_void_p)],
    "sampler_sample": [c_void_p, Floats, POINTER(c_int32)],
    "sampler_accept": [c_void_p, Tokens, c_size_t],
    "stream_create": [c_void_p, POINTER(TokenBuffer), POINTER(GenerateOptions), POINTER(c_void_p)],
    "stream_next": [c_void_p, POINTER(c_void_p), POINTER(c_size_t)],
    "stream_result": [c_void_p, POINTER(Generation)],
    "measure_kld": [c_void_p, c_char_p, c_char_p, POINTER(KldOptions), POINTER(Kld), c_size_t],
}


def library_path() -> str:
    """RIDGE_LIBRARY, the library beside this file, or the one of the system."""
    own = pathlib.Path(__file__).with_name("libridge.so")
    return os.environ.get("RIDGE_LIBRARY") or (str(own) if own.exists() else f"libridge.so.{ABI_VERSION}")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(library_path())  # CDLL lets other Python threads run during a call
    for name, arguments in CALLS.items():
        function = getattr(library, "ridge_" + name)
        function.argtypes, function.restype = arguments, c_int
    library.ridge_last_error.restype = library.ridge_version.restype = c_char_p
    library.ridge_abi_version.restype = c_uint32
    for name in ("session_n_past", "session_n_ctx"):
        getattr(library, "ridge_" + name).argtypes = [c_void_p]
    library.ridge_is_end.argtypes = library.ridge_batch_n_past.argtypes = [c_void_p, c_int32]
    for name in ("model", "session", "batch", "sampler", "stream"):
        free = getattr(library, f"ridge_{name}_free")
        free.argtypes, free.restype = [c_void_p], None
    for name in ("load", "chat", "session", "sampler", "generate", "kld"):
        init = getattr(library, f"ridge_{name}_options_init")
        init.argtypes, init.restype = [c_void_p, c_size_t], None
    found = library.ridge_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{library_path()} has version {found} of the interface, this package needs {ABI_VERSION}")
    return library


lib = _load()


def call(name: str, *arguments) -> None:
    """Calls ridge_NAME; raises what it refuses."""
    status = getattr(lib, "ridge_" + name)(*arguments)
    if status != 0:
        raise ERRORS.get(status, RidgeError)(lib.ridge_last_error().decode(errors="replace"))


def options(kind: str, struct):
    """A struct with the defaults of ridge_KIND_options_init."""
    made = struct()
    getattr(lib, f"ridge_{kind}_options_init")(ctypes.byref(made), ctypes.sizeof(made))
    return made


def text_or_null(text):
    return None if text is None else os.fsencode(text)
