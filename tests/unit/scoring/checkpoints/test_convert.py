"""Checkpoints as transformers saved them years ago, Birch's and Google's, give the logits that they gave."""

import json
import os
import pickle
import shlex
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.scoring.card_file import read_card
from osrerank.scoring.checkpoints import pickled
from osrerank.scoring.checkpoints.convert import ConvertedModel, HeadForm, cache_folder, convert_if_needed
from osrerank.scoring.locate import locate
from osrerank.scoring.registry import load_scorer

torch = pytest.importorskip("torch")

from tests import checkpoints  # noqa: E402 - imports torch

QUERY, TEXT = "what causes low blood pressure", "blood pressure is low when water and heat flow over the wing !"
PICKLE, SHARD = "pytorch_model.bin", "pytorch_model-00001-of-00002.bin"
GOOGLE = Path(__file__).parents[3] / "data" / "tiny-bert-tensorflow"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def logits(directory: Path) -> np.ndarray:
    """Return a model's raw outputs, by a network that was loaded from a directory of safetensors."""
    from osrerank.scoring.backends.torch import load_network
    from osrerank.scoring.inputs import InputBuilder

    card = read_card(directory)
    builder = InputBuilder.load(directory, card)
    query = builder.tokenise_query(QUERY)
    (document,) = builder.tokenise_documents([TEXT], query)
    tokens = builder.build_mono(query, document)
    network = load_network(directory, card).eval()
    ids, segments = (torch.from_numpy(array)[None] for array in (tokens.ids, tokens.segments))
    with torch.no_grad():
        return network(ids, torch.ones_like(ids), segments)[0].numpy()


def saved(folder: Path, network: Any, **options: Any) -> Path:
    network.save_pretrained(folder, safe_serialization=False, **options)
    checkpoints.write_vocabulary(folder)
    return folder


def without(folder: Path, *names: str) -> Path:
    config = json.loads((folder / "config.json").read_bytes())
    checkpoints.write_config(folder, {name: value for name, value in config.items() if name not in names})
    return folder


def as_state_dict(folder: Path, network: Any, *, prefix: str = "", nested: str = "", name: str = "saved.pt") -> Path:
    folder.mkdir()
    state = {f"{prefix}{name}": tensor for name, tensor in network.state_dict().items()}
    torch.save({nested: state, "epoch": 3} if nested else state, folder / name)
    checkpoints.write_vocabulary(folder)
    checkpoints.write_config(folder, {**network.config.to_dict(), "architectures": None})
    return folder


def as_birch(folder: Path, network: Any, *, is_bare: bool = False, is_old: bool = False) -> Path:
    """Write a network as Birch's archive has it: pickled whole, beside Google's config."""
    folder.mkdir()
    content = network if is_bare else {"epoch": 3, "arch": "bert", "model": network, "scores": [["map"], [0.3]]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, at its own old format
        torch.save(content, folder / "saved.msmarco_mb_1", _use_new_zipfile_serialization=not is_old)
    checkpoints.write_vocabulary(folder)
    checkpoints.write_config(folder, checkpoints.bert_config(network))
    return folder


def lacking(*names: str) -> Callable[[Path, Any], Path]:
    return lambda folder, network: without(saved(folder, network), *names)


OLD_BARE, NESTED = {"is_bare": True, "is_old": True}, {"prefix": "module.", "nested": "state_dict"}
FORMS: dict[str, tuple[str, Callable[[Path, Any], Path]]] = {
    "a pickle and a vocabulary": ("classifier", saved),
    "no architectures": ("classifier", lacking("architectures")),
    "neither architectures nor type": ("classifier", lacking("architectures", "model_type", "id2label")),
    "next sentence": ("next-sentence", saved),
    "next sentence, no architectures": ("next-sentence", lacking("architectures")),
    "a state dict": ("next-sentence", as_state_dict),
    "a training's state dict": ("next-sentence", partial(as_state_dict, **NESTED)),
    "Birch's archive": ("next-sentence", as_birch),
    "a bare module, of an old torch": ("next-sentence", partial(as_birch, **OLD_BARE)),
}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_converted_checkpoint_gives_the_logits_of_the_original(tmp_path: Path, form: str) -> None:
    head, write = FORMS[form]
    network = checkpoints.network(head)
    source = write(tmp_path / "source", network)
    converted = convert_if_needed(source)
    assert converted.directory == cache_folder() / converted.sha256
    np.testing.assert_allclose(logits(converted.directory), checkpoints.expected(network, QUERY, TEXT), atol=1e-5)
    assert read_card(converted.directory).head == ("logits2" if head == "classifier" else "next-sentence")
    again = convert_if_needed(source)
    assert (again.directory, again.needs_self_check) == (converted.directory, True)


def test_a_passed_self_check_that_cannot_be_recorded_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").touch()
    with caplog.at_level("INFO"):
        ConvertedModel(tmp_path / "full", "abc").record_pass("8 of 8 right")
    assert "the self-check cannot be recorded, so each load of the model repeats it" in caplog.text


def test_a_folder_of_several_checkpoints_needs_the_name_of_a_checkpoint(tmp_path: Path) -> None:
    source = as_birch(tmp_path / "source", checkpoints.network("next-sentence"))
    second_network = checkpoints.network("next-sentence", seed=2)
    torch.save(second_network, source / "saved.mb_1")
    with pytest.raises(
        ModelLoadError, match=r"\(saved.mb_1, saved.msmarco_mb_1\); pass one of them, such as .*saved.mb_1"
    ):
        convert_if_needed(source)
    directory = convert_if_needed(locate(str(source / "saved.mb_1"))).directory
    np.testing.assert_allclose(logits(directory), checkpoints.expected(second_network, QUERY, TEXT), atol=1e-5)
    with pytest.raises(
        ModelLoadError, match=r"vocab.txt is a file that torch.save did not write; pass the model's directory"
    ):
        locate(str(source / "vocab.txt"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the process of the line ends, this one does not
@pytest.mark.parametrize("is_bare", [False, True])
def test_the_code_in_the_refusal_of_a_pickle_writes_a_file_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bare: bool
) -> None:
    source = as_birch(tmp_path / "source", checkpoints.network("next-sentence"), is_bare=is_bare)
    before = (source / "saved.msmarco_mb_1").read_bytes()
    monkeypatch.setattr(pickled, "load_with_placeholders", lambda _: None)
    with pytest.raises(ModelLoadError, match="if you trust its author") as refused:
        convert_if_needed(source)
    words = shlex.split(str(refused.value).partition("python ")[2])
    exec(words[1], {})
    assert convert_if_needed(source / "saved.msmarco_mb_1.weights.pt").sha256
    assert (source / "saved.msmarco_mb_1").read_bytes() == before


def test_old_names_of_layer_norms_are_converted(tmp_path: Path) -> None:
    network = checkpoints.network()
    source = saved(tmp_path / "source", network)
    state = torch.load(source / "pytorch_model.bin", weights_only=True)
    for name in [name for name in state if "LayerNorm" in name]:
        older = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        state[older] = state.pop(name)
    torch.save({**state, "bert.embeddings.position_ids": torch.arange(128)}, source / PICKLE)
    directory = convert_if_needed(source).directory
    np.testing.assert_allclose(logits(directory), checkpoints.expected(network, QUERY, TEXT), atol=1e-5)


def test_a_changed_checkpoint_is_converted_again(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", checkpoints.network())
    first = convert_if_needed(source).directory
    saved(source, checkpoints.network(seed=2))
    assert convert_if_needed(source).directory != first
    assert not np.allclose(logits(convert_if_needed(source).directory), logits(first))


def test_checkpoints_in_the_current_form_are_not_converted(tmp_path: Path) -> None:
    network = checkpoints.network()
    network.save_pretrained(tmp_path / "source")
    checkpoints.tokenizer().save(str(tmp_path / "source" / "tokenizer.json"))
    assert convert_if_needed(tmp_path / "source") == (tmp_path / "source", "")
    assert not cache_folder().exists()


@pytest.mark.parametrize("head", ["", "next-sentence"])
def test_a_pre_trained_checkpoint_without_a_head_needs_a_named_head(tmp_path: Path, head: HeadForm) -> None:
    network = checkpoints.network("next-sentence")
    source = without(saved(tmp_path / "source", network), "architectures")
    state = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save({**state, "cls.predictions.bias": torch.zeros(278)}, source / PICKLE)
    directory = convert_if_needed(source, head).directory
    if head:
        assert read_card(directory).head == "next-sentence"
        return
    with pytest.raises(ModelLoadError, match=r"BertForPreTraining.*osrerank export MODEL OUTPUT --head next-sentence"):
        read_card(directory)


@pytest.mark.parametrize("head", ["logit1", "next-sentence"])
def test_a_named_head_that_a_checkpoint_lacks_is_refused(tmp_path: Path, head: HeadForm) -> None:
    with pytest.raises(ModelLoadError, match=f"has no head {head}: its weights have a classifier with 2 labels"):
        convert_if_needed(saved(tmp_path / "source", checkpoints.network()), head)
    assert list(cache_folder().iterdir()) == []


class Module:
    """Stands for a module that was pickled whole."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch pickle-ran",)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_plain: bool) -> None:
    monkeypatch.chdir(tmp_path)
    source = saved(tmp_path / "source", checkpoints.network())
    torch.save(Module(), source / PICKLE)
    if is_plain:
        (source / PICKLE).write_bytes(pickle.dumps(Module(), protocol=2))
    with pytest.raises(ModelLoadError, match=r"pytorch_model.bin is a pickle of more than tensors.*state_dict\(\)"):
        convert_if_needed(source)
    assert not (tmp_path / "pickle-ran").exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda source: (source / PICKLE).write_bytes(b"PK\x03\x04cut"), "cannot be read as PyTorch"),
        (lambda source: torch.save({"epoch": 3}, source / PICKLE), "contains no tensors, only epoch"),
        (lambda source: without(source, "architectures", "model_type") and _rename(source), "add the architectures"),
        (
            lambda source: checkpoints.write_config(source, {"weight_map": {"bert.x": SHARD}}, f"{PICKLE}.index.json"),
            f"{SHARD}, which {PICKLE}.index.json lists, is missing",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: Callable[[Path], object], reason: str) -> None:
    source = saved(tmp_path / "source", checkpoints.network())
    damage(source)
    with pytest.raises(ModelLoadError, match=reason):
        convert_if_needed(source)


def _rename(source: Path) -> None:
    state = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save({f"other.{name}": tensor for name, tensor in state.items()}, source / PICKLE)


def test_an_untrained_model_is_refused_at_its_first_load_and_later(tmp_path: Path) -> None:
    source = saved(tmp_path / "source", checkpoints.network())
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=r"source does not rank like a trained model: .*self-check: \d+ of"):
            load_scorer(str(source))


def of_2019(folder: Path, network: Any, *, shards: int = 1, name: str = "pytorch_model.bin") -> Path:
    """Write a state dict, in one or several files, with the keys that a config had in 2019."""
    as_state_dict(folder, network, name=name)
    checkpoints.write_config(folder, checkpoints.bert_config(network))
    if shards > 1:
        state = [*torch.load(folder / name, weights_only=True).items()]
        (folder / name).unlink()
        files = [f"pytorch_model-{number:05d}-of-{shards:05d}.bin" for number in range(1, shards + 1)]
        for number, file in enumerate(files):
            torch.save(dict(state[number::shards]), folder / file)
        weight_map = {key: files[index % shards] for index, (key, _) in enumerate(state)}
        checkpoints.write_config(folder, {"weight_map": weight_map}, "pytorch_model.bin.index.json")
    return folder


RELEASED: dict[str, tuple[str, Callable[[Path, Any], Path]]] = {
    "Google's layout, with Adam's slots": ("classifier", lambda folder, _: Path(shutil.copytree(GOOGLE, folder))),
    "a config of 2019": ("classifier", of_2019),
    "three shards": ("classifier", lambda folder, network: of_2019(folder, network, shards=3)),
    "Birch's dict": (
        "next-sentence",
        lambda folder, network: as_birch(folder, network, is_old=True) / "saved.msmarco_mb_1",
    ),
    "Birch's module": ("next-sentence", lambda folder, network: as_birch(folder, network, is_bare=True)),
}


@pytest.mark.long
@pytest.mark.parametrize("form", RELEASED)
def test_an_exported_old_checkpoint_scores_as_its_network_in_both_backends(tmp_path: Path, form: str) -> None:
    from osrerank.cli import main

    pytest.importorskip("onnx")
    head, write = RELEASED[form]
    network, output = checkpoints.network(head), tmp_path / "made"
    options = ["--head", head] if head == "next-sentence" else []
    source = write(tmp_path / "source", network)
    main(["export", str(source), str(output), "--no-self-check", "--keep-weights", *options])
    first, second = checkpoints.expected(network, QUERY, TEXT)
    for backend in ("onnx", "torch"):
        scores = load_scorer(str(output), backend=backend).score(QUERY, [TEXT], [(0,)])
        assert scores.values[0] == pytest.approx(second if options else second - first, abs=1e-5)
        assert scores.log_odds[0] == pytest.approx(second - first, abs=1e-5)


def test_a_training_starts_from_a_google_checkpoint(tmp_path: Path) -> None:
    from osrerank.cli.options import MODEL
    from osrerank.training.recipes import Recipe
    from osrerank.training.weights.models import load_trainee

    source = MODEL.convert(str(GOOGLE), None, None)
    trainee = load_trainee(source, Recipe.from_options({}, "monobert"))
    expected = checkpoints.network().state_dict()["bert.encoder.layer.1.output.dense.weight"]
    torch.testing.assert_close(
        dict(trainee.network.named_parameters())["network.bert.encoder.layer.1.output.dense.weight"], expected
    )
