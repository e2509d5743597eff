"""Write a model's ONNX graph in fp32 or int8.

osrerank builds the graphs of BERTs and ModernBERTs itself, and optimum exports those of the other families.
"""

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from osrerank._optional import require
from osrerank.errors import ModelLoadError
from osrerank.export.bi_encoder_graph import build_encoder
from osrerank.export.graph import build_bert, can_build
from osrerank.export.modern_bert_graph import build_modern_bert
from osrerank.export.quantise import QuantisationRecipe, quantise
from osrerank.scoring.backends.onnx import VECTOR_OUTPUT
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.model_files import CONFIG_FILE, TOKENIZER_FILE, read_config
from osrerank.scoring.modular import modern_bert
from osrerank.scoring.modular.description import FAMILIES, GRAPH_FAMILIES, STATIC_MODEL_TYPE
from osrerank.scoring.saved_encoder import check_architecture

WORD_SAMPLES = 32
"""The number of samples of random words; see `_sample_sequences`."""
PUNCTUATION_SAMPLES = 16
"""The number of samples of random numbers and punctuation marks."""
SPACE_MARKERS = "\u2581\u0120"
"""The characters that stand for a space at the start of XLM-R's and RoBERTa's tokens, such as ``\u2581wine``."""
GRAPHS = {"fp32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
"""The graph's file in a model directory, by precision."""


def write_graphs(source: Path, folder: Path, card: ModelCard, *, precision: str, recipe: QuantisationRecipe) -> None:
    """Write the graph of the model ``source`` into a new model directory that already contains the tokenizer.

    Args:
        source: the checkpoint's directory.
        folder: the new model directory.
        card: the new model's card.
        precision: "fp32" or "int8".
        recipe: how an int8 graph is quantised.

    Raises:
        ModelLoadError: the weights cannot be read, or do not match the config.
    """
    target = folder / GRAPHS[precision]
    target.parent.mkdir()
    if precision == "fp32":
        _write_fp32(source, target, card)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary_folder:
        fp32_graph = Path(temporary_folder) / "model.onnx"
        _write_fp32(source, fp32_graph, card)
        if recipe.outlier_method is None:
            recipe = replace(recipe, outlier_method="separate" if card.is_encoder else "smooth")
        quantise(fp32_graph, target, recipe, list(_sample_sequences(folder, card)))


def _sample_sequences(folder: Path, card: ModelCard) -> Iterator[Tokens]:
    """Yield the sequences whose activations show the quantiser which channels are outliers.

    They consist of random words of the vocabulary, or of random numbers and punctuation marks. Real texts are not
    needed: the size of activations hardly depends on the text, except if it contains nothing but punctuation.
    """
    builder = InputBuilder.load(folder, card)
    vocabulary = {word.lstrip(SPACE_MARKERS) for word in Tokenizer.from_file(str(folder / TOKENIZER_FILE)).get_vocab()}
    words = sorted(word for word in vocabulary if word.isalpha()) or sorted(vocabulary)
    numbers_and_marks = sorted(word for word in vocabulary if word.isdigit() or (len(word) == 1 and not word.isalpha()))
    rng = random.Random(0)  # noqa: S311 - a choice of samples, not of secrets
    # queries have 8 words, documents 20 to 199
    for population, count in ((words, WORD_SAMPLES), (numbers_and_marks or words, PUNCTUATION_SAMPLES)):
        for _ in range(count):
            query = builder.tokenise_query(" ".join(rng.choices(words, k=8)))
            texts = [" ".join(rng.choices(population, k=rng.randrange(20, 200))) for _ in range(2)]
            first, second = builder.tokenise_documents(texts, query)
            if card.is_encoder:
                yield from (builder.build_single(query), builder.build_single(first))
            elif card.kind == "duo":
                yield builder.build_duo(query, first, second)
            else:
                yield builder.build_mono(query, first)


def _write_fp32(source: Path, target: Path, card: ModelCard) -> None:
    """Write the fp32 graph: osrerank's own for BERTs and ModernBERTs, and otherwise the one that optimum exports."""
    from osrerank.scoring.backends.torch import load_network, read_head, read_weights  # noqa: PLC0415 - imports torch

    config = read_config(source)
    if card.is_encoder:
        families = GRAPH_FAMILIES if card.kind == "late-interaction" else (*FAMILIES, STATIC_MODEL_TYPE)
        check_architecture(source / CONFIG_FILE, config, families)
        if config["model_type"] in GRAPH_FAMILIES:
            _write_own_encoder(source, target, card, config)
            return
    network = load_network(source, card)
    head = read_head(source, card)
    build = None if card.is_encoder else _find_builder(config)
    if build is None:
        write_onnx(network, target, VECTOR_OUTPUT if card.is_encoder else "logits")
        return
    # with a modular head, the weights of its modules are in files of their own
    tensors = network.network.state_dict() if head is None else read_weights(source)
    weights = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    require("onnx", extra="onnx").save(build(weights, config, card, head), target)


def _write_own_encoder(source: Path, target: Path, card: ModelCard, config: Mapping[str, Any]) -> None:
    """Write osrerank's own graph of a bi-encoder or late-interaction model."""
    from osrerank.scoring.backends.torch import read_weights  # noqa: PLC0415 - imports torch

    weights = {name: tensor.float().numpy() for name, tensor in read_weights(source).items()}
    try:
        graph = build_encoder(weights, config, card)
    except KeyError as error:
        reason = f"{source} does not contain the weight {error}, which a {config['model_type']} needs; save it again"
        raise ModelLoadError(reason, path=str(source)) from error
    require("onnx", extra="onnx").save(graph, target)


def _find_builder(config: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the function that builds a cross-encoder's graph. Returns None if only optimum can export it."""
    if can_build(config):
        return build_bert
    if config.get("model_type") == modern_bert.MODEL_TYPE and not modern_bert.unsupported_reason(config):
        return build_modern_bert
    return None


def write_onnx(network: Any, target: Path, output: str) -> None:
    """Export a torch module with optimum, as a graph for any numbers of rows and tokens.

    The module takes the fields of `PaddedBatch` by name. ``output`` becomes the name of the graph's output.

    Raises:
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    exporter: Any = require("optimum.exporters.onnx", extra="onnx")
    configs: Any = require("optimum.exporters.onnx.model_configs", extra="onnx")

    class PaddedConfig(configs.BertOnnxConfig):  # type: ignore[misc]
        """The export of a module that has BERT's inputs, which are the fields of `PaddedBatch`."""

        outputs = {output: {0: "n"}}  # noqa: RUF012 - optimum declares it so

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer warns about every branch, and that it is deprecated
        export_config = PaddedConfig(network.config, task="text-classification")
        exporter.export(network, export_config, target, disable_dynamic_axes_fix=True)
