"""Late-interaction models as others save them: what is read, and what is refused by file and field."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osrerank.errors import ModelLoadError
from osrerank.scoring.modular.late_interaction import Projection, is_late_interaction, read_late_interaction
from osrerank.scoring.modular.token_vectors import TokenVectorSettings
from tests.late_interaction import NAMES, SAVED

PUNCTUATION = tuple("!\"#$%&'()*+,-./:;")


@pytest.fixture
def changed_model(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a saved model with some fields of a file set; None removes one."""

    def change(name: str, file: str, **fields: Any) -> Path:
        folder = tmp_path / name
        if not folder.exists():
            shutil.copytree(SAVED / name, folder)
        content = {**json.loads((folder / file).read_text("utf-8")), **fields}
        (folder / file).write_text(
            json.dumps({key: value for key, value in content.items() if value is not None}), "utf-8"
        )
        return folder

    return change


@pytest.mark.parametrize("name", NAMES)
def test_late_interaction_models_are_recognised(name: str) -> None:
    assert is_late_interaction(SAVED / name)
    assert not is_late_interaction(SAVED.parent / "tiny-bert-bi-encoder")
    assert not is_late_interaction(SAVED.parent / "tiny-bert-one-label")


def test_late_interaction_models_of_sentence_transformers_are_read() -> None:
    description = read_late_interaction(SAVED / "expanded")
    skipped = (".", ",", "!", ";", "(", ")", ":")
    assert description.tokens == TokenVectorSettings("[Q]", "[D]", "[MASK]", 16, skipped=skipped)
    assert (description.query_prefix, description.document_prefix) == (" ", " ")
    assert (description.max_query_tokens, description.max_document_tokens, description.dimensions) == (16, 48, 16)
    assert description.projections == (Projection("1_Dense/model.safetensors"),)


def test_text_prompts_residual_layers_and_pooling_are_read() -> None:
    description = read_late_interaction(SAVED / "pooled")
    tokens = TokenVectorSettings(expansion="[MASK]", expanded_to=8, attends_to_expansion=True, pool_factor=2)
    assert description.tokens == tokens
    assert (description.query_prefix, description.document_prefix) == ("the query ", "the document ")
    assert (description.max_query_tokens, description.max_document_tokens) == (24, 40)
    assert [module.residual for module in description.projections] == ["residual", "residual"]


def test_late_interaction_models_of_pylate_are_read() -> None:
    description = read_late_interaction(SAVED / "pylate")
    assert (description.tokens.query_marker, description.tokens.document_marker) == ("[Q] ", "[D] ")
    assert (description.tokens.expansion, description.tokens.expanded_to, description.max_document_tokens) == (
        "[MASK]",
        16,
        40,
    )
    assert description.tokens.skipped[: len(PUNCTUATION)] == PUNCTUATION
    assert description.tokens.hides_expansion


def test_late_interaction_models_of_stanford_are_read() -> None:
    description = read_late_interaction(SAVED / "stanford")
    assert (description.tokens.query_marker, description.tokens.document_marker) == ("[unused0]", "[unused1]")
    assert (description.max_query_tokens, description.max_document_tokens, description.dimensions) == (20, 44, 16)
    assert description.projections == (Projection("model.safetensors"),)
    assert description.tokens.skipped[: len(PUNCTUATION)] == PUNCTUATION


def test_without_metadata_lengths_and_markers_are_the_libraries_own(changed_model: Callable[..., Path]) -> None:
    (changed_model("stanford", "config.json") / "artifact.metadata").unlink()
    names = ("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words")
    changed_model("pylate", MODEL, **dict.fromkeys(names), do_query_expansion=False)
    for name, marker in (("stanford", "[unused0]"), ("pylate", "[Q] ")):
        description = read_late_interaction(changed_model(name, "config.json"))
        assert (description.max_query_tokens, description.max_document_tokens) == (32, 180)
        assert description.tokens.query_marker == marker
        assert description.tokens.skipped[: len(PUNCTUATION)] == PUNCTUATION
    assert description.tokens.expanded_to == 0  # without expansion queries are not filled


def test_a_prompt_behind_a_marker_stays_text(changed_model: Callable[..., Path]) -> None:
    prompts = {"query": "[Q] search for ", "document": ""}
    folder = changed_model("expanded", "config_sentence_transformers.json", prompts=prompts)
    description = read_late_interaction(folder)
    assert (description.tokens.query_marker, description.query_prefix) == ("[Q]", " search for ")
    assert (description.tokens.document_marker, description.document_prefix) == ("", "")


MODEL, DENSE = "config_sentence_transformers.json", "1_Dense/config.json"
MASK, NORMAL, POOLING = (
    f"{folder}/config.json" for folder in ("2_MultiVectorMask", "3_Normalize", "5_HierarchicalTokenPooling")
)


@pytest.mark.parametrize(
    ("name", "file", "fields", "reason"),
    [
        ("expanded", MODEL, {"similarity_fn_name": "xtr"}, "similarity_fn_name is 'xtr'"),
        ("expanded", DENSE, {"bias": True}, "bias is True"),
        ("expanded", DENSE, {"activation_function": "torch.nn.modules.activation.Tanh"}, "function is 'Tanh'"),
        ("expanded", DENSE, {"module_input_name": "sentence_embedding"}, "module_input_name is 'sentence_embedding'"),
        ("expanded", DENSE, {"rank": 4}, "rank is 4"),
        ("expanded", MASK, {"skiplist_tasks": ["query"]}, "skiplist_tasks is ['query']"),
        ("expanded", MASK, {"keep_only_token_ids": [7]}, "keep_only_token_ids is [7]"),
        ("expanded", NORMAL, {"module_input_name": "sentence_embedding"}, "module_input_name is 'sentence_embedding'"),
        ("expanded", "sentence_bert_config.json", {"query_expansion": {"strategy": "new", "length": 9}}, "'new'"),
        ("expanded", "sentence_bert_config.json", {"query_expansion": {"length": 9, "weight": 2}}, "weight is 2"),
        ("expanded", "sentence_bert_config.json", {"unheard_of": 1}, "unheard_of is 1"),
        ("pooled", POOLING, {"normalize_embeddings": None}, "normalize_embeddings is False"),
        ("pooled", POOLING, {"num_protected_tokens": 2}, "num_protected_tokens is 2"),
        ("pooled", POOLING, {"tasks": ["query", "document"]}, "tasks is ['query', 'document']"),
        ("pylate", MODEL, {"query_prefix": "[Query] "}, "query_prefix is '[Query] '"),
        ("stanford", "artifact.metadata", {"similarity": "l2"}, "similarity is 'l2'"),
        ("stanford", "artifact.metadata", {"doc_token_id": "[unused7]"}, "doc_token_id is '[unused7]'"),
    ],
)
def test_unknown_fields_of_a_late_interaction_model_are_refused(
    changed_model: Callable[..., Path], name: str, file: str, fields: dict[str, Any], reason: str
) -> None:
    folder = changed_model(name, file, **fields)
    with pytest.raises(ModelLoadError, match=re.escape(reason)) as caught:
        read_late_interaction(folder)
    assert str(folder / file) in str(caught.value)


def test_late_interaction_modules_that_are_missing_unknown_or_misplaced_are_refused(
    changed_model: Callable[..., Path],
) -> None:
    listed = json.loads((SAVED / "pooled" / "modules.json").read_text("utf-8"))
    folder = changed_model("pooled", MODEL)
    for modules, reason in (
        ([module for module in listed if "Mask" not in module["type"]], "0 modules have the type MultiVectorMask"),
        ([*listed[:-2], listed[-1], listed[-2]], "must be the last module, but Normalize is the last"),
        ([*listed, {**listed[-1], "type": "sentence_transformers.base.modules.router.Router"}], "router.Router"),
        ([listed[0], {**listed[1], "type": "somebody.Dense"}], "somebody.Dense"),
    ):
        (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
        with pytest.raises(ModelLoadError, match=re.escape(reason)):
            read_late_interaction(folder)


def test_a_late_interaction_model_without_its_expansion_token_is_refused(changed_model: Callable[..., Path]) -> None:
    folder = changed_model("expanded", "tokenizer_config.json", mask_token="<fill>")
    with pytest.raises(ModelLoadError, match="the tokenizer does not contain '<fill>'"):
        read_late_interaction(folder)
