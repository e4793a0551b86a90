"""Ridge: run language models with compressed weights and compressed KV caches.

>>> import ridge
>>> with ridge.Model(MODEL, kv="f16") as model:
...     result = model.generate("Once upon a time", max_tokens=8, temperature=0)
>>> result.text
', there was a little girl'
>>> result.stop
'token limit'
"""

from ._library import (BadFileError, NoDeviceError, NoMemoryError, RidgeError, StoppedError, UsageError, lib as _lib)
from ._batch import Batch
from ._model import ChatMessage, Generation, Kld, Model, ModelInfo, Sampler, Session

__version__ = _lib.ridge_version().decode()
__all__ = ["BadFileError", "Batch", "ChatMessage", "Generation", "Kld", "Model", "ModelInfo", "NoDeviceError", "NoMemoryError",
           "RidgeError", "Sampler", "Session", "StoppedError", "UsageError"]
