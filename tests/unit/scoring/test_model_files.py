"""What a directory's files say of weights, lengths and token types."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.scoring.card_file import read_card
from osrerank.scoring.checkpoints.pickled import INDEX_FILE, pickled_files
from osrerank.scoring.model_files import WEIGHTS_INDEX_FILE, weight_files
from osrerank.scoring.registry import load_scorer

DIRECTORY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Copy a classifier without card and graph."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copyfile(DIRECTORY / name, tmp_path / name)
    return tmp_path


def settings(checkpoint: Path, **fields: Any) -> Path:
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(fields), "utf-8")
    return checkpoint


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({}, 2),
        ({"model_input_names": ["input_ids", "attention_mask"]}, 1),
        ({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, 2),
        ({"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}, 1),
        ({"tokenizer_class": "BertTokenizer", "backend": "tokenizers"}, 2),
        ({"tokenizer_class": "AlbertTokenizer", "backend": "tokenizers"}, 1),
        ({"tokenizer_class": "AlbertTokenizer"}, 2),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, 2),
        ({"tokenizer_class": "DistilBertTokenizer"}, 1),
    ],
    ids=str,
)
def test_token_types_are_used_if_transformers_uses_token_types(
    checkpoint: Path, fields: dict[str, Any], rows: int
) -> None:
    assert read_card(settings(checkpoint, **fields)).segment_rows == rows


@pytest.mark.parametrize(
    ("limit", "most", "most_of_query"), [(100, 100, 50), (40, 40, 20), (10**30, 512, 64), (None, 512, 64)]
)
def test_the_tokenizers_length_limit_is_respected(
    checkpoint: Path, limit: int | None, most: int, most_of_query: int
) -> None:
    card = read_card(settings(checkpoint, model_max_length=limit))
    assert (card.max_tokens, card.max_query_tokens) == (most, most_of_query)


def test_the_truncation_side_is_the_settings_or_the_tokenizers(checkpoint: Path) -> None:
    assert read_card(settings(checkpoint, truncation_side="left")).truncation_side == "left"
    content = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    content["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    (checkpoint / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    assert read_card(settings(checkpoint)).truncation_side == "left"
    assert read_card(settings(checkpoint, truncation_side="right")).truncation_side == "right"


def test_an_unknown_truncation_side_is_refused_by_file_and_field(checkpoint: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: truncation_side is 'middle'"):
        read_card(settings(checkpoint, truncation_side="middle"))


@pytest.mark.parametrize(
    ("field", "opposite"),
    [("do_lower_case", False), ("strip_accents", False), ("tokenize_chinese_chars", False)],
)
def test_tokenizer_settings_that_contradict_the_tokenizer_are_refused(
    checkpoint: Path, field: str, *, opposite: bool
) -> None:
    with pytest.raises(ModelLoadError, match=rf"{field} is false, but tokenizer\.json says true; make them agree"):
        read_card(settings(checkpoint, **{field: opposite}))
    assert read_card(settings(checkpoint, **{field: not opposite})).max_tokens
    generic = {"tokenizer_class": "PreTrainedTokenizerFast"}  # here, transformers does not read the field
    assert read_card(settings(checkpoint, **{field: opposite}, **generic)).max_tokens


def test_a_contradiction_about_the_leading_space_is_refused(checkpoint: Path) -> None:
    content = json.loads((checkpoint / "tokenizer.json").read_text("utf-8"))
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    (checkpoint / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(ModelLoadError, match=r"add_prefix_space is true, but tokenizer\.json says false"):
        read_card(settings(checkpoint, add_prefix_space=True))
    assert read_card(settings(checkpoint, add_prefix_space=False)).max_tokens


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside weights", "alone"])
def test_a_peft_adapter_is_refused_by_name(checkpoint: Path, name: str, *, beside: bool) -> None:
    if not beside:
        for file in checkpoint.iterdir():
            file.unlink()
    (checkpoint / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (checkpoint / name).write_bytes(b"")
    with pytest.raises(ModelLoadError, match=r"adapter_config\.json: an adapter .*merge_and_unload"):
        read_card(checkpoint)


def test_stray_weight_files_beside_a_models_weights_are_not_read(checkpoint: Path) -> None:
    torch_file = pytest.importorskip("safetensors.numpy")
    weights = torch_file.load_file(checkpoint / "model.safetensors")
    expected = score(checkpoint)
    torch_file.save_file({name: array + 1 for name, array in weights.items()}, checkpoint / "model_before.safetensors")
    assert weight_files(checkpoint) == ["model.safetensors"]
    np.testing.assert_array_equal(score(checkpoint), expected)


def test_the_weight_files_that_an_index_names_are_read(checkpoint: Path) -> None:
    numpy_file = pytest.importorskip("safetensors.numpy")
    expected, saved_weights = score(checkpoint), numpy_file.load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    half = sorted(saved_weights)[: len(saved_weights) // 2]
    parts = {"a.safetensors": half, "b.safetensors": sorted(set(saved_weights) - set(half))}
    for name, tensors in parts.items():
        numpy_file.save_file(
            {tensor: saved_weights[tensor] for tensor in tensors}, checkpoint / name, metadata={"format": "pt"}
        )
    numpy_file.save_file({name: array + 1 for name, array in saved_weights.items()}, checkpoint / "c.safetensors")
    index = {"metadata": {}, "weight_map": {tensor: name for name, tensors in parts.items() for tensor in tensors}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    assert weight_files(checkpoint) == list(parts)
    np.testing.assert_array_equal(score(checkpoint), expected)


def test_several_weights_without_an_index_are_refused(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "a.safetensors")
    shutil.copyfile(checkpoint / "a.safetensors", checkpoint / "b.safetensors")
    with pytest.raises(ModelLoadError, match=r"contains a\.safetensors, b\.safetensors, but neither"):
        weight_files(checkpoint)


@pytest.mark.long
def test_a_family_of_decoders_is_refused_by_name(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.Qwen3Config(
        vocab_size=300, num_key_value_heads=2, head_dim=8, num_labels=1, pad_token_id=0, **shape
    )
    transformers.Qwen3ForSequenceClassification(config).save_pretrained(tmp_path)
    shutil.copyfile(DIRECTORY / "tokenizer.json", tmp_path / "tokenizer.json")
    with pytest.raises(ModelLoadError, match="model_type is 'qwen3', a decoder, but osrerank runs only encoders"):
        load_scorer(str(tmp_path), backend="torch")


def score(checkpoint: Path) -> np.ndarray:
    card = {"version": 2, "name": "tiny", "head": "logit1", "max_tokens": 128}
    (checkpoint / "osrerank.json").write_text(json.dumps(card), "utf-8")
    return (
        load_scorer(str(checkpoint), backend="torch").score("low pressure", ["heat flow", "wing"], [(0,), (1,)]).values
    )


@pytest.mark.parametrize("weight_map", [None, ["a"], {"a": "../other/model.safetensors"}, {"a": "/model.bin"}])
def test_an_index_of_weights_names_files_of_its_folder(tmp_path: Path, weight_map: Any) -> None:
    for name, read in ((WEIGHTS_INDEX_FILE, weight_files), (INDEX_FILE, pickled_files)):
        (tmp_path / name).write_text(json.dumps({"weight_map": weight_map}), "utf-8")
        with pytest.raises(ModelLoadError, match="has no weight_map with files of the model's folder"):
            read(tmp_path)
