"""Read the tensors of a module that torch.save pickled as a whole object, without running code from the file.

An unpickler can only call what its ``find_class`` returns. Ours returns containers and functions that rebuild tensors.
For any other name, it returns `Placeholder`, which does nothing. We need this unpickler because torch's safe unpickler
(``weights_only=True``) refuses classes of modules in files that torch before 1.6 wrote, such as the models of Birch.
"""

import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osrerank._optional import require


class Placeholder:
    """A replacement for any class or function in a pickle. It stores its state, and does nothing."""

    state: object = None
    dump_patches = False  # `torch.load` reads this attribute of a module's class

    def __init__(self, *_: object) -> None:
        """Ignore the arguments of the real class."""

    def __setstate__(self, state: object) -> None:
        self.state = state

    def append(self, *_: object) -> None:
        """Ignore an entry, if the real class is a container."""

    extend = __setitem__ = append


class TensorsOnlyPickle:
    """A replacement for the module ``pickle`` in `torch.load`. It creates only containers, tensors and placeholders."""

    class Unpickler(pickle.Unpickler):
        """The unpickler that `torch.load` subclasses."""

        def find_class(self, module: str, name: str) -> Any:
            """Return a harmless replacement for a class or function that the pickle names."""
            rebuild = require("torch", extra="torch")._utils._rebuild_tensor  # noqa: SLF001
            replacements = {  # new functions in each call, because a pickle can set their attributes
                "collections.OrderedDict": OrderedDict,
                "torch.Size": tuple,
                "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
                "torch._utils._rebuild_tensor": lambda *arguments: rebuild(*arguments[:4]),
                "torch._utils._rebuild_tensor_v2": lambda *arguments: rebuild(*arguments[:4]),
            }
            return replacements.get(f"{module}.{name}", Placeholder)

    @classmethod
    def load(cls, file: Any, **options: Any) -> Any:
        """Return the next object of a pickle file."""
        return cls.Unpickler(file, **options).load()


def load_with_placeholders(file: Path) -> object:
    """Load a file that torch.save wrote, with a `Placeholder` for everything except containers and tensors.

    Raises:
        Exception: the file is damaged or has another format. Unpickling can raise any exception.
    """
    torch: Any = require("torch", extra="torch")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "source code of class", category=torch.serialization.SourceChangeWarning)
        return torch.load(file, map_location="cpu", weights_only=False, pickle_module=TensorsOnlyPickle)


def module_tensors(module: Placeholder) -> Iterator[tuple[str, Any]]:
    """Yield the parameters and buffers of a pickled ``torch.nn.Module``, with names such as ``encoder.norm.weight``."""
    state = module.state if isinstance(module.state, Mapping) else {}
    for group in ("_parameters", "_buffers"):
        yield from dict(state.get(group, {})).items()
    for child_name, child in dict(state.get("_modules", {})).items():
        if isinstance(child, Placeholder):
            for name, tensor in module_tensors(child):
                yield f"{child_name}.{name}", tensor
