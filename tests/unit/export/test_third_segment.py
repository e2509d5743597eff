"""A duo model's third segment, which is made from a checkpoint with two segments."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.export.third_segment import add_third_row
from osrerank.scoring.card_file import read_card
from osrerank.scoring.registry import load_scorer

DATA = Path(__file__).parents[2] / "data"
TWO_ROWS = DATA / "tiny-bert-two-labels"
DOCUMENTS = ["low blood pressure", "the wing of the engine", "", "heat " * 300]
PAIRS = [(i, j) for i in range(4) for j in range(4) if i != j]


def test_the_third_segments_embedding_by_hand():
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert add_third_row(table, "zeros").tolist() == [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]
    assert add_third_row(table, "copy").tolist() == [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    with pytest.raises(ValueError, match="has 3 rows"):
        add_third_row(add_third_row(table, "zeros"), "zeros")


def reference(start):
    """Score pairs with transformers' forward; segment 2 gets what the one-hot lookup, or a copy, gives."""
    from transformers import BertForSequenceClassification

    network = BertForSequenceClassification.from_pretrained(TWO_ROWS).eval()
    builder = load_scorer(str(DATA / "tiny-bert-duo"), backend="onnx")._builder
    table = network.bert.embeddings.token_type_embeddings
    rows = table.weight.detach()
    one_hot = torch.nn.functional.one_hot if start == "zeros" else None

    class Lookup(torch.nn.Module):
        def forward(self, segments):
            if one_hot is None:
                return rows[segments.clamp(max=1)]
            return (one_hot(segments, 3)[..., :2].float() @ rows).reshape(*segments.shape, -1)

    network.bert.embeddings.token_type_embeddings = Lookup()
    query = builder.tokenise_query("low pressure")
    texts = builder.tokenise_documents(DOCUMENTS, query)
    values = []
    for first, second in PAIRS:
        tokens = builder.build_duo(query, texts[first], texts[second])
        with torch.inference_mode():
            ids, segments = (torch.from_numpy(one)[None] for one in (tokens.ids, tokens.segments))
            logits = network(input_ids=ids, token_type_ids=segments).logits[0]
        values.append(float(logits[1] - logits[0]))
    return values


@pytest.mark.parametrize("start", ["zeros", "copy"])
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_checkpoint_of_two_segments_becomes_a_duo_model(tmp_path, start, backend):
    options = ExportOptions(kind="duo", third_segment=start, keep_weights=True)
    card = export_model(TWO_ROWS, tmp_path / "duo", options)
    assert (card.kind, card.segment_rows) == ("duo", 3)
    assert read_card(tmp_path / "duo") == card
    assert json.loads((tmp_path / "duo" / "config.json").read_text())["type_vocab_size"] == 3
    scores = load_scorer(str(tmp_path / "duo"), backend=backend, kinds=("duo",)).score("low pressure", DOCUMENTS, PAIRS)
    np.testing.assert_allclose(scores.values, reference(start), atol=1e-4, rtol=0)


def test_models_that_cannot_become_a_duo_model_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="judgments cannot calibrate it"):
        export_model(TWO_ROWS, tmp_path / "x", ExportOptions(kind="duo"), development_set=(tmp_path, tmp_path))
    copy = tmp_path / "no-table"
    shutil.copytree(TWO_ROWS, copy)
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "token_type" not in k}, copy / "model.safetensors")
    with pytest.raises(ModelLoadError, match="has 0 token type tables of two rows"):
        export_model(copy, tmp_path / "x", ExportOptions(kind="duo"))
    assert not (tmp_path / "x").exists()
