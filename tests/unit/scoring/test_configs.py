"""What a config leaves out has transformers' value, whoever reads it."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from osrerank.cli import main
from osrerank.scoring.model_files import DEFAULTS, read_card
from osrerank.scoring.registry import load_scorer

transformers = pytest.importorskip("transformers")
pytest.importorskip("onnx")

DATA = Path(__file__).parents[2] / "data"
NEEDED = {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "model_type"}
"""Keys without which the tiny model is another, and the key by which defaults are chosen."""
BERT = DATA / "tiny-bert-two-labels"
KEYS = sorted(set(json.loads((BERT / "config.json").read_text())) - NEEDED - {"architectures"})


def scores(model: Path, backend: str) -> np.ndarray:
    with closing(load_scorer(str(model), backend=backend, threads=1)) as scorer:
        return scorer.score("low pressure", ["the wing of the engine", "heat flow"], [(0,), (1,)]).values


@pytest.mark.parametrize("family", DEFAULTS)
def test_the_defaults_are_those_of_transformers(family: str) -> None:
    theirs = transformers.AutoConfig.for_model(family)
    assert dict(DEFAULTS[family]) == {name: getattr(theirs, name) for name in DEFAULTS[family]}


@pytest.mark.long
@pytest.mark.parametrize("key", [*KEYS, "all"])
def test_a_model_whose_config_lacks_a_key_scores_as_before_in_both_backends(tmp_path: Path, key: str) -> None:
    source = shutil.copytree(BERT, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    lacking = KEYS if key == "all" else [key]
    (source / "config.json").write_text(json.dumps({name: config[name] for name in config if name not in lacking}))
    main(["export", str(source), str(tmp_path / "made"), "--no-self-check", "--keep-weights"])
    assert (read_card(source).segment_rows, read_card(source).max_tokens) == (2, 512)
    expected = scores(BERT, "torch")
    for model, backend in ((source, "torch"), (tmp_path / "made", "torch"), (tmp_path / "made", "onnx")):
        np.testing.assert_allclose(scores(model, backend), expected, atol=1e-5, err_msg=f"{model.name} {backend}")


@pytest.mark.long
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "electra", "modernbert"])
def test_other_families_too(tmp_path: Path, family: str) -> None:
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    vocabulary = max(300, DEFAULTS[family]["pad_token_id"] + 1)
    made = transformers.AutoConfig.for_model(family, vocab_size=vocabulary, num_labels=2, **small)
    network = transformers.AutoModelForSequenceClassification.from_config(made)
    network.save_pretrained(tmp_path / "whole")
    shutil.copy(BERT / "tokenizer.json", tmp_path / "whole")
    lacking = shutil.copytree(tmp_path / "whole", tmp_path / "lacking")
    kept = {**small, "vocab_size": vocabulary, "model_type": family, "architectures": [type(network).__name__]}
    (lacking / "config.json").write_text(json.dumps(kept))
    expected = scores(tmp_path / "whole", "torch")
    main(["export", str(lacking), str(tmp_path / "made"), "--no-self-check"])
    for model, backend in ((lacking, "torch"), (tmp_path / "made", "onnx")):
        np.testing.assert_allclose(scores(model, backend), expected, atol=1e-4, err_msg=backend)
