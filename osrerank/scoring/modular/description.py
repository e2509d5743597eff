"""Read the files of a model that sentence-transformers saved: ``modules.json``, and each module's folder.

`bi_encoder`, `cross_encoder` and `late_interaction` say what each kind of model makes of its modules. osrerank imports
no class that a file names. It refuses a module or field that it does not know, and the error names the file and field.
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
"""Files with the transformer's settings; older versions put the family into the name."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SETTINGS_FILE = "tokenizer_config.json"
MODULE_FILE, MODULE_WEIGHTS_FILE = "config.json", "model.safetensors"
LIBRARY = "sentence_transformers."
GRAPH_FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "modernbert")
"""``model_type`` of the encoders whose graphs `osrerank.export` builds itself."""
FAMILIES = (*GRAPH_FAMILIES, "distilbert", "electra", "albert", "deberta-v2")
"""``model_type`` of the encoders that other modules may follow."""
STATIC = "static-embedding"
"""osrerank's ``model_type`` for a StaticEmbedding, a table of token vectors without a config."""
LATER_MODULES = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
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
"""Class name of a Dense's activation in torch -> our name."""
SENTENCE_VECTOR = "sentence_embedding"
"""Input and output name of modules after pooling: one vector for each sequence."""
VECTORS_OF_TOKENS = "token_embeddings"
"""Input and output name of modules before pooling, or without it: one vector for each token."""
LENGTHS = ("query_length", "document_length")
KNOWN_FIELDS: Mapping[str, Collection[str]] = {
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
"""Kind of module -> the fields of its file that osrerank reads, or that change no result."""

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The maximum numbers of tokens in a sequence, a query and a document; None if the files set no limit."""

    sequence: int | None
    query: int | None = None
    document: int | None = None


class ModuleReader:
    """Reads the modules after a transformer, and remembers which files they need.

    Args:
        directory: the model's directory.

    Attributes:
        descriptions: JSON files that were read, relative to the directory.
        weights: weight files that the modules need, relative to the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.descriptions: tuple[str, ...] = ()
        self.weights: tuple[str, ...] = ()

    def read_pooling(self, modules: Sequence[tuple[str, str]]) -> tuple[Mode, ...]:
        """Return the modes of the Pooling after a Transformer.

        Args:
            modules: kind and folder of each module after the Transformer.

        Raises:
            ModelLoadError: the first of the modules is not a Pooling, or has an unknown mode.
        """
        if not modules or modules[0][0] != "Pooling":
            kinds = ", ".join(kind for kind, _ in modules) or "nothing"
            reason = f"after the Transformer comes {kinds}; there must be one Pooling, and then the other modules"
            raise file_error(self._directory / MODULES_FILE, reason)
        file, content = self._read_module("Pooling", modules[0][1])
        setting = content.get("pooling_mode")
        if setting is None:
            older = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
            names, modes = older or ["pooling_mode_mean_tokens"], OLDER_MODES
        else:
            names, modes = [setting] if isinstance(setting, str) else list(setting), MODES
        if unknown := next((name for name in names if name not in modes), None):
            raise file_error(file, f"pooling_mode is {unknown!r}; it must be one of {', '.join(MODES)}")
        return tuple(modes[name] for name in names)

    def includes_prompt(self, folder: str) -> bool:
        """Return whether a Pooling includes the tokens of a prompt."""
        return self._read_module("Pooling", folder)[1].get("include_prompt", True) is not False

    def read_steps(
        self, modules: Sequence[tuple[str, str]], last_output: str = SENTENCE_VECTOR
    ) -> tuple[list[HeadStep], int]:
        """Return the steps of the modules after the pooling, and the size of the last Dense's output, or 0.

        Args:
            modules: kind and folder of each module.
            last_output: output name that the last module must have, if it is a Dense.

        Raises:
            ModelLoadError: a module is a Pooling, or needs something that osrerank does not support.
        """
        steps: list[HeadStep] = []
        width = 0
        for index, (kind, folder) in enumerate(modules):
            if kind == "Pooling":
                reason = f"the Pooling in {folder} must be the only one, and directly follow the Transformer"
                raise file_error(self._directory / MODULES_FILE, reason)
            if kind == "Dense":
                step, width = self._read_dense(folder, last_output if index == len(modules) - 1 else SENTENCE_VECTOR)
                steps.append(step)
            elif kind == "LayerNorm":
                self._read_module("LayerNorm", folder)
                steps.append(HeadStep("norm", self._weights_name(folder, "norm")))
            elif kind == "Normalize":
                steps.append(self._read_normalize(folder))
        return steps, width

    def _read_dense(self, folder: str, output_name: str) -> tuple[HeadStep, int]:
        """Return the step of a Dense, and the size of its output, which must have this name."""
        file, content = self._read_module("Dense", folder)
        source = content.get("module_input_name", SENTENCE_VECTOR)
        target = content.get("module_output_name") or source
        check_field(file, "module_input_name", source, SENTENCE_VECTOR)
        check_field(file, "module_output_name", target, output_name)
        function = str(content.get("activation_function", "torch.nn.modules.activation.Tanh"))
        if not function.startswith("torch.") or function.rpartition(".")[2] not in ACTIVATIONS:
            known = f"it must be one of torch's {', '.join(ACTIVATIONS)}"
            raise file_error(file, f"activation_function is {function!r}; {known}, and osrerank runs no other code")
        activation, has_bias = ACTIVATIONS[function.rpartition(".")[2]], content.get("bias", True) is not False
        step = HeadStep("dense", self._weights_name(folder, "linear"), activation, has_bias=has_bias)
        return step, int(content.get("out_features", 0))

    def _read_normalize(self, folder: str) -> HeadStep:
        """Return the step of a Normalize, whose file only later versions of the library write."""
        if (self._directory / folder / MODULE_FILE).exists():
            file, content = self._read_module("Normalize", folder)
            for name in KNOWN_FIELDS["Normalize"]:
                check_field(file, name, content.get(name) or SENTENCE_VECTOR, SENTENCE_VECTOR)
        return HeadStep("unit")

    def _weights_name(self, folder: str, layer: str) -> str:
        """Return the name of a module's weights, and remember their file.

        Raises:
            ModelLoadError: the file is missing.
        """
        file = self._directory / folder / MODULE_WEIGHTS_FILE
        if not file.exists():
            fix = "save the model with safe_serialization=True, for osrerank reads no pickled weights here"
            raise ModelLoadError(f"{file} is missing; {fix}", path=str(file))
        self.weights = (*self.weights, f"{folder}/{MODULE_WEIGHTS_FILE}")
        return f"{folder}.{layer}"

    def _read_module(self, kind: str, folder: str) -> tuple[Path, Content]:
        """Return a module's file and its content, and remember the file."""
        file = self._directory / folder / MODULE_FILE
        self.descriptions = tuple(dict.fromkeys((*self.descriptions, f"{folder}/{MODULE_FILE}")))
        content: Content = read_json(file)
        refuse_unknown(file, content, KNOWN_FIELDS[kind], kind)
        return file, content


def read_model_type(directory: Path) -> str | None:
    """Return the class that sentence-transformers loads a directory with; None if it did not save the directory.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    if not (directory / MODULES_FILE).exists():
        return None
    file = directory / MODEL_FILE
    return str((read_json(file).get("model_type") if file.exists() else None) or "SentenceTransformer")


def has_weighted_modules(directory: Path) -> bool:
    """Return whether ``modules.json`` lists modules with weights; their own files need not exist.

    Raises:
        ModelLoadError: ``modules.json`` cannot be read.
    """
    file = directory / MODULES_FILE
    modules = read_json(file, kind=list) if file.exists() else []
    return any(isinstance(module, dict) and str(module.get("type")).endswith(WEIGHTED) for module in modules)


def list_modules(
    file: Path,
    later_kinds: Sequence[str],
    libraries: tuple[str, ...] = (LIBRARY,),
    first_kinds: Sequence[str] = ("Transformer",),
) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module of ``modules.json``, in order.

    Args:
        file: ``modules.json``.
        later_kinds: kinds that the modules after the first may have.
        libraries: prefixes that the modules' types may have.
        first_kinds: kinds that the first module may have.

    Raises:
        ModelLoadError: the file lists a module of another kind, or no module.
    """
    modules = []
    for index, module in enumerate(read_json(file, kind=list)):
        try:
            module_type, folder = str(module["type"]), str(module["path"])
        except (KeyError, TypeError) as error:
            raise file_error(file, f"module {index} has no type and path: {error!r}") from None
        kind, allowed = module_type.rpartition(".")[2], later_kinds if index else first_kinds
        if not module_type.startswith(libraries) or kind not in allowed:
            reason = f"module {index} has the type {module_type}; there it must be sentence-transformers'"
            raise file_error(file, f"{reason} {' or '.join(allowed)}, and osrerank runs no other code")
        if module.get("kwargs"):
            raise file_error(file, f"module {index} has kwargs {module['kwargs']!r}, which osrerank does not know")
        if (index and not folder) or (folder and Path(folder).name != folder):
            raise file_error(file, f"module {index} has the path {folder!r}; it must name a folder here")
        modules.append((kind, folder))
    if not modules:
        raise file_error(file, "it lists no module")
    return modules


def read_transformer_settings(directory: Path, more_fields: Collection[str] = ()) -> tuple[Path, Content]:
    """Return the file of a transformer's settings and its content; empty if the file does not exist.

    Args:
        directory: the transformer's directory.
        more_fields: fields that the caller reads.

    Raises:
        ModelLoadError: a setting changes the model's input or output, and osrerank does not know it.
    """
    file = next((directory / name for name in TRANSFORMER_FILES if (directory / name).exists()), None)
    if file is None:
        return directory / TRANSFORMER_FILE, {}
    content: Content = read_json(file)
    refuse_unknown(file, content, (*KNOWN_FIELDS["Transformer"], *more_fields), "Transformer")
    if content.get("do_lower_case") and not _lowers_case(read_json(directory / TOKENIZER_FILE).get("normalizer")):
        raise file_error(file, "do_lower_case is true; put it into tokenizer.json, as a normaliser")
    processing = _processing(content)
    unknown = (set(processing) - {"text"}) or (set(processing.get("text", {})) - {"max_length"})
    if unknown:
        raise file_error(file, f"processing_kwargs has {min(unknown)}; only max_length under text is supported")
    return file, content


def read_transformer_task(directory: Path, more_fields: Collection[str] = ()) -> str:
    """Return what the transformer computes, `ENCODERS` or `CLASSIFIERS`; arguments as in `read_transformer_settings`.

    Raises:
        ModelLoadError: the transformer computes something else, has a setting that osrerank does not know, or is an
            encoder of an unknown family.
    """
    file, content = read_transformer_settings(directory, more_fields)
    task = str(content.get("transformer_task", ENCODERS))
    if task not in (ENCODERS, CLASSIFIERS):
        reason = f"transformer_task is {task!r}; it must be {ENCODERS} or {CLASSIFIERS}"
        raise file_error(file, f"{reason}: run other models behind a rerank server (--backend http)")
    output = "last_hidden_state" if task == ENCODERS else "logits"
    text = (content.get("modality_config") or {}).get("text", {})
    output_name = text.get("method_output_name", output)
    if text.get("method", "forward") != "forward" or output_name not in (output, [output]):
        raise file_error(
            file, f"modality_config takes {output_name!r} of the model; it must be {output} of its forward"
        )
    if task == ENCODERS:
        _check_family(directory / MODULE_FILE, read_json(directory / MODULE_FILE))
    return task


def read_token_limits(directory: Path, more_fields: Collection[str] = ()) -> TokenLimits:
    """Return the lowest of the limits in a transformer's files, as the library applies them."""
    _, settings = read_transformer_settings(directory, more_fields)
    tokenizer_file = directory / TOKENIZER_SETTINGS_FILE
    limit = settings.get("max_seq_length")
    if not limit and tokenizer_file.exists():
        limit = read_json(tokenizer_file).get("model_max_length")
    limits = [limit, _processing(settings).get("text", {}).get("max_length")]
    query, document = (int(settings[name]) if settings.get(name) else None for name in LENGTHS)
    return TokenLimits(min((int(limit) for limit in limits if limit), default=None), query, document)


def file_error(file: Path, reason: str) -> ModelLoadError:
    """Return the error that names a file and says why it cannot be used."""
    return ModelLoadError(f"{file}: {reason}", path=str(file))


def check_field(file: Path, name: str, value: object, expected: object) -> None:
    """Check that a field of a file has the only value that osrerank supports.

    Raises:
        ModelLoadError: the field has another value.
    """
    if value != expected:
        raise file_error(file, f"{name} is {value!r}; here it must be {expected!r}")


def refuse_unknown(file: Path, content: Content, known: Collection[str], kind: str) -> None:
    """Refuse a field that is set and that osrerank does not know, because it could change the result.

    Raises:
        ModelLoadError: the file has such a field.
    """
    for name, value in content.items():
        if name not in known and value not in (None, False, "", [], {}):
            raise file_error(file, f"{name} is {value!r}, but osrerank does not know this field of a {kind}")


def _check_family(file: Path, config: Content) -> None:
    if "auto_map" in config:
        raise file_error(file, "auto_map asks for the model's own Python code, which osrerank never runs")
    if config.get("model_type") not in FAMILIES:
        reason = f"model_type is {config.get('model_type')!r}; before other modules it must be one of"
        raise file_error(file, f"{reason} {', '.join(FAMILIES)}")


def _processing(content: Content) -> Content:
    processing: Content = content.get("processing_kwargs") or {}
    return processing


def _lowers_case(normalizer: Content | None) -> bool:
    """Return whether a tokenizer's normaliser lower-cases texts."""
    if not normalizer:
        return False
    if normalizer.get("type") == "Sequence":
        return any(_lowers_case(step) for step in normalizer.get("normalizers", ()))
    return normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True
