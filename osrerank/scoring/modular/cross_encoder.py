"""Read the files of a cross-encoder that sentence-transformers 5.4 or later saved.

The first module is a Transformer, whose files are in the directory itself. If it is the only module, it is a
transformers classifier. Otherwise, it is an encoder, and Pooling, Dense, LayerNorm, Normalize and Dropout modules
follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import (
    CLASSIFIER_TASK,
    LATER_MODULES,
    MODEL_FILE,
    MODULE_FILE,
    MODULES_FILE,
    TOKENIZER_SETTINGS_FILE,
    TRANSFORMER_FILE,
    Content,
    Module,
    ModuleReader,
    file_error,
    list_modules,
    read_model_type,
    read_token_limits,
    read_transformer_task,
    select_prompt,
)
from osrerank.scoring.modular.head import Head

MODEL_TYPE = "CrossEncoder"
"""``model_type`` in `MODEL_FILE`."""
OUTPUT_ACTIVATIONS = ("Identity", "Sigmoid")
"""The final activations that a model may have. osrerank applies none of them, so that its scores are logits."""
SCORES = "scores"
"""Name of the last module's output, the logits."""


@dataclass(frozen=True, slots=True)
class CrossEncoderDescription:
    """What the files of a cross-encoder say about the model.

    Attributes:
        head: the pooling and the steps after the encoder. None if the model is a transformers classifier.
        labels: the number of the head's outputs. 0 for a transformers classifier, whose config sets the number.
        max_tokens: the maximum number of tokens in a sequence. None if the files set no limit.
        query_prefix: text that precedes every query.
        description_files: the JSON files that were read, relative to the directory.
        weight_files: the safetensors of the modules, relative to the directory.
    """

    head: Head | None
    labels: int
    max_tokens: int | None
    query_prefix: str
    description_files: tuple[str, ...]
    weight_files: tuple[str, ...]


def read_cross_encoder(directory: Path) -> CrossEncoderDescription | None:
    """Read the description of a cross-encoder. Returns None if the directory has no cross-encoder in this format.

    Raises:
        ModelLoadError: a file cannot be read, or sets a field that osrerank does not know.
    """
    if read_model_type(directory) != MODEL_TYPE:
        return None
    file = directory / MODEL_FILE
    model: Content = read_json(file)
    _check_activation(file, model)
    transformer, *modules = list_modules(directory / MODULES_FILE, LATER_MODULES)
    if transformer.folder:
        reason = f"module 0 has the path {transformer.folder!r}; a Transformer's must be empty"
        raise file_error(directory / MODULES_FILE, reason)
    task = read_transformer_task(directory)
    is_classifier, has_later_modules = task == CLASSIFIER_TASK, bool(modules)
    if is_classifier == has_later_modules:
        reason = f"transformer_task is {task!r}, but {MODULES_FILE} lists {len(modules) + 1} modules"
        fix = "a classifier must be the only module; an encoder must be followed by others"
        raise file_error(directory / TRANSFORMER_FILE, f"{reason}; {fix}")
    reader = ModuleReader(directory)
    head, labels = None, 0
    query_prefix = select_prompt(file, model)  # the default prompt
    if modules:
        head, labels = _read_head(directory, reader, modules)
        if query_prefix and not reader.includes_prompt(modules[0]):
            reason = "include_prompt is false, but the model has a default prompt; the pooling must include its tokens"
            raise file_error(directory / modules[0].folder / MODULE_FILE, reason)
    names = (MODULES_FILE, MODEL_FILE, TRANSFORMER_FILE, TOKENIZER_SETTINGS_FILE)
    description_files = (*(name for name in names if (directory / name).exists()), *reader.description_files)
    max_tokens = read_token_limits(directory).sequence
    return CrossEncoderDescription(head, labels, max_tokens, query_prefix, description_files, reader.weight_files)


def _read_head(directory: Path, reader: ModuleReader, modules: Sequence[Module]) -> tuple[Head, int]:
    """Read the head from the modules after the Transformer. Returns the head and the number of its outputs."""
    pooling = reader.read_pooling(modules)
    last_kind = modules[-1].kind
    if last_kind != "Dense":
        reason = f"the last module is a {last_kind}; it must be a Dense, which computes the scores"
        raise file_error(directory / MODULES_FILE, reason)
    _pooling, *step_modules = modules
    steps, labels = reader.read_steps(step_modules, last_output=SCORES)
    return Head(tuple(steps), pooling), labels


def _check_activation(file: Path, model: Content) -> None:
    activation = str(model.get("activation_fn") or "torch.nn.modules.linear.Identity")
    if not activation.startswith("torch.") or activation.rpartition(".")[2] not in OUTPUT_ACTIVATIONS:
        choices = f"it must be torch's {' or '.join(OUTPUT_ACTIVATIONS)}, so that scores are logits"
        raise file_error(file, f"activation_fn is {activation!r}; {choices}")
