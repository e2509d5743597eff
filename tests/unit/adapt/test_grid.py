"""Scores of many settings at once, against the reference implementation one by one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.card import Joining, Pooling
from tests.bi_encoders import plain

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from osrerank.adapt.adapt import load_backend, load_encoder, tokenizer_of  # noqa: E402 - imports torch
from osrerank.adapt.bi_encoder import BiEncoder, read_bi_encoder  # noqa: E402 - likewise
from osrerank.adapt.grid import Grid, Setting, joinings  # noqa: E402 - likewise
from osrerank.scoring.networks.joined import merged  # noqa: E402 - likewise

QUERY = "what causes low blood pressure"
DOCUMENTS = ["blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!", "low"]


@pytest.fixture(params=["cls", "mean"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> BiEncoder:
    pooling: Pooling = request.param
    return read_bi_encoder(plain(tmp_path / "plain"), pooling=pooling, query_prefix="ask : ", document_prefix="say : ")


def settings(model: BiEncoder) -> Iterator[tuple[str, Setting]]:
    for joining in joinings(model.pooling, model.query_prefix, model.document_prefix):
        for factor in (1.0, 2.5):
            for prefix in (model.query_prefix, ""):
                one = replace(joining, query_prefix=prefix)
                yield f"{one.layers} {one.bias} {factor} {prefix}", Setting(one, factor)


def expected(model: BiEncoder, setting: Setting) -> list[float]:
    encoder, tokenizer, joining = load_encoder(model), tokenizer_of(model), setting.joining

    def encoded(text: str) -> object:
        ids = torch.tensor([tokenizer.encode(text).ids])
        return encoder.encode(ids, torch.ones_like(ids), 2)

    query = encoded(joining.query_prefix + QUERY)
    found = []
    with torch.inference_mode():
        for text in DOCUMENTS:
            keys = encoder.project(merged(encoded(model.document_prefix + text), setting.factor))
            found.append(float(encoder.scores(query, keys, joining)[0]))
    return found


def test_every_setting_equals_the_reference(model: BiEncoder) -> None:
    tried = dict(settings(model))
    grid = Grid(load_encoder(model), load_backend(model, "fp32", 2), tokenizer_of(model), tried)
    found = grid.scores(QUERY, DOCUMENTS)
    assert set(found) == set(tried)
    for name, setting in tried.items():
        np.testing.assert_allclose(found[name], expected(model, setting), atol=3e-6, err_msg=name)


def test_states_are_kept_and_forgotten(model: BiEncoder) -> None:
    tried = {"one": Setting(Joining(1, -3.0, "all", model.pooling))}
    backend = load_backend(model, "fp32", 2)
    grid = Grid(load_encoder(model), backend, tokenizer_of(model), tried, kept_rows=20)
    first = grid.scores(QUERY, DOCUMENTS)["one"]
    assert grid.scores(QUERY, DOCUMENTS[:1])["one"][0] == pytest.approx(first[0], abs=1e-6)
    np.testing.assert_allclose(grid.scores(QUERY, DOCUMENTS[::-1])["one"], first[::-1], atol=1e-6)
