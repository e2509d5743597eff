"""What a modular cross-encoder's files say, and what is refused: by the file and the field. Nothing is imported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osrerank.errors import ModelLoadError
from osrerank.scoring.card_file import list_parameter_files, read_card
from osrerank.scoring.modular.cross_encoder import read_cross_encoder
from osrerank.scoring.modular.head import Head, HeadStep

TYPES = {
    "": "base.modules.transformer.Transformer",
    "1_Pooling": "sentence_transformer.modules.pooling.Pooling",
    "2_Dense": "base.modules.dense.Dense",
    "3_LayerNorm": "sentence_transformer.modules.layer_norm.LayerNorm",
    "4_Dense": "base.modules.dense.Dense",
}
DENSE = {"in_features": 8, "out_features": 8, "bias": True, "module_input_name": "sentence_embedding"}
FILES: dict[str, Any] = {
    "config.json": {"model_type": "modernbert", "architectures": ["ModernBertModel"], "max_position_embeddings": 8192},
    "tokenizer.json": {},
    "tokenizer_config.json": {"model_max_length": 8000},
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    },
    "config_sentence_transformers.json": {
        "model_type": "CrossEncoder",
        "activation_fn": "torch.nn.modules.activation.Sigmoid",
        "prompts": {},
        "default_prompt_name": None,
    },
    "modules.json": [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
        for index, (path, kind) in enumerate(TYPES.items())
    ],
    "1_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": "cls", "include_prompt": True},
    "2_Dense/config.json": DENSE | {"bias": False, "activation_function": "torch.nn.modules.activation.GELU"},
    "3_LayerNorm/config.json": {"dimension": 8},
    "4_Dense/config.json": DENSE
    | {"out_features": 1, "activation_function": "torch.nn.modules.linear.Identity", "module_output_name": "scores"},
}
WEIGHTS = tuple(f"{folder}model.safetensors" for folder in ("", "2_Dense/", "3_LayerNorm/", "4_Dense/"))

Write = Callable[..., Path]


@pytest.fixture
def layout(tmp_path: Path) -> Write:
    """Write Ettin's layout, with some fields of some files changed; a file that is None is left out."""

    def written(changes: dict[str, Any]) -> Path:
        for name, content in {**FILES, **dict.fromkeys(WEIGHTS, "")}.items():
            change = changes.get(name, {})
            if change is not None:
                merged = {**content, **change} if isinstance(content, dict) else change or content
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_text(json.dumps(merged), "utf-8")
        return tmp_path

    return written


def modules(*types: str, paths: tuple[str, ...] = ("", "1_Pooling", "2_Dense")) -> list[dict[str, str]]:
    return [{"path": path, "type": kind} for path, kind in zip(paths, types, strict=False)]


def test_ettins_layout_is_read(layout: Write) -> None:
    directory = layout({})
    described = read_cross_encoder(directory)
    assert described is not None
    steps = (
        HeadStep("dense", "2_Dense.linear", "gelu", has_bias=False),
        HeadStep("norm", "3_LayerNorm.norm"),
        HeadStep("dense", "4_Dense.linear"),
    )
    assert (described.head, described.labels, described.max_tokens) == (Head(steps, ("cls",)), 1, 8000)
    assert list_parameter_files(directory) == list(WEIGHTS)
    (directory / "onnx").mkdir()
    (directory / "onnx" / "model.onnx").write_bytes(b"")  # a graph of others is not taken
    card = read_card(directory)
    assert (card.head, card.max_tokens, card.query_prefix, card.onnx) == ("logit1", 8000, "", {})


def test_older_fields_of_pooling_and_limits_are_read(layout: Write) -> None:
    older = {"pooling_mode": None, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    limits = {"max_seq_length": 300, "processing_kwargs": {"text": {"max_length": 200}}}
    described = read_cross_encoder(layout({"1_Pooling/config.json": older, "sentence_bert_config.json": limits}))
    assert described is not None
    assert described.head is not None
    assert (described.head.pooling, described.max_tokens) == (("mean",), 200)


def test_a_bi_encoder_has_no_description_of_a_cross_encoder(layout: Write) -> None:
    directory = layout({"config_sentence_transformers.json": {"model_type": "SentenceTransformer"}})
    assert read_cross_encoder(directory) is None
    with pytest.raises(ModelLoadError, match="module_output_name is 'scores'; here it must be 'sentence_embedding'"):
        read_card(directory)


LIBRARY = "sentence_transformers.base.modules."
BERT = "sentence_bert_config.json"
TRANSFORMER, POOLING = f"{LIBRARY}transformer.Transformer", "sentence_transformers.models.Pooling"


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("modules.json", modules(TRANSFORMER, POOLING, "my_module.Dense"), "module 2 has the type 'my_module.Dense'"),
        ("modules.json", modules(TRANSFORMER, POOLING, f"{LIBRARY}router.Router"), "module 2 has the type .*Router"),
        (
            "modules.json",
            modules(TRANSFORMER, f"{LIBRARY}dense.Dense", paths=("", "2_Dense")),
            "there must be one Pooling",
        ),
        (
            "modules.json",
            modules(TRANSFORMER, POOLING),
            "the last module is a Pooling; it must be a Dense, which computes the scores",
        ),
        ("modules.json", modules(TRANSFORMER, paths=("0_Transformer",)), "the path '0_Transformer'"),
        ("modules.json", modules(TRANSFORMER, POOLING, paths=("", "../1_Pooling")), "the path '../1_Pooling'"),
        (BERT, {"transformer_task": "sequence-classification", "modality_config": {}}, r"modules\.json lists 5"),
        ("modules.json", [{"idx": 0}], "module 0 needs a type and a path: 'type' is missing"),
        ("1_Pooling/config.json", {"pooling_mode": "mean_sqrt_len_tokens"}, "pooling_mode is 'mean_sqrt_len_tokens'"),
        ("1_Pooling/config.json", {"pooling_mode": None, "pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.PReLU"}, "activation_function is"),
        ("2_Dense/config.json", {"activation_function": "evil.GELU"}, "runs no other code"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ("4_Dense/config.json", {"module_output_name": None}, "module_output_name is 'sentence_embedding'"),
        ("4_Dense/config.json", {"out_features": 3}, "has 3 labels"),
        ("4_Dense/config.json", None, "is missing"),
        ("4_Dense/model.safetensors", None, "safe_serialization=True"),
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.Tanh"}, "activation_fn is 'torch.nn.Tanh'"),
        ("config_sentence_transformers.json", {"default_prompt_name": "rank"}, "default_prompt_name is 'rank'"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "transformer_task is 'text-generation'"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is true"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"truncation": False}}},
            "processing_kwargs has 'truncation'",
        ),
        (
            BERT,
            {"modality_config": {"text": {"method_output_name": ["hidden", 3]}}},
            "selects the model's output .'hidden', 3.",
        ),
        ("config.json", {"auto_map": {}}, "auto_map requires the model's own Python code"),
        ("config.json", {"model_type": "longformer"}, "model_type is 'longformer'"),
    ],
)
def test_unknown_fields_of_a_modular_cross_encoder_are_refused_by_file_and_field(
    layout: Write, file: str, change: Any, reason: str
) -> None:
    directory = layout({file: change})
    with pytest.raises(ModelLoadError, match=reason) as caught:
        read_card(directory)
    refused_file = {"out_features": "config.json"}.get(
        next(iter(change or {}), "") if isinstance(change, dict) else "", file
    )
    assert str(directory / refused_file) in str(caught.value)
    assert caught.value.path == str(directory / refused_file)


def test_a_prompt_that_pooling_leaves_out_is_refused(layout: Write) -> None:
    prompt = {"prompts": {"rank": "find: "}, "default_prompt_name": "rank"}
    directory = layout(
        {"config_sentence_transformers.json": prompt, "1_Pooling/config.json": {"include_prompt": False}}
    )
    with pytest.raises(ModelLoadError, match=r"1_Pooling/config\.json: include_prompt is false"):
        read_card(directory)
