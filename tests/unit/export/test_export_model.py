"""Export of checkpoints to model directories: graphs, int8, failures, and the command `osrerank export`."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from osrerank.cli import main
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model, new_directory
from osrerank.export.quantise import quantise_rows
from osrerank.scoring.card import Pooling
from osrerank.scoring.card_file import read_card
from osrerank.scoring.registry import load_model, load_scorer

DATA = Path(__file__).parents[2] / "data"
BI_ENCODER = DATA / "tiny-bert-bi-encoder"
CLASSIFIER = DATA / "tiny-bert-one-label"
DOCUMENTS = ["low blood pressure", "the wing of the engine", "", "heat " * 60]
TUPLES = [(index,) for index in range(4)]


def values(directory: Path) -> np.ndarray:
    return load_scorer(str(directory), backend="onnx", threads=1).score("low pressure", DOCUMENTS, TUPLES).values


@pytest.mark.long
def test_a_classifier_is_exported_to_a_model_directory(tmp_path: Path) -> None:
    card = export_model(CLASSIFIER, tmp_path / "made")
    assert card.name == "made"
    files = {str(file.relative_to(tmp_path / "made")) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {"config.json", "onnx/model.onnx", "osrerank.json", "tokenizer.json"}
    np.testing.assert_allclose(values(tmp_path / "made"), values(CLASSIFIER), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("source", [BI_ENCODER, CLASSIFIER], ids=["bi-encoder", "classifier"])
def test_exported_int8_scores_are_near_fp32(tmp_path: Path, caplog: pytest.LogCaptureFixture, source: Path) -> None:
    export_model(source, tmp_path / "made", ExportOptions(precision="int8"))
    assert load_model(str(tmp_path / "made")).backend.precision == "int8"
    assert not caplog.records
    exact = values(source)
    assert np.abs(values(tmp_path / "made") - exact).max() < 0.25 * np.ptp(exact)


def test_a_bi_encoder_becomes_no_duo_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a bi-encoder; only a cross-encoder can become"):
        export_model(BI_ENCODER, tmp_path / "made", ExportOptions(kind="duo"))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    def export() -> None:
        with new_directory(tmp_path / "made") as folder:
            (folder / "config.json").write_text("{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export()
    assert list(tmp_path.iterdir()) == []


def test_export_leaves_an_existing_output_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(ConfigError, match="exists; choose"), new_directory(tmp_path / "made"):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("pooling", "reason"), [("cls", r"does not contain the weight .embeddings\."), (None, "lacks weights")]
)
def test_export_names_missing_weights(tmp_path: Path, pooling: Pooling | None, reason: str) -> None:
    from safetensors.numpy import save_file

    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_bytes((CLASSIFIER / name).read_bytes())
    save_file({"bert.pooler.dense.bias": np.zeros(32, dtype=np.float32)}, source / "model.safetensors")
    with pytest.raises(ModelLoadError, match=reason):
        export_model(source, tmp_path / "made", ExportOptions(pooling=pooling))
    assert not (tmp_path / "made").exists()


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"osrerank\[onnx\]"):
        export_model(CLASSIFIER, tmp_path / "made")


def test_int8_weights_have_a_scale_for_each_row() -> None:
    table = np.array([[1.27, -0.5], [0.0, 0.0], [1e-4, -1e-4]], dtype=np.float32)
    rows, scales = quantise_rows(table)
    assert rows.tolist() == [[127, -50], [0, 0], [127, -127]]
    assert np.abs(rows * scales - table).max() <= scales.max() / 2


def judged_files(folder: Path) -> list[str]:
    """Write candidates, and judgments by which the one that the model puts first is relevant; return the options."""
    best = int(np.argmax(values(CLASSIFIER)))
    entries = [{"doc_id": str(index), "text": text, "score": 9.0 - index} for index, text in enumerate(DOCUMENTS)]
    lines = [{"query_id": str(n), "query": "low pressure", "candidates": entries} for n in range(8)]
    (folder / "c.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "qrels").write_text("".join(f"{n} 0 {best} 1\n" for n in range(8)))
    return ["--candidates", str(folder / "c.jsonl"), "--qrels", str(folder / "qrels")]


def test_the_export_command_fits_the_card_to_judged_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", str(CLASSIFIER), str(tmp_path / "made"), "--no-self-check", *judged_files(tmp_path)])
    out = capsys.readouterr().out
    assert "first-pass weight 0: nDCG@10 1.0000, by cross-validation 1.0000" in out
    assert "cross-encoder with the head logit1, logit = " in out
    assert load_scorer(str(tmp_path / "made")).card.calibration.scale not in {0.0, 1.0}
    given = ["--first-pass-weight", "2", "--no-self-check", *judged_files(tmp_path)]
    main(["export", str(CLASSIFIER), str(tmp_path / "given"), *given])
    assert "first-pass weight" not in capsys.readouterr().out
    assert read_card(tmp_path / "given").first_pass_weight == 2.0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--precision", "int4"], "int4"),
        (["--candidates", "none.jsonl"], "none.jsonl"),
        (["--candidates", __file__], "--candidates and --qrels belong together"),
        (["--pooling", "sum"], "sum"),
    ],
)
def test_export_refuses_bad_options_as_bad_usage(tmp_path, capsys, arguments, reason):
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(BI_ENCODER), str(tmp_path / "made"), *arguments])
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err
