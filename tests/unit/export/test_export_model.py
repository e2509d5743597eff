import json
import math
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from osrerank.cli import main
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError
from osrerank.export import export_model as module
from osrerank.export.export_model import ExportOptions, export_model, new_directory, write_card
from osrerank.export.quantise import Recipe, quantise, quantise_rows
from osrerank.scoring.card import Calibration, CrossBias
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_scorer
from tests import servers

DATA = Path(__file__).parents[2] / "data"
BI_ENCODER = DATA / "tiny-bert-cross-bias"
CLASSIFIER = DATA / "tiny-bert-one-label"
DOCUMENTS = ["low blood pressure", "the wing of the engine", "", "heat " * 60]
TUPLES = [(index,) for index in range(4)]
PAIRS = list(permutations(range(4), 2))


@pytest.fixture(autouse=True)
def _exporter() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")


def values(directory: Path) -> np.ndarray:
    return load_scorer(str(directory), backend="onnx", threads=1).score("low pressure", DOCUMENTS, TUPLES).values


@pytest.mark.long
def test_a_classifier_becomes_a_directory_of_ours(tmp_path: Path) -> None:
    card = export_model(CLASSIFIER, tmp_path / "made")
    assert card.name == "made"
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()) == [
        "made/config.json",
        "made/onnx/model.onnx",
        "made/osrerank.json",
        "made/tokenizer.json",
    ]
    np.testing.assert_allclose(values(tmp_path / "made"), values(CLASSIFIER), atol=1e-5)


def test_int8_stays_near(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export_model(BI_ENCODER, tmp_path / "made", ExportOptions(layout="cross-bias", precision="int8"))
    scorer = load_scorer(str(tmp_path / "made"))
    assert "/int8/" in scorer.identity
    assert not caplog.records
    exact = values(BI_ENCODER)
    assert np.abs(values(tmp_path / "made") - exact).max() < 0.25 * np.ptp(exact)


def pairs_of(directory: Path) -> np.ndarray:
    scorer = load_scorer(str(directory), backend="onnx", threads=1, kind="duo")
    return scorer.score("low pressure", DOCUMENTS, PAIRS).values


def test_a_bi_encoder_becomes_a_duo_model(tmp_path: Path) -> None:
    options = ExportOptions(kind="duo", layout="cross-bias", other_bias="closed")
    card = export_model(BI_ENCODER, tmp_path / "made", options)
    assert (card.kind, card.layout, card.head, card.segment_rows) == ("duo", "cross-bias", "cosine", 2)
    assert card.cross_bias == CrossBias(-2.0 - math.log(2), "closed", 20.0, other="closed")
    assert json.loads((tmp_path / "made" / "config.json").read_bytes())["type_vocab_size"] == 2
    assert not (tmp_path / "made" / "model.safetensors").exists()
    found = pairs_of(tmp_path / "made")
    back = dict(zip(PAIRS, found, strict=True))
    np.testing.assert_allclose(found, [-back[j, i] for i, j in PAIRS], atol=2e-5)


def test_int8_pairs_stay_near(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ExportOptions(kind="duo", layout="cross-bias")
    for precision in ("fp32", "int8"):
        export_model(BI_ENCODER, tmp_path / precision, replace(options, precision=precision))
    assert not caplog.records
    exact, coarse = pairs_of(tmp_path / "fp32"), pairs_of(tmp_path / "int8")
    assert 0 < np.abs(coarse - exact).max() < 0.25 * np.ptp(exact)


def test_a_mono_model_of_the_layout_becomes_a_duo_model_with_its_biases(tmp_path: Path) -> None:
    mono = ExportOptions(layout="cross-bias", query_bias=-1.0, first_pass_weight=7.0, keep_weights=True)
    export_model(BI_ENCODER, tmp_path / "mono", mono)
    card = export_model(tmp_path / "mono", tmp_path / "duo", ExportOptions(kind="duo", other_bias=-3.0))
    assert card.cross_bias == CrossBias(-1.0 - math.log(2), "closed", 20.0, other=-3.0)
    assert (card.kind, card.segment_rows, card.first_pass_weight) == ("duo", 2, 0.0)
    same = ExportOptions(kind="duo", layout="cross-bias", query_bias=-1.0, other_bias=-3.0)
    export_model(BI_ENCODER, tmp_path / "same", same)
    np.testing.assert_array_equal(pairs_of(tmp_path / "duo"), pairs_of(tmp_path / "same"))


def test_texts_are_pooled_as_asked(tmp_path: Path) -> None:
    mono = ExportOptions(layout="cross-bias", keep_weights=True)
    export_model(BI_ENCODER, tmp_path / "whole", mono)
    measured = {"seed": 1, "measures": {"nDCG@10": 0.5}}
    whole = replace(read_card(tmp_path / "whole"), calibration=Calibration(2.0, 1.0), provenance=measured)
    write_card(tmp_path / "whole", whole)
    arguments = ["--pool-factor", "2.5", "--keep-weights"]
    main(["export", str(tmp_path / "whole"), str(tmp_path / "pooled"), *arguments])
    pooled = read_card(tmp_path / "pooled")
    assert pooled.cross_bias == replace(whole.cross_bias, pool_factor=2.5)
    assert (pooled.calibration, pooled.provenance) == (Calibration(), {"seed": 1})
    own = export_model(tmp_path / "pooled", tmp_path / "own")
    assert own.cross_bias == pooled.cross_bias
    back = export_model(tmp_path / "pooled", tmp_path / "back", ExportOptions(pool_factor=1.0))
    assert back.cross_bias == whole.cross_bias
    found = {name: values(tmp_path / name) for name in ("whole", "pooled", "own", "back")}
    np.testing.assert_array_equal(found["own"], found["pooled"])
    np.testing.assert_allclose(found["whole"], 2 * found["back"] + 1, rtol=1e-6)
    assert np.abs(found["pooled"] - found["back"]).max() > 1e-3
    with pytest.raises(ConfigError, match="only models of the layout cross-bias can pool texts"):
        export_model(CLASSIFIER, tmp_path / "other", ExportOptions(pool_factor=2.0))
    for factor in (0.5, math.inf):
        with pytest.raises(ConfigError, match=f"pool_factor is {factor}; it must be 1 or above"):
            export_model(tmp_path / "whole", tmp_path / "other", ExportOptions(pool_factor=factor))


def test_a_padded_graph_of_pairs(tmp_path: Path) -> None:
    drawn = ExportOptions(kind="duo", layout="cross-bias")
    export_model(BI_ENCODER, tmp_path / "drawn", drawn)
    export_model(BI_ENCODER, tmp_path / "padded", replace(drawn, padded=True))
    np.testing.assert_allclose(pairs_of(tmp_path / "padded"), pairs_of(tmp_path / "drawn"), atol=1e-4)


def test_the_command_makes_a_duo_model_of_a_bi_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kind", "duo", "--layout", "cross-bias", "--other-bias", "-1.5", "--precision", "int8"]
    main(["export", str(BI_ENCODER), str(tmp_path / "duo"), *arguments])
    assert "duo model, cross-bias layout, cosine head" in capsys.readouterr().out
    assert load_scorer(str(tmp_path / "duo"), kind="duo").card.cross_bias.other == -1.5


def test_the_script_makes_the_committed_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import make_tiny_bert

    make_tiny_bert.make(tmp_path / "tiny-bert-cross-bias", "cross-bias")
    made, committed = (
        load_scorer(str(folder / "tiny-bert-cross-bias"), backend="torch") for folder in (tmp_path, DATA)
    )
    found, expected = (scorer.score("low", DOCUMENTS, TUPLES).values for scorer in (made, committed))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("step", ["_copy_descriptions", "write_graphs", "write_card"])
def test_an_interrupted_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupt(*_: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_model(CLASSIFIER, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(ConfigError, match="exists; name"), new_directory(tmp_path / "made"):
        pytest.fail("entered")


def test_a_classifier_is_no_bi_encoder_of_another_family(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "electra"}')
    with pytest.raises(ModelLoadError, match="needs bert"):
        export_model(source, tmp_path / "made", ExportOptions(layout="cross-bias"))


@pytest.mark.parametrize(
    ("layout", "reason"), [("cross-bias", r"embeddings\.word_embeddings"), ("standard", "lacks weights")]
)
def test_weights_that_are_missing_are_named(tmp_path: Path, layout: str, reason: str) -> None:
    from safetensors.numpy import save_file

    source = tmp_path / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_bytes((CLASSIFIER / name).read_bytes())
    save_file({"bert.pooler.dense.bias": np.zeros(32, dtype=np.float32)}, source / "model.safetensors")
    with pytest.raises(ModelLoadError, match=reason):
        export_model(source, tmp_path / "made", ExportOptions(layout=layout))
    assert not (tmp_path / "made").exists()


def test_without_torch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"osrerank\[onnx\]"):
        export_model(CLASSIFIER, tmp_path / "made")


def test_rows_have_scales_of_their_own() -> None:
    table = np.array([[1.27, -0.5], [0.0, 0.0], [1e-4, -1e-4]], dtype=np.float32)
    rows, scales = quantise_rows(table)
    assert rows.tolist() == [[127, -50], [0, 0], [127, -127]]
    assert np.abs(rows * scales - table).max() <= scales.max() / 2


def test_large_tables_are_quantised_and_small_ones_kept(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    sizes = {"words": (2000, 8), "positions": (512, 8), "segments": (2, 8)}
    tables = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    outputs = {"word": ["n", 8], "position": ["k", 8], "segment": ["n", 8]}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["words", "ids"], ["word"]),
            helper.make_node("Slice", ["positions", "from", "to"], ["position"]),
            helper.make_node("Gather", ["segments", "kinds"], ["segment"]),
        ],
        "lookup",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape)
            for name, shape in {"ids": ["n"], "kinds": ["n"], "to": [1]}.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(table, name) for name, table in {**tables, "from": np.array([0])}.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "fp32.onnx"
    )
    quantise(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", Recipe())
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "int8.onnx"), providers=["CPUExecutionProvider"])
    ids, kinds = np.array([0, 1999, 7]), np.array([0, 1, 1])
    words, positions, segments = session.run(None, {"ids": ids, "kinds": kinds, "to": np.array([9])})
    for found, table in ((words, tables["words"][ids]), (positions, tables["positions"][:9])):
        assert found.shape == table.shape
        assert np.abs(found - table).max() <= np.abs(table).max() / 127 / 2 + 1e-6
    assert (segments == tables["segments"][kinds]).all()
    assert (tmp_path / "int8.onnx").stat().st_size < (tmp_path / "fp32.onnx").stat().st_size / 2


def test_the_command_exports_and_calibrates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"doc_id": str(index), "text": text} for index, text in enumerate(DOCUMENTS)]
    (tmp_path / "c.jsonl").write_text(json.dumps({"query_id": "1", "query": "low pressure", "candidates": entries}))
    closed = tmp_path / "closed"
    arguments = [
        "export",
        str(BI_ENCODER),
        str(closed),
        "--layout",
        "cross-bias",
        "--query-bias",
        "closed",
        "--no-self-check",
    ]
    best = str(int(np.argmax(values(BI_ENCODER))))
    (tmp_path / "qrels").write_text(f"1 0 {best} 1\n")
    main([*arguments, "--calibrate", str(tmp_path / "c.jsonl"), str(tmp_path / "qrels")])
    assert "cross-bias layout, cosine head, logit = " in capsys.readouterr().out
    card = load_scorer(str(closed)).card
    assert card.cross_bias.query == "closed"
    assert card.calibration.scale not in {0.0, 1.0}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--query-bias", "wide"], "neither a number nor 'closed'"),
        (["--precision", "int4"], "int4"),
        (["--calibrate", "none.jsonl", "none.qrels"], "none.jsonl"),
    ],
)
def test_bad_options_are_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(BI_ENCODER), str(tmp_path / "made"), *arguments])
    assert stopped.value.code == 2
    assert reason in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from osrerank.cli import main\n"
        "try: main(['export', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=servers.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
