"""Training in mixed precision."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from osrerank.errors import ConfigError
from osrerank.training import loop
from osrerank.training.fit import train
from tests.unit.training.test_fit import SMALL, curve, minutes, request

HALF = replace(SMALL, precision="fp16", mine_at=0.0, bias_correction=True)

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "FP16_DEVICES", ("cuda", "cpu"))


def test_a_precision_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "FP16_DEVICES", ("cuda",))
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(ConfigError, match=r"fp16 needs CUDA, but this training runs on the cpu; set precision=bf16"):
        loop.Machine("fp16")
    assert loop._choose_precision("mixed", "cpu") == "bf16"
    loop.Machine("fp32")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes were started \(WORLD_SIZE\), but Accelerate joined 1"):
        loop.Machine("fp32")


@pytest.fixture
def stopped_state(examples: Path, tmp_path: Path) -> Path:
    """The state file of a training that was stopped after 4 of its 10 steps."""
    assert train(request(examples, tmp_path / "parts", HALF, **minutes(4))) is None
    return tmp_path / "parts.training" / "step-4" / "state.json"


@pytest.mark.slow
def test_mixed_precision_learns_as_fp32_and_saves_fp32(examples: Path, tmp_path: Path) -> None:
    for name, precision in (("half", "fp16"), ("whole", "fp32")):
        train(request(examples, tmp_path / name, replace(HALF, precision=precision, rate=1e-4)))
    half, whole_losses = ([float(row["loss"]) for row in curve(tmp_path / name)] for name in ("half", "whole"))
    np.testing.assert_allclose(half, whole_losses, rtol=0.05)
    assert half != whole_losses
    assert {tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float32}


@pytest.mark.slow
def test_a_stopped_mixed_precision_training_resumes_bitwise_with_its_loss_scale(
    examples: Path, tmp_path: Path, stopped_state: Path
) -> None:
    state = json.loads(stopped_state.read_text())
    assert state["scaler"]["scale"] == 65536 / 2 ** state["skipped"]
    assert state["skipped"] < 4
    train(request(examples, tmp_path / "whole", HALF))
    assert train(request(examples, tmp_path / "parts", HALF)) is not None
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")


def test_training_steps_with_overflowing_gradients_are_skipped(
    examples: Path, tmp_path: Path, stopped_state: Path
) -> None:
    state = json.loads(stopped_state.read_text())
    stopped_state.write_text(json.dumps({**state, "scaler": {**state["scaler"], "scale": 2.0**24}}))
    said: list[str] = []
    trained = train(request(examples, tmp_path / "parts", HALF, report=said.append))
    assert trained is not None
    losses = [float(row["loss"]) for row in curve(trained)]
    assert np.isfinite(losses).all()
    assert "steps skipped" in said[-1]
    assert all(torch.isfinite(tensor).all() for tensor in load_file(trained / "model.safetensors").values())
