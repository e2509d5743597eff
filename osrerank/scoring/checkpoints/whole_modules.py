"""Read the tensors of a module that torch.save pickled whole, without running any code that the file names.

An unpickler runs what a pickle names only where it gets it from ``find_class``. The one here, which `torch.load` reads
with, gives an object without any code for every name but those of containers and tensors. (torch's own for weights
refuses the classes of modules in files of torch before 1.6, such as Birch's.)
"""

import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osrerank._optional import require


class Inert:
    """Stands for whatever a pickle names: it keeps its state, and does nothing."""

    state: object = None
    dump_patches = False

    def __init__(self, *_: object) -> None:
        """Take what the real one is made of, and leave it."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, *_: object) -> None:
        """Take an entry of what stands for a container, and leave it."""

    extend = __setitem__ = append


class OnlyTensors:
    """In place of the module ``pickle``, for `torch.load`: makes containers, tensors and `Inert`, and nothing else."""

    class Unpickler(pickle.Unpickler):
        """The unpickler that `torch.load` adds storages to."""

        def find_class(self, module: str, name: str) -> Any:
            rebuild = require("torch", extra="torch")._utils._rebuild_tensor  # noqa: SLF001
            known = {  # new ones each time, because a pickle may set attributes of a function that it is given
                "collections.OrderedDict": OrderedDict,
                "torch.Size": tuple,
                "torch._utils._rebuild_parameter": lambda data, *_: data,
                "torch._utils._rebuild_tensor": lambda *parts: rebuild(*parts[:4]),
                "torch._utils._rebuild_tensor_v2": lambda *parts: rebuild(*parts[:4]),
            }
            return known.get(f"{module}.{name}", Inert)

    @classmethod
    def load(cls, file: Any, **options: Any) -> Any:
        """Return the next pickle of a file."""
        return cls.Unpickler(file, **options).load()


def read_whole(file: Path) -> object:
    """Return what a file of torch.save has: containers and tensors, and `Inert` in place of all else.

    Raises:
        Exception: of whatever kind, where the file is damaged or of another form.
    """
    torch: Any = require("torch", extra="torch")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "source code of class", category=torch.serialization.SourceChangeWarning)
        return torch.load(file, map_location="cpu", weights_only=False, pickle_module=OnlyTensors)


def tensors_of(module: Inert) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a ``torch.nn.Module``, by their names in its state dict."""
    state = module.state if isinstance(module.state, Mapping) else {}
    for group in ("_parameters", "_buffers"):
        yield from dict(state.get(group, {})).items()
    for name, child in dict(state.get("_modules", {})).items():
        if isinstance(child, Inert):
            yield from ((f"{name}.{inner}", tensor) for inner, tensor in tensors_of(child))
