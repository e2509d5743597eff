"""Read the tensors of a module that torch.save pickled whole, without running any code that the file names.

Python's unpickler runs what a pickle names only where it gets it from ``find_class``. The one here gives an object
without any code for every name but those of containers and tensors, and notes of these where their numbers are.
"""

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from osrerank._optional import require

HEADERS = 3
"""Pickles before the content in a file of torch.save before 1.6: its mark, the protocol, the machine."""
COUNT = struct.Struct("<q")
TYPES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""torch's types of number by the names of its storages; others are refused."""


class Inert:
    """Stands for whatever a pickle names: it keeps its state, and does nothing."""

    state: object = None

    def __init__(self, *_: object) -> None:
        """Take what the real one is made of, and leave it."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, *_: object) -> None:
        """Take an entry of what stands for a container, and leave it."""

    extend = __setitem__ = append


class Storage(NamedTuple):
    """Numbers in a file, by torch's name of their type."""

    key: str
    kind: str


class Numbers(NamedTuple):
    """Where a tensor's numbers are."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def read_whole(file: Path) -> object:
    """Return what a file of torch.save has: containers and tensors, and `Inert` in place of all else.

    Raises:
        Exception: of whatever kind, where the file is damaged or of another form.
    """
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            inside = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "data.pkl")
            with archive.open(inside) as opened:
                content = _Unpickler(opened).load()
            folder = inside.removesuffix("data.pkl")
            return _with_tensors(content, lambda storage: archive.read(f"{folder}data/{storage.key}"))
    with file.open("rb") as opened:
        for _ in range(HEADERS):
            _Unpickler(opened).load()
        unpickler = _Unpickler(opened)
        content = unpickler.load()
        keys = _Unpickler(opened).load()
        stored = {key: _stored(opened, unpickler.kinds[key]) for key in keys}
    return _with_tensors(content, lambda storage: stored[storage.key])


def tensors_of(module: Inert) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a ``torch.nn.Module``, by their names in its state dict."""
    state = module.state if isinstance(module.state, Mapping) else {}
    for group in ("_parameters", "_buffers"):
        yield from dict(state.get(group, {})).items()
    for name, child in dict(state.get("_modules", {})).items():
        if isinstance(child, Inert):
            yield from ((f"{name}.{inner}", tensor) for inner, tensor in tensors_of(child))


class _Unpickler(pickle.Unpickler):
    """Makes containers, `Numbers` and `Inert`, and nothing else."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.kinds: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name.endswith("Storage"):
            return TYPES[name]
        known = {  # new ones each time, because a pickle may set attributes of a function that it is given
            "collections.OrderedDict": OrderedDict,
            "torch.Size": tuple,
            "torch._utils._rebuild_parameter": lambda data, *_: data,
            "torch._utils._rebuild_tensor": lambda *parts: Numbers(*parts[:4]),
            "torch._utils._rebuild_tensor_v2": lambda *parts: Numbers(*parts[:4]),
        }
        return known.get(f"{module}.{name}", Inert)

    def persistent_load(self, saved: Any) -> Any:
        if saved[0] == "module":  # with its source, which is not read
            return saved[1]
        _, kind, key, *_ = saved
        if kind not in TYPES.values():
            raise pickle.UnpicklingError("a storage has no type of number")
        self.kinds[key] = kind
        return Storage(key, kind)


def _stored(opened: IO[bytes], kind: str) -> bytes:
    torch: Any = require("torch", extra="torch")
    (count,) = COUNT.unpack(opened.read(COUNT.size))
    return opened.read(count * getattr(torch, kind).itemsize)


def _with_tensors(content: object, stored: Any) -> object:
    """Return the content with tensors in place of what notes where they are."""
    torch: Any = require("torch", extra="torch")
    if isinstance(content, Numbers):
        numbers = torch.frombuffer(bytearray(stored(content.storage)), dtype=getattr(torch, content.storage.kind))
        return numbers.as_strided(content.size, content.stride, content.offset).clone()
    if isinstance(content, Mapping):
        return {key: _with_tensors(value, stored) for key, value in content.items()}
    if isinstance(content, Inert):
        content.state = _with_tensors(content.state, stored)
    return content
