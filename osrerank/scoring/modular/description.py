"""The files of a model that sentence-transformers saved: ``modules.json``, a folder a module, the transformer's own.

What each kind of model makes of them is in the modules beside this one. Nothing here imports a class that a file names:
what is not known is refused, by file and field.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from osrerank.errors import ModelLoadError
from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.head import Activation, HeadStep, Mode

MODULES_FILE = "modules.json"
MODEL_FILE = "config_sentence_transformers.json"
TRANSFORMER_FILE = "sentence_bert_config.json"
TRANSFORMER_FILES = (TRANSFORMER_FILE, *(f"sentence_{kind}_config.json" for kind in ("roberta", "xlm-roberta")))
"""Where the transformer's settings are; older versions name the file after the family."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SETTINGS_FILE = "tokenizer_config.json"
MODULE_FILE, MODULE_WEIGHTS_FILE = "config.json", "model.safetensors"
LIBRARY = "sentence_transformers."
DRAWN = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "modernbert")
"""Encoders whose graphs `osrerank.export` builds itself, by ``model_type``."""
FAMILIES = (*DRAWN, "distilbert", "electra", "albert", "deberta-v2")
"""Encoders that may stand before other modules."""
STATIC = "static-embedding"
"""The ``model_type`` that osrerank gives to a StaticEmbedding, a table of tokens' vectors, which has no config."""
KINDS = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
"""Modules that may follow the transformer of a bi-encoder or a cross-encoder."""
WEIGHTED = ("Dense", "LayerNorm")
"""Modules with weights; graphs that other programs exported do not contain these weights."""
ENCODERS = "feature-extraction"
CLASSIFIERS = "sequence-classification"
MODES: Mapping[str, Mode] = {mode: mode for mode in get_args(Mode)}
OLDER_MODES: Mapping[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
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
VECTOR = "sentence_embedding"
"""What modules read and write: a vector of each sequence."""
TOKENS = "token_embeddings"
"""What they read and write before pooling, or without any: a vector of each token."""
LENGTHS = ("query_length", "document_length")
KEYS: Mapping[str, Collection[str]] = {
    "Transformer": (
        *("transformer_task", "modality_config", "module_output_name", "processing_kwargs", "unpad_inputs"),
        *("max_seq_length", "do_lower_case", *LENGTHS),
    ),
    "Pooling": (
        *("embedding_dimension", "word_embedding_dimension", "pooling_mode", "include_prompt"),
        *(*OLDER_MODES, "pooling_mode_mean_sqrt_len_tokens"),
    ),
    "Dense": (
        *("in_features", "out_features", "bias", "activation_function", "module_input_name", "module_output_name"),
    ),
    "LayerNorm": ("dimension",),
    "Normalize": ("module_input_name", "module_output_name"),
}
"""The fields of a module's file that are read, or that change no result."""

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The most tokens of a sequence, of a query and of a document; None where the files set no limit of their own."""

    sequence: int | None
    query: int | None = None
    document: int | None = None


class Modules:
    """Reads the modules behind a transformer, and remembers which files they need.

    Args:
        directory: the model's.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.descriptions: tuple[str, ...] = ()
        self.weights: tuple[str, ...] = ()

    def pooling(self, folder: str) -> tuple[Mode, ...]:
        """Return the pooling modes; if there are several, a sequence's vector is their results concatenated."""
        file, content = self._described("Pooling", folder)
        named = content.get("pooling_mode")
        if named is None:
            older = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
            modes, known = older or ["pooling_mode_mean_tokens"], OLDER_MODES
        else:
            modes, known = [named] if isinstance(named, str) else list(named), MODES
        if unknown := next((mode for mode in modes if mode not in known), None):
            raise refused(file, f"pooling_mode is {unknown!r}; it must be one of {', '.join(MODES)}")
        return tuple(known[mode] for mode in modes)

    def includes_prompt(self, folder: str) -> bool:
        """Return whether the tokens of a prompt count in pooling."""
        return self._described("Pooling", folder)[1].get("include_prompt", True) is not False

    def dense(self, folder: str, reads: str = VECTOR, writes: str = VECTOR) -> tuple[HeadStep, int]:
        """Return the step and how many numbers it gives.

        Args:
            folder: the module's.
            reads: what it must read.
            writes: what it must write.
        """
        file, content = self._described("Dense", folder)
        source = content.get("module_input_name", VECTOR)
        target = content.get("module_output_name") or source
        for name, value, wanted in (("module_input_name", source, reads), ("module_output_name", target, writes)):
            if value != wanted:
                raise refused(file, f"{name} is {value!r}; here it must be {wanted!r}")
        named = str(content.get("activation_function", "torch.nn.modules.activation.Tanh"))
        if not named.startswith("torch.") or named.rpartition(".")[2] not in ACTIVATIONS:
            known = f"it must be one of torch's {', '.join(ACTIVATIONS)}"
            raise refused(file, f"activation_function is {named!r}; {known}, and osrerank runs no other code")
        activation, has_bias = ACTIVATIONS[named.rpartition(".")[2]], content.get("bias", True) is not False
        step = HeadStep("dense", self._weighted(folder, "linear"), activation, has_bias=has_bias)
        return step, int(content.get("out_features", 0))

    def norm(self, folder: str) -> HeadStep:
        """Return a LayerNorm."""
        self._described("LayerNorm", folder)
        return HeadStep("norm", self._weighted(folder, "norm"))

    def unit(self, folder: str, reads: str = VECTOR) -> HeadStep:
        """Return what makes the norm 1; only later versions of the library write its file."""
        if (self._directory / folder / MODULE_FILE).exists():
            file, content = self._described("Normalize", folder)
            for name in KEYS["Normalize"]:
                if content.get(name) not in (None, reads):
                    raise refused(file, f"{name} is {content[name]!r}; here it must be {reads!r}")
        return HeadStep("unit")

    def _weighted(self, folder: str, part: str) -> str:
        """Return the name of a module's weights, once its file is known to be there."""
        file = self._directory / folder / MODULE_WEIGHTS_FILE
        if not file.exists():
            fix = "save the model with safe_serialization=True, for osrerank reads no pickled weights here"
            raise ModelLoadError(f"{file} is missing; {fix}", path=str(file))
        self.weights = (*self.weights, f"{folder}/{MODULE_WEIGHTS_FILE}")
        return f"{folder}.{part}"

    def _described(self, kind: str, folder: str) -> tuple[Path, Content]:
        file = self._directory / folder / MODULE_FILE
        self.descriptions = tuple(dict.fromkeys((*self.descriptions, f"{folder}/{MODULE_FILE}")))
        content: Content = read_json(file)
        refuse_unknown(file, content, KEYS[kind], kind)
        return file, content


def model_type(directory: Path) -> str | None:
    """Return the class that sentence-transformers loads a directory with; None where it did not save one.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    if not (directory / MODULES_FILE).exists():
        return None
    named = read_json(directory / MODEL_FILE).get("model_type") if (directory / MODEL_FILE).exists() else None
    return str(named or "SentenceTransformer")


def has_weighted_modules(directory: Path) -> bool:
    """Return whether modules with weights follow the transformer; the modules' files need not be there.

    Raises:
        ModelLoadError: ``modules.json`` cannot be read.
    """
    file = directory / MODULES_FILE
    modules = read_json(file, kind=list) if file.exists() else []
    return any(isinstance(module, dict) and str(module.get("type")).endswith(WEIGHTED) for module in modules)


def listed(
    file: Path,
    known: Sequence[str],
    libraries: tuple[str, ...] = (LIBRARY,),
    first: Sequence[str] = ("Transformer",),
) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module of ``modules.json``, in order.

    Args:
        file: ``modules.json``.
        known: the kinds that may stand behind the first module.
        libraries: what the modules' types may begin with.
        first: the kinds of which the first module is one.

    Raises:
        ModelLoadError: another module is listed, or none.
    """
    found = []
    for index, module in enumerate(read_json(file, kind=list)):
        try:
            named, folder = str(module["type"]), str(module["path"])
        except (KeyError, TypeError) as error:
            raise refused(file, f"module {index} has no type and path: {error!r}") from None
        kind, allowed = named.rpartition(".")[2], known if index else first
        if not named.startswith(libraries) or kind not in allowed:
            reason = f"module {index} has the type {named}; there it must be sentence-transformers'"
            raise refused(file, f"{reason} {' or '.join(allowed)}, and osrerank runs no other code")
        if module.get("kwargs"):
            raise refused(file, f"module {index} has kwargs {module['kwargs']!r}, which are not known")
        if (index and not folder) or (folder and Path(folder).name != folder):
            raise refused(file, f"module {index} has the path {folder!r}; it must name a folder here")
        found.append((kind, folder))
    if not found:
        raise refused(file, "it lists no module")
    return found


def transformer_settings(directory: Path, known: Collection[str] = ()) -> tuple[Path, Content]:
    """Return the file of a transformer's settings and its content, which is empty where there is none.

    Args:
        directory: the transformer's.
        known: fields that the caller reads himself.

    Raises:
        ModelLoadError: a setting changes the model's input or output, and is not known.
    """
    file = next((directory / name for name in TRANSFORMER_FILES if (directory / name).exists()), None)
    if file is None:
        return directory / TRANSFORMER_FILE, {}
    content: Content = read_json(file)
    refuse_unknown(file, content, (*KEYS["Transformer"], *known), "Transformer")
    if content.get("do_lower_case") and not _lowers(read_json(directory / TOKENIZER_FILE).get("normalizer")):
        raise refused(file, "do_lower_case is true; put it into tokenizer.json, as a normaliser")
    if unknown := set(_processing(content)) - {"text"} or set(_processing(content).get("text", {})) - {"max_length"}:
        raise refused(file, f"processing_kwargs has {min(unknown)}; only max_length under text is supported")
    return file, content


def transformer_task(directory: Path, known: Collection[str] = ()) -> str:
    """Return what the transformer computes, `ENCODERS` or `CLASSIFIERS`; arguments as of `transformer_settings`.

    Raises:
        ModelLoadError: it computes something else, as `transformer_settings`, or the family is not known.
    """
    file, content = transformer_settings(directory, known)
    task = str(content.get("transformer_task", ENCODERS))
    if task not in (ENCODERS, CLASSIFIERS):
        reason = f"transformer_task is {task!r}; it must be {ENCODERS} or {CLASSIFIERS}"
        raise refused(file, f"{reason}: run other models behind a rerank server (--backend http)")
    output = "last_hidden_state" if task == ENCODERS else "logits"
    text = (content.get("modality_config") or {}).get("text", {})
    taken = text.get("method_output_name", output)
    if text.get("method", "forward") != "forward" or taken not in (output, [output]):
        raise refused(file, f"modality_config takes {taken!r} of the model; it must be {output} of its forward")
    if task == ENCODERS:
        _check_family(directory / MODULE_FILE, read_json(directory / MODULE_FILE))
    return task


def limits_of(directory: Path, known: Collection[str] = ()) -> TokenLimits:
    """Return the least of the limits in a transformer's files, as the library applies them."""
    _, settings = transformer_settings(directory, known)
    tokenizer = directory / TOKENIZER_SETTINGS_FILE
    own = settings.get("max_seq_length") or (
        read_json(tokenizer).get("model_max_length") if tokenizer.exists() else None
    )
    given = (own, _processing(settings).get("text", {}).get("max_length"))
    query, document = (int(settings[name]) if settings.get(name) else None for name in LENGTHS)
    return TokenLimits(min((int(limit) for limit in given if limit), default=None), query, document)


def refused(file: Path, reason: str) -> ModelLoadError:
    """Return the error that names the file and says why it cannot be used."""
    return ModelLoadError(f"{file}: {reason}", path=str(file))


def refuse_unknown(file: Path, content: Content, known: Collection[str], kind: str) -> None:
    """Refuse a field that is set and not known: it could change the result.

    Raises:
        ModelLoadError: there is one.
    """
    for name, value in content.items():
        if name not in known and value not in (None, False, "", [], {}):
            raise refused(file, f"{name} is {value!r}, but osrerank does not know this field of a {kind}")


def _check_family(file: Path, config: Content) -> None:
    if "auto_map" in config:
        raise refused(file, "auto_map asks for the model's own Python code, which osrerank never runs")
    if config.get("model_type") not in FAMILIES:
        reason = f"model_type is {config.get('model_type')!r}; before other modules it must be one of"
        raise refused(file, f"{reason} {', '.join(FAMILIES)}")


def _processing(content: Content) -> Content:
    found: Content = content.get("processing_kwargs") or {}
    return found


def _lowers(normalizer: Content | None) -> bool:
    """Return whether a tokenizer makes letters small."""
    if not normalizer:
        return False
    if normalizer.get("type") == "Sequence":
        return any(_lowers(one) for one in normalizer.get("normalizers", ()))
    return normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True
