"""Late interaction: each token's vector is what sentence-transformers 6.2 and PyLate 1.6 compute, and so is MaxSim."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.late_interaction import LateInteraction
from osrerank.scoring.model_files import read_config
from osrerank.scoring.registry import load_model
from osrerank.types import Deadline
from tests.late_interaction import DOCUMENTS, NAMES, QUERIES, computed, exported, in_order


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each model is exported once."""
    made = tmp_path_factory.mktemp("late")
    for name in NAMES:
        exported(name, made)
    return made


@pytest.fixture(params=["onnx", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(directory: Path, backend: str = "onnx") -> LateInteraction:
    model = load_model(str(directory), backend=backend)
    assert isinstance(model, LateInteraction)
    return model


@pytest.fixture
def expanded(folder: Path) -> Iterator[LateInteraction]:
    with closing(opened(folder / "expanded")) as model:
        yield model


def scores_of(model: LateInteraction) -> np.ndarray:
    """MaxSim of each query and document, as the libraries have it: a sum."""
    documents = model.encode(DOCUMENTS, "document").rows
    scale, offset = model.card.calibration.scale, model.card.calibration.offset
    rows = model.encode(QUERIES, "query").rows
    return np.array([(model.similarity(row, documents) - offset) / scale * len(row) for row in rows])


@pytest.mark.parametrize("name", NAMES)
def test_token_vectors_and_maxsim_equal_those_of_the_libraries(folder: Path, name: str, backend: str) -> None:
    theirs = computed(name)
    with closing(opened(folder / name, backend)) as model:
        for side, texts in (("query", QUERIES), ("document", DOCUMENTS)):
            for index, rows in enumerate(model.encode(texts, side).rows):
                pair = rows, theirs[f"{side}{index}"]
                if name == "pooled" and side == "document":
                    pair = in_order(pair[0]), in_order(pair[1])
                np.testing.assert_allclose(*pair, atol=1e-4)
        np.testing.assert_allclose(scores_of(model), theirs["scores"], atol=1e-4)


@pytest.mark.parametrize("name", ["pylate", "stanford"])
def test_pooled_token_vectors_equal_those_of_pylate(tmp_path: Path, name: str) -> None:
    """PyLate leaves the means of clusters as they are; ours have norm 1."""
    theirs = computed(name)
    with closing(opened(exported(name, tmp_path, pool_factor=2))) as model:
        for index, rows in enumerate(model.encode(DOCUMENTS, "document").rows):
            means = theirs[f"pooled{index}"]
            expected = means / np.linalg.norm(means, axis=1, keepdims=True)
            np.testing.assert_allclose(in_order(rows), in_order(expected), atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_token_vectors_in_int8_are_near_fp32(tmp_path: Path, name: str) -> None:
    """A random network of 32 numbers is the hardest case: the mean cosine of a query differs by less than .03."""
    with closing(opened(exported(name, tmp_path, precision="int8"))) as model:
        lengths = [len(row) for row in model.encode(QUERIES, "query").rows]
        errors = np.abs(scores_of(model) - computed(name)["scores"]) / np.array(lengths)[:, None]
        assert model.backend.precision == "int8"
        assert errors.max() < 0.03


@pytest.mark.parametrize("name", ["expanded", "modern"])
def test_late_interaction_without_padding_gives_the_same_vectors(folder: Path, name: str) -> None:
    """With a stand-in for CUDA's kernel, and texts and queries in one batch."""
    torch = pytest.importorskip("torch")
    from osrerank.scoring.backends.networks.attention import PackedAttention
    from osrerank.scoring.backends.networks.engine import TokenVectorEngine
    from osrerank.scoring.backends.networks.load import load_packed
    from osrerank.scoring.backends.torch import read_weights
    from tests.varlen import Varlen

    directory = folder / name
    options = {"attention": PackedAttention(Varlen()), "dtype": torch.float32}
    network = load_packed(read_weights(directory), read_config(directory), read_card(directory), **options)
    engine, draw = TokenVectorEngine(network, torch.device("cpu")), np.random.default_rng(5)
    texts = [(16, 9), (16, 0), (16, 12)] if name == "modern" else [(16, 9), (48, 0), (3, 0), (16, 12)]
    drawn = (
        (draw.integers(4, 278, size=length), np.zeros(length, dtype=np.int64), later_texts)
        for length, later_texts in texts
    )
    sequences = [Tokens(*text) for text in drawn]
    with closing(opened(directory)) as model:
        for ours, expected in zip(engine(sequences), model.backend.run(sequences), strict=True):
            np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_late_interaction_marks_cut_texts_and_reads_markers_as_text(
    expanded: LateInteraction,
) -> None:
    assert expanded.encode(QUERIES, "query").cut == {2}
    assert expanded.encode(DOCUMENTS, "document").cut == {1}
    rows = expanded.encode(["[D] a wing", "[MASK] a wing", "a wing"], "document").rows
    assert [len(row) for row in rows] == [8, 11, 5]  # the tokenizer divides "[d]" into three pieces, "[mask]" into six
    late = expanded.encode(DOCUMENTS, "document", deadline=Deadline.after_ms(0))
    assert not any(np.isfinite(rows).any() for rows in late.rows)
    assert late.failures == {}


def test_a_documents_vectors_do_not_depend_on_its_neighbours(folder: Path, backend: str) -> None:
    tolerance = 0 if backend == "onnx" else 1e-6
    with closing(opened(folder / "expanded", backend)) as model:
        together = model.encode(DOCUMENTS, "document").rows
        for text, rows in zip(DOCUMENTS, together, strict=True):
            np.testing.assert_allclose(model.encode([text], "document").rows[0], rows, atol=tolerance)


def test_backends_share_vector_keys_and_pooling_changes_them(folder: Path, tmp_path: Path) -> None:
    models = [opened(folder / "pylate", name) for name in ("onnx", "torch")]
    models.append(opened(exported("pylate", tmp_path, pool_factor=2)))
    keys, identities = [model.key for model in models], [model.identity for model in models]
    assert keys[0] == keys[1] != keys[2]
    assert identities[0] == identities[1] != identities[2]
    for model in models:
        model.close()


def test_a_late_interaction_model_without_safetensors_is_read_from_its_graph(tmp_path: Path) -> None:
    directory = exported("expanded", tmp_path, keep_weights=False)
    with closing(opened(directory, "torch")) as model:
        np.testing.assert_allclose(scores_of(model), computed("expanded")["scores"], atol=1e-4)
