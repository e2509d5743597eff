"""A cross-encoder's directory as sentence-transformers 5.4 and later save it: ``modules.json`` and a folder a module.

The modules are a Transformer, whose files are the directory's own, and after it Pooling, Dense, LayerNorm, Normalize
and Dropout; or a Transformer alone, which is then a transformers classifier. Nothing here imports a class that a file
names: what is not known is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import ModelLoadError
from osrerank.scoring.modular.head import Activation, Head, Mode, Step

MODULES_FILE = "modules.json"
MODEL_FILE = "config_sentence_transformers.json"
TRANSFORMER_FILE = "sentence_bert_config.json"
TOKENIZER_SETTINGS_FILE = "tokenizer_config.json"
MODULE_FILE, MODULE_WEIGHTS_FILE = "config.json", "model.safetensors"
LIBRARY = "sentence_transformers."
FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert")
"""Encoders that may stand before a head of modules, by ``model_type``."""
ENCODERS = "feature-extraction"
CLASSIFIERS = "sequence-classification"
MODES: Mapping[str, Mode] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "lasttoken"}
OLDER_MODES: Mapping[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": "",
    "GELU": "gelu",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
    "Tanh": "tanh",
}
"""Of a Dense, by the name of their class in torch."""
OUTPUT_ACTIVATIONS = ("Identity", "Sigmoid")
"""Of the whole model: the logit is the same before either, and a probability is its logistic function."""
VECTOR, SCORES = "sentence_embedding", "scores"
"""What a module reads or writes: a vector of each sequence, or the logits."""

Read = Callable[..., Any]
"""Reads a JSON file: ``read(file, kind=dict)``."""
Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """What the files say.

    Attributes:
        head: what follows the encoder; None where the model is a transformers classifier.
        labels: outputs of the head; 0 for a classifier, whose config has them.
        max_tokens: most tokens of a sequence; None where the files set no limit of their own.
        query_prefix: stands before every query.
        descriptions: the JSON files that it was read from, and its modules' weights, relative to the directory.
        weights: the modules' safetensors, relative to the directory.
    """

    head: Head | None
    labels: int
    max_tokens: int | None
    query_prefix: str
    descriptions: tuple[str, ...]
    weights: tuple[str, ...]


def read_cross_encoder(directory: Path, read: Read) -> CrossEncoder | None:
    """Return what a directory's files say of a cross-encoder; None where sentence-transformers did not save one.

    Args:
        directory: the model's.
        read: how a JSON file is read.

    Raises:
        ModelLoadError: a file cannot be read, or asks for what is not known; the message names the field.
    """
    if not _is_cross_encoder(directory, read):
        return None
    model: Content = read(directory / MODEL_FILE)
    _check_output(directory / MODEL_FILE, model)
    modules = _modules(directory / MODULES_FILE, read)
    task = _transformer_task(directory, read)
    if (task == CLASSIFIERS) != (len(modules) == 1):
        reason = f"transformer_task is {task!r}, and {MODULES_FILE} has {len(modules)} modules"
        raise _refused(directory / TRANSFORMER_FILE, f"{reason}; a classifier stands alone, and an encoder does not")
    made = None if task == CLASSIFIERS else _Heads(directory, read, modules[1:])
    prefix = _query_prefix(directory / MODEL_FILE, model)
    if made and prefix and not made.includes_prompt:
        reason = "include_prompt is false, and the model has a default prompt; only pooling of all tokens is supported"
        raise _refused(made.pooling_file, reason)
    names = (MODULES_FILE, MODEL_FILE, TRANSFORMER_FILE, TOKENIZER_SETTINGS_FILE)
    return CrossEncoder(
        made.head if made else None,
        made.labels if made else 0,
        _most_tokens(directory, read),
        prefix,
        (*(name for name in names if (directory / name).exists()), *(made.descriptions if made else ())),
        made.weights if made else (),
    )


def has_own_head(directory: Path, read: Read) -> bool:
    """Return whether a cross-encoder's head is in modules behind its encoder; the modules' files need not be there.

    Raises:
        ModelLoadError: as `read_cross_encoder`.
    """
    return _is_cross_encoder(directory, read) and len(read(directory / MODULES_FILE, kind=list)) > 1


def _is_cross_encoder(directory: Path, read: Read) -> bool:
    if not (directory / MODULES_FILE).exists() or not (directory / MODEL_FILE).exists():
        return False
    return bool(read(directory / MODEL_FILE).get("model_type") == "CrossEncoder")


class _Heads:
    """Reads the modules behind the transformer, one after the other.

    Args:
        directory: the model's.
        read: how a JSON file is read.
        modules: kind and folder of each.
    """

    def __init__(self, directory: Path, read: Read, modules: Sequence[tuple[str, str]]) -> None:
        self._directory = directory
        self._read = read
        self.includes_prompt = True
        self.pooling_file = directory
        self.labels = 0
        self.descriptions: tuple[str, ...] = ()
        self.weights: tuple[str, ...] = ()
        pooling: tuple[Mode, ...] = ()
        steps: list[Step] = []
        for place, (kind, folder) in enumerate(modules):
            is_last = place == len(modules) - 1
            if (kind == "Pooling") != (place == 0):
                reason = f"module {place + 1} is a {kind}; behind the Transformer stands one Pooling, then Dense"
                raise _refused(directory / MODULES_FILE, f"{reason}, LayerNorm, Normalize and Dropout")
            if kind == "Pooling":
                pooling = self._pooling(folder)
            elif kind == "Dense":
                steps.append(self._dense(folder, is_last=is_last))
            elif kind == "LayerNorm":
                steps.append(Step("norm", self._weighted(folder, "norm")))
            elif kind == "Normalize":
                steps.append(Step("unit"))
            if is_last and kind != "Dense":
                raise _refused(directory / MODULES_FILE, f"the last module is a {kind}; a Dense must give the scores")
        self.head = Head(tuple(steps), pooling)

    def _pooling(self, folder: str) -> tuple[Mode, ...]:
        file, content = self._described(folder)
        self.pooling_file, self.includes_prompt = file, content.get("include_prompt", True) is not False
        named = content.get("pooling_mode")
        if named is None:
            older = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
            modes, known = older or ["pooling_mode_mean_tokens"], OLDER_MODES
        else:
            modes, known = [named] if isinstance(named, str) else list(named), MODES
        if unknown := next((mode for mode in modes if mode not in known), None):
            raise _refused(file, f"pooling_mode is {unknown!r}; it must be one of {', '.join(MODES)}")
        return tuple(known[mode] for mode in modes)

    def _dense(self, folder: str, *, is_last: bool) -> Step:
        file, content = self._described(folder)
        reads = content.get("module_input_name", VECTOR)
        writes = content.get("module_output_name") or reads
        wanted = SCORES if is_last else VECTOR
        for name, value, known in (("module_input_name", reads, VECTOR), ("module_output_name", writes, wanted)):
            if value != known:
                raise _refused(file, f"{name} is {value!r}; here it must be {known!r}")
        named = str(content.get("activation_function", "torch.nn.modules.activation.Tanh"))
        if not named.startswith("torch.") or named.rpartition(".")[2] not in ACTIVATIONS:
            known = f"it must be one of torch's {', '.join(ACTIVATIONS)}"
            raise _refused(file, f"activation_function is {named!r}; {known}, and osrerank runs no other code")
        self.labels = int(content.get("out_features", 0))
        activation, has_bias = ACTIVATIONS[named.rpartition(".")[2]], content.get("bias", True) is not False
        return Step("dense", self._weighted(folder, "linear"), activation, has_bias=has_bias)

    def _weighted(self, folder: str, part: str) -> str:
        """Return the name of a module's weights, once its file is known to be there."""
        self._described(folder)
        file = self._directory / folder / MODULE_WEIGHTS_FILE
        if not file.exists():
            fix = "save the model with safe_serialization=True, for osrerank reads no pickled weights here"
            raise ModelLoadError(f"{file} is missing; {fix}", path=str(file))
        self.weights = (*self.weights, f"{folder}/{MODULE_WEIGHTS_FILE}")
        return f"{folder}.{part}"

    def _described(self, folder: str) -> tuple[Path, Content]:
        file = self._directory / folder / MODULE_FILE
        self.descriptions = tuple(dict.fromkeys((*self.descriptions, f"{folder}/{MODULE_FILE}")))
        return file, self._read(file)


def _modules(file: Path, read: Read) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module."""
    found = []
    for place, module in enumerate(read(file, kind=list)):
        try:
            named, folder = str(module["type"]), str(module["path"])
        except (KeyError, TypeError) as error:
            raise _refused(file, f"module {place} has no type and path: {error!r}") from None
        kind = named.rpartition(".")[2]
        known = ("Transformer",) if place == 0 else ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
        if not named.startswith(LIBRARY) or kind not in known:
            reason = (
                f"module {place} has the type {named}; there it must be sentence-transformers' {' or '.join(known)}"
            )
            raise _refused(file, f"{reason}, and osrerank runs no other code")
        if (place == 0 and folder) or Path(folder).name != folder:
            reason = f"module {place} has the path {folder!r}; a Transformer's is empty, another's names a folder here"
            raise _refused(file, reason)
        found.append((kind, folder))
    if not found:
        raise _refused(file, "it lists no module")
    return found


def _transformer_task(directory: Path, read: Read) -> str:
    """Return what the transformer computes; refuse settings that change its input or output."""
    file = directory / TRANSFORMER_FILE
    content: Content = read(file) if file.exists() else {}
    task = str(content.get("transformer_task", ENCODERS))
    if task not in (ENCODERS, CLASSIFIERS):
        reason = f"transformer_task is {task!r}; it must be {ENCODERS} or {CLASSIFIERS}"
        raise _refused(file, f"{reason}: run other models behind a rerank server (--backend http)")
    if content.get("do_lower_case"):
        raise _refused(file, "do_lower_case is true; put it into tokenizer.json, as a normaliser")
    if unknown := set(_processing(content)) - {"text"} or set(_processing(content).get("text", {})) - {"max_length"}:
        raise _refused(file, f"processing_kwargs has {min(unknown)}; only max_length under text is supported")
    output = "last_hidden_state" if task == ENCODERS else "logits"
    text = (content.get("modality_config") or {}).get("text", {})
    taken = text.get("method_output_name", output)
    if text.get("method", "forward") != "forward" or taken not in (output, [output]):
        raise _refused(file, f"modality_config takes {taken!r} of the model; it must be {output} of its forward")
    if task == ENCODERS:
        _check_family(directory / MODULE_FILE, read(directory / MODULE_FILE))
    return task


def _check_family(file: Path, config: Content) -> None:
    if "auto_map" in config:
        raise _refused(file, "auto_map asks for the model's own Python code, which osrerank never runs")
    if config.get("model_type") not in FAMILIES:
        reason = f"model_type is {config.get('model_type')!r}; before a head of modules it must be one of"
        raise _refused(file, f"{reason} {', '.join(FAMILIES)}")


def _processing(content: Content) -> Content:
    found: Content = content.get("processing_kwargs") or {}
    return found


def _check_output(file: Path, model: Content) -> None:
    named = str(model.get("activation_fn") or "torch.nn.modules.linear.Identity")
    if not named.startswith("torch.") or named.rpartition(".")[2] not in OUTPUT_ACTIVATIONS:
        known = " or ".join(OUTPUT_ACTIVATIONS)
        raise _refused(file, f"activation_fn is {named!r}; it must be torch's {known}, so that scores are logits")


def _query_prefix(file: Path, model: Content) -> str:
    """Return the default prompt, which stands before the first text of a pair."""
    name, prompts = model.get("default_prompt_name"), model.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise _refused(file, f"default_prompt_name is {name!r}, and prompts has no such name")
    return str(prompts[name] or "")


def _most_tokens(directory: Path, read: Read) -> int | None:
    """Return the least of the limits in the files, as the library applies them."""
    transformer: Content = read(directory / TRANSFORMER_FILE) if (directory / TRANSFORMER_FILE).exists() else {}
    tokenizer = directory / TOKENIZER_SETTINGS_FILE
    limits = [
        transformer.get("max_seq_length") or (read(tokenizer).get("model_max_length") if tokenizer.exists() else None),
        _processing(transformer).get("text", {}).get("max_length"),
    ]
    return min((int(limit) for limit in limits if limit), default=None)


def _refused(file: Path, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{file}: {reason}", path=str(file))
