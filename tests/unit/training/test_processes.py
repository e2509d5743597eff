"""Several processes train one model: real ones, with torchrun and gloo on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from osrerank.training.curve import read_curve
from tests.servers import ROOT, free_port

pytestmark = pytest.mark.long

CLASSIFIER = ROOT / "tests" / "data" / "tiny-bert-two-labels"
# A small token budget gives several micro-batches a step; mining divides the training in two; there is no dropout,
# because processes draw different masks.
RECIPE = (
    "modern,steps=6,batch=8,negatives=3,rate=1e-3,warmup=1,mine_at=0.5,evaluate_every=2,dropout=0,"
    "max_tokens=64,max_query_tokens=16,budget_tokens=128,precision=fp32"
)


def run(processes: int, command: list[str], folder: Path = ROOT) -> str:
    """Run a module or a script, by torchrun where several processes are asked for; return what it says."""
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--master-port={free_port()}"]
    done = subprocess.run(
        [sys.executable, *(launch if processes > 1 else []), *command],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def trained(examples: Path, output: Path, processes: int, *options: str, recipe: str = RECIPE) -> str:
    data = ["--data", f"examples={examples}", "--dev", f"examples={examples}"]
    start = ["--init-from", str(CLASSIFIER), "--output", str(output), "--recipe", recipe]
    return run(processes, ["-m", "osrerank", "train", "mono", *start, *data, *options])


LEAVE = """
from pathlib import Path

from osrerank.training import loop

machine = loop.Machine("fp32")
import torch.distributed.nn.functional  # whose functions take the group of that moment for a default

machine.wait()
loop._destroy_process_group()
names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
Path(f"left.{machine.process_index}").write_text("".join(name for name in names if "gloo" in name))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the threads' names are read from Linux's /proc")
def test_no_thread_of_a_process_group_outlives_the_group(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(LEAVE, encoding="utf-8")
    run(2, ["leave.py"], tmp_path)
    assert [(tmp_path / f"left.{number}").read_text(encoding="utf-8") for number in (0, 1)] == ["", ""]


def numbers(folder: Path, column: str) -> list[float]:
    return [float(row[column]) for row in read_curve(folder / "curve.csv") if row[column]]


@pytest.mark.slow
def test_several_processes_train_the_same_model_as_a_single_process(examples: Path, tmp_path: Path) -> None:
    for processes in (1, 3):  # three: a step has two micro_batches here, so one has nothing to do
        output = trained(examples, tmp_path / str(processes), processes)
        assert output.count("step 6 of 6") == 1
    single_folder, several = tmp_path / "1", tmp_path / "3"
    assert len(numbers(single_folder, "loss")) == 6
    for column in ("loss", "measure", "rate"):
        np.testing.assert_allclose(numbers(several, column), numbers(single_folder, column), rtol=1e-4, err_msg=column)
    before, after = load_file(single_folder / "model.safetensors"), load_file(several / "model.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=2e-4, rtol=0, msg=name)
    assert not list(tmp_path.glob("*.training"))


@pytest.mark.slow
def test_a_process_without_a_share_trains_in_mixed_precision_too(examples: Path, tmp_path: Path) -> None:
    output = trained(examples, tmp_path / "half", 3, recipe=RECIPE.replace("fp32", "mixed"))
    assert "step 6 of 6" in output
    assert all(np.isfinite(numbers(tmp_path / "half", "loss")))


@pytest.mark.slow
def test_bfloat16_losses_are_near_fp32_and_weights_are_saved_in_fp32(examples: Path, tmp_path: Path) -> None:
    for precision in ("bf16", "fp32"):
        trained(examples, tmp_path / precision, 1, recipe=RECIPE.replace("fp32", precision))
    losses, exact = (numbers(tmp_path / name, "loss") for name in ("bf16", "fp32"))
    np.testing.assert_allclose(losses, exact, rtol=0.1)
    assert losses != exact
    assert {tensor.dtype for tensor in load_file(tmp_path / "bf16" / "model.safetensors").values()} == {torch.float32}


TWO_PRECISIONS = """
import sys
from osrerank.errors import ConfigError
from osrerank.training import loop
loop.Machine("bf16")
try:
    loop.Machine("fp32")
except ConfigError as error:
    print(error, file=sys.stderr)
"""


def test_a_second_precision_in_a_process_is_refused() -> None:
    assert "has used another precision" in run(1, ["-c", TWO_PRECISIONS])


@pytest.mark.slow
def test_a_stopped_training_of_two_processes_resumes(examples: Path, tmp_path: Path) -> None:
    output = trained(examples, tmp_path / "made", 2, "--max-minutes", "0.000001")
    assert "step 6 of 6" not in output
    assert (tmp_path / "made.training").is_dir()
    trained(examples, tmp_path / "made", 2)
    trained(examples, tmp_path / "whole", 2)
    np.testing.assert_allclose(numbers(tmp_path / "made", "loss"), numbers(tmp_path / "whole", "loss"), rtol=1e-5)
