"""Read the files of a model that sentence-transformers saved: ``modules.json``, and the files of each module.

`bi_encoder`, `cross_encoder` and `late_interaction` use these functions for their kind of model. The files contain
names of Python classes, but osrerank never imports these classes. An error about an unknown module or field contains
the file and the field.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from osrerank._bad_value import describe_bad_value
from osrerank.errors import ModelLoadError
from osrerank.scoring.json_file import read_json, read_optional_json
from osrerank.scoring.modular.head import Activation, HeadStep, Mode

MODULES_FILE = "modules.json"
"""List of a model's modules."""
MODEL_FILE = "config_sentence_transformers.json"
"""Settings of the whole model, such as its prompts."""
TRANSFORMER_FILE = "sentence_bert_config.json"
"""Settings of a Transformer, the first module."""
TRANSFORMER_FILES = (TRANSFORMER_FILE, "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
"""Possible files of a Transformer's settings. Older versions of the library put the model family into the file name."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SETTINGS_FILE = "tokenizer_config.json"
MODULE_FILE = "config.json"
"""Settings of a later module, in the module's folder. In the Transformer's folder, it is the config of the encoder."""
MODULE_WEIGHTS_FILE = "model.safetensors"
LIBRARY = "sentence_transformers."
"""Package of the modules' classes in `MODULES_FILE`."""
GRAPH_FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "modernbert")
"""``model_type`` of the encoders whose ONNX graphs `osrerank.export` builds without optimum."""
FAMILIES = (*GRAPH_FAMILIES, "distilbert", "electra", "albert", "deberta-v2")
"""``model_type`` of all supported encoders."""
STATIC_MODEL_TYPE = "static-embedding"
"""The ``model_type`` that osrerank gives a StaticEmbedding, which is a table of token vectors and has no config."""
LATER_MODULES = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
"""Modules that can follow the Transformer of a bi-encoder or a cross-encoder."""
WEIGHTED_MODULES = ("Dense", "LayerNorm")
"""Modules with weights. ONNX graphs that other programs exported do not contain these weights."""
ENCODER_TASK = "feature-extraction"
CLASSIFIER_TASK = "sequence-classification"
TRANSFORMER_TASKS = (ENCODER_TASK, CLASSIFIER_TASK)
"""The supported values of a Transformer's ``transformer_task``."""
MODES: Mapping[str, Mode] = {mode: mode for mode in get_args(Mode)}
"""Name of a pooling mode in current files -> our name. The two are the same, unlike those in `OLD_MODES`."""
OLD_MODES: Mapping[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Name of a pooling mode in files of older versions -> our name."""
ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": "",
    "GELU": "gelu",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
    "Tanh": "tanh",
}
"""Class in torch of a Dense's activation -> our name."""
SEQUENCE_OUTPUT = "sentence_embedding"
"""Name of a module's input or output with a vector for each sequence, after pooling."""
TOKENS_OUTPUT = "token_embeddings"
"""Name of a module's input or output with a vector for each token, without pooling."""
KNOWN_FIELDS: Mapping[str, Collection[str]] = {
    "Transformer": (
        "transformer_task",
        "modality_config",
        "module_output_name",
        "processing_kwargs",
        "unpad_inputs",
        "max_seq_length",
        "do_lower_case",
        "query_length",
        "document_length",
    ),
    "Pooling": (
        "embedding_dimension",
        "word_embedding_dimension",
        "pooling_mode",
        "include_prompt",
        *OLD_MODES,
        "pooling_mode_mean_sqrt_len_tokens",
    ),
    "Dense": (
        "in_features",
        "out_features",
        "bias",
        "activation_function",
        "module_input_name",
        "module_output_name",
    ),
    "LayerNorm": ("dimension",),
    "Normalize": ("module_input_name", "module_output_name"),
}
"""Kind of module -> fields that its file may have: osrerank reads them, or they do not change the model's output."""

Content = Mapping[str, Any]


class Module(NamedTuple):
    """An entry of ``modules.json``.

    Attributes:
        kind: class of the module without its package, such as ``Dense``.
        folder: folder of the module's files, such as ``2_Dense``. "" is the model's directory itself.
    """

    kind: str
    folder: str


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """The maximum numbers of tokens in any sequence, in a query and in a document. None if the files set no limit."""

    sequence: int | None
    query: int | None = None
    document: int | None = None


class ModuleReader:
    """Reads the modules after a Transformer in a model's directory, and collects the names of their files.

    Attributes:
        description_files: the JSON files that were read, relative to the directory.
        weight_files: the safetensors of the modules that were read, relative to the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.description_files: tuple[str, ...] = ()
        self.weight_files: tuple[str, ...] = ()

    def read_pooling(self, modules: Sequence[Module]) -> tuple[Mode, ...]:
        """Read the modes of the Pooling, which must be the first of the modules, such as ``("cls", "mean")``.

        Raises:
            ModelLoadError: the first module is not a Pooling, or uses an unknown mode.
        """
        if not modules or modules[0].kind != "Pooling":
            kinds = ", ".join(module.kind for module in modules) or "nothing"
            reason = f"after the Transformer comes {kinds}; there must be one Pooling, and then the other modules"
            raise file_error(self._directory / MODULES_FILE, reason)
        file, content = self._read_module(modules[0])
        setting = content.get("pooling_mode")
        known_modes = MODES
        if isinstance(setting, str):
            names = [setting]
        elif setting is not None:
            names = list(setting)
        else:
            known_modes = OLD_MODES
            names = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
            names = names or ["pooling_mode_mean_tokens"]
        for name in names:
            if name not in known_modes:
                raise file_error(file, f"pooling_mode is {name!r}; it must be one of {', '.join(MODES)}")
        return tuple(known_modes[name] for name in names)

    def includes_prompt(self, pooling: Module) -> bool:
        """Return whether a Pooling includes the tokens of a prompt."""
        _, content = self._read_module(pooling)
        return content.get("include_prompt", True) is not False

    def read_steps(self, modules: Sequence[Module], last_output: str = SEQUENCE_OUTPUT) -> tuple[list[HeadStep], int]:
        """Read the steps of the modules after the Pooling, and the output size of the last Dense (0 without a Dense).

        If the last module is a Dense, its output must have the name ``last_output``.

        Raises:
            ModelLoadError: a module is a Pooling, or has an unsupported field.
        """
        steps: list[HeadStep] = []
        output_size = 0
        for module in modules:
            if module.kind == "Pooling":
                reason = f"the Pooling in {module.folder} must be the only one, and directly follow the Transformer"
                raise file_error(self._directory / MODULES_FILE, reason)
            if module.kind == "Dense":
                output_name = last_output if module is modules[-1] else SEQUENCE_OUTPUT
                step, output_size = self._read_dense(module, output_name)
                steps.append(step)
            elif module.kind == "LayerNorm":
                self._read_module(module)
                steps.append(HeadStep("norm", self._add_weights(module, "norm")))
            elif module.kind == "Normalize":
                steps.append(self._read_normalize(module))
        return steps, output_size

    def _read_dense(self, module: Module, output_name: str) -> tuple[HeadStep, int]:
        """Read the step of a Dense and the size of its output, which must have the name ``output_name``."""
        file, content = self._read_module(module)
        source = content.get("module_input_name", SEQUENCE_OUTPUT)
        check_field(file, "module_input_name", source, SEQUENCE_OUTPUT)
        check_field(file, "module_output_name", content.get("module_output_name") or source, output_name)
        function = str(content.get("activation_function", "torch.nn.modules.activation.Tanh"))
        function_name = function.rpartition(".")[2]
        if not function.startswith("torch.") or function_name not in ACTIVATIONS:
            choices = f"it must be one of torch's {', '.join(ACTIVATIONS)}"
            raise file_error(file, f"activation_function is {function!r}; {choices}, and osrerank runs no other code")
        has_bias = content.get("bias", True) is not False
        weights = self._add_weights(module, "linear")
        step = HeadStep("dense", weights, ACTIVATIONS[function_name], has_bias=has_bias)
        return step, int(content.get("out_features", 0))

    def _read_normalize(self, module: Module) -> HeadStep:
        """Read the step of a Normalize. Older versions of the library write no file for it."""
        if (self._directory / module.folder / MODULE_FILE).exists():
            file, content = self._read_module(module)
            for name in KNOWN_FIELDS["Normalize"]:
                check_field(file, name, content.get(name) or SEQUENCE_OUTPUT, SEQUENCE_OUTPUT)
        return HeadStep("unit")

    def _add_weights(self, module: Module, layer: str) -> str:
        """Add the file of a module's weights to `weight_files`. Return the name of the weights: ``2_Dense.linear``."""
        file = self._directory / module.folder / MODULE_WEIGHTS_FILE
        if not file.exists():
            fix = "save the model with safe_serialization=True, because osrerank does not read pickled weights here"
            raise ModelLoadError(f"{file} is missing; {fix}", path=str(file))
        self.weight_files = (*self.weight_files, f"{module.folder}/{MODULE_WEIGHTS_FILE}")
        return f"{module.folder}.{layer}"

    def _read_module(self, module: Module) -> tuple[Path, Content]:
        """Read a module's file, and add it to `description_files`. Return the file and its content."""
        file = self._directory / module.folder / MODULE_FILE
        name = f"{module.folder}/{MODULE_FILE}"
        if name not in self.description_files:
            self.description_files = (*self.description_files, name)
        content: Content = read_json(file)
        refuse_unknown_fields(file, content, KNOWN_FIELDS[module.kind], module.kind)
        return file, content


def read_model_type(directory: Path) -> str | None:
    """Return the class that saved a model, such as ``CrossEncoder``, or None if there is no ``modules.json``.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    if not (directory / MODULES_FILE).exists():
        return None
    return str(read_optional_json(directory / MODEL_FILE).get("model_type") or "SentenceTransformer")


def has_weighted_modules(directory: Path) -> bool:
    """Return whether ``modules.json`` lists modules with weights, even if their files do not exist.

    Raises:
        ModelLoadError: ``modules.json`` cannot be read.
    """
    file = directory / MODULES_FILE
    modules = read_json(file, expected_type=list) if file.exists() else []
    return any(isinstance(module, dict) and str(module.get("type")).endswith(WEIGHTED_MODULES) for module in modules)


def list_modules(
    file: Path,
    later_kinds: Sequence[str],
    libraries: tuple[str, ...] = (LIBRARY,),
    first_kinds: Sequence[str] = ("Transformer",),
) -> list[Module]:
    """Read the modules in ``modules.json``, in order.

    The first module must have one of the ``first_kinds``, and each of the others one of the ``later_kinds``.

    Raises:
        ModelLoadError: the file lists a module of another kind or library, or no module.
    """
    modules = []
    for index, module in enumerate(read_json(file, expected_type=list)):
        try:
            class_name, folder = str(module["type"]), str(module["path"])
        except (KeyError, TypeError) as error:
            raise file_error(file, f"module {index} needs a type and a path: {describe_bad_value(error)}") from None
        kind = class_name.rpartition(".")[2]
        allowed_kinds = later_kinds if index else first_kinds
        if not class_name.startswith(libraries) or kind not in allowed_kinds:
            reason = f"module {index} has the type {class_name!r}; it must be sentence-transformers'"
            raise file_error(file, f"{reason} {' or '.join(allowed_kinds)}, and osrerank runs no other code")
        if module.get("kwargs"):
            raise file_error(file, f"module {index} has kwargs {module['kwargs']!r}, which osrerank does not know")
        if (index and not folder) or (folder and Path(folder).name != folder):
            raise file_error(file, f"module {index} has the path {folder!r}; it must name a folder in this directory")
        modules.append(Module(kind, folder))
    if not modules:
        raise file_error(file, "the file lists no module, so the model is incomplete; save or download it again")
    return modules


def read_transformer_settings(directory: Path, extra_fields: Collection[str] = ()) -> tuple[Path, Content]:
    """Read a Transformer's settings. Return their file and its content, which is empty if the file does not exist.

    ``extra_fields`` are allowed besides the fields in `KNOWN_FIELDS`.

    Raises:
        ModelLoadError: osrerank does not know a setting.
    """
    file = next((directory / name for name in TRANSFORMER_FILES if (directory / name).exists()), None)
    if file is None:
        return directory / TRANSFORMER_FILE, {}
    content: Content = read_json(file)
    refuse_unknown_fields(file, content, (*KNOWN_FIELDS["Transformer"], *extra_fields), "Transformer")
    if content.get("do_lower_case") and not _lowers_case(read_json(directory / TOKENIZER_FILE).get("normalizer")):
        raise file_error(file, "do_lower_case is true; add a normaliser that lowercases to tokenizer.json")
    processing = content.get("processing_kwargs") or {}
    unknown_fields = set(processing) - {"text"}
    if not unknown_fields:
        unknown_fields = set(processing.get("text", {})) - {"max_length"}
    if unknown_fields:
        raise file_error(file, f"processing_kwargs has {min(unknown_fields)!r}; it can have only max_length in text")
    return file, content


def read_transformer_task(directory: Path, extra_fields: Collection[str] = ()) -> str:
    """Read a Transformer's task, `ENCODER_TASK` or `CLASSIFIER_TASK`.

    ``extra_fields`` are allowed besides the fields in `KNOWN_FIELDS`.

    Raises:
        ModelLoadError: the Transformer has another task or an unknown setting, or is an encoder of an unknown family.
    """
    file, content = read_transformer_settings(directory, extra_fields)
    task = str(content.get("transformer_task", ENCODER_TASK))
    if task not in TRANSFORMER_TASKS:
        reason = f"transformer_task is {task!r}; it must be {ENCODER_TASK} or {CLASSIFIER_TASK}"
        raise file_error(file, f"{reason}; run other models on a rerank server (--backend http)")
    expected = "last_hidden_state" if task == ENCODER_TASK else "logits"
    text = (content.get("modality_config") or {}).get("text", {})
    output = text.get("method_output_name", expected)  # a name, or a list of names
    if text.get("method", "forward") != "forward" or output not in (expected, [expected]):
        reason = f"modality_config selects the model's output {output!r}; it must be {expected} of its forward method"
        raise file_error(file, reason)
    if task == ENCODER_TASK:
        _check_family(directory / MODULE_FILE, read_json(directory / MODULE_FILE))
    return task


def read_token_limits(directory: Path, extra_fields: Collection[str] = ()) -> TokenLimits:
    """Return the token limits in a Transformer's files.

    The limit of a sequence is the lower one of ``max_seq_length`` (if missing, the tokenizer's limit) and the limit in
    ``processing_kwargs``.
    """
    _, settings = read_transformer_settings(directory, extra_fields)
    tokenizer_file = directory / TOKENIZER_SETTINGS_FILE
    limit = settings.get("max_seq_length")
    if not limit and tokenizer_file.exists():
        limit = read_json(tokenizer_file).get("model_max_length")
    processing_limit = (settings.get("processing_kwargs") or {}).get("text", {}).get("max_length")
    return TokenLimits(
        min((int(number) for number in (limit, processing_limit) if number), default=None),
        int(settings["query_length"]) if settings.get("query_length") else None,
        int(settings["document_length"]) if settings.get("document_length") else None,
    )


def select_prompt(file: Path, model: Content, names: Sequence[str] = ()) -> str:
    """Return the first non-empty prompt with one of the names. If no prompt has such a name, return the default one.

    Raises:
        ModelLoadError: the file does not contain the default prompt that it specifies.
    """
    prompts = model.get("prompts") or {}
    default = model.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise file_error(file, f"default_prompt_name is {default!r}, but prompts has no prompt of that name; add one")
    candidates = [prompts[name] for name in names if name in prompts]
    if not candidates and default is not None:
        candidates = [prompts[default]]
    return str(next(filter(None, candidates), ""))


def file_error(file: Path, reason: str) -> ModelLoadError:
    """Return the error for a file that cannot be used."""
    return ModelLoadError(f"{file}: {reason}", path=str(file))


def check_field(file: Path, name: str, value: object, expected: object) -> None:
    """Raise a `ModelLoadError` if a field of a file does not have the only supported value."""
    if value != expected:
        raise file_error(file, f"{name} is {value!r}; here it must be {expected!r}")


def refuse_unknown_fields(file: Path, content: Content, known_fields: Collection[str], kind: str) -> None:
    """Raise a `ModelLoadError` if a file sets an unknown field, because it could change the model's output."""
    for name, value in content.items():
        is_empty = value in (None, False, "", [], {})  # an empty value changes nothing
        if name not in known_fields and not is_empty:
            raise file_error(file, f"{name} is {value!r}, but osrerank does not know this field of a {kind}")


def _check_family(file: Path, config: Content) -> None:
    if "auto_map" in config:
        raise file_error(
            file, "auto_map requires the model's own Python code, which osrerank never runs; use another model"
        )
    if config.get("model_type") not in FAMILIES:
        reason = f"model_type is {config.get('model_type')!r}; in an encoder it must be one of"
        raise file_error(file, f"{reason} {', '.join(FAMILIES)}")


def _lowers_case(normalizer: Content | None) -> bool:
    """Return whether a tokenizer's normaliser lower-cases texts."""
    if not normalizer:
        return False
    if normalizer.get("type") == "Sequence":
        return any(_lowers_case(step) for step in normalizer.get("normalizers", ()))
    return normalizer.get("type") == "Lowercase" or normalizer.get("lowercase") is True
