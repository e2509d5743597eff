"""Memory that the torch backend needs beyond the model, on the CPU: ``pytest -m bench tests/bench``."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("peaks are read from /proc", allow_module_level=True)

MOST_BYTES = 1 << 30
SCRIPT = """
import re, shutil, sys
from pathlib import Path
import torch, transformers
from osrerank.scoring.registry import load_scorer

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
candidates, size = int(sys.argv[3]), sys.argv[4]
shape = {"narrow": (64, 2, 256), "wide": (1024, 2, 4096), "base": (768, 12, 3072)}[size]
if not (folder / "config.json").exists():
    config = transformers.BertConfig(
        hidden_size=shape[0], num_hidden_layers=shape[1], num_attention_heads=shape[0] // 64,
        intermediate_size=shape[2], num_labels=1, vocab_size=30522,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    sys.exit()
scorer = load_scorer(str(folder), backend="torch")
documents = ["wing " * 600] * candidates
memory = lambda name: 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
Path("/proc/self/clear_refs").write_text("5")  # the peak begins again from what is in use now
before = memory("VmRSS")
scores = scorer.score("low", documents, [(i,) for i in range(candidates)])
assert not scores.failures and scores.truncated == candidates
print(memory("VmHWM") - before, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
"""


# A layer's memory is freed before the next one's is needed, and a batch's before the next batch's: BERT-large's width
# counts, not its 24 layers. A thousand candidates in a narrow model show what the sequences themselves take.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("size", "candidates"), [("narrow", 1000), ("wide", 40)])
def test_many_long_candidates(tmp_path: Path, size: str, candidates: int) -> None:
    source = Path(__file__).parents[1] / "data" / "tiny-bert-one-label"
    arguments = [sys.executable, "-c", SCRIPT, str(source), str(tmp_path), str(candidates), size]
    subprocess.run(arguments, check=True)
    found = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    grown, model = (int(part) for part in found.split())
    print(f"\n{size}: {grown / 2**20:.0f} MiB for {candidates} candidates of 512 tokens, model {model / 2**20:.0f} MiB")
    assert grown < MOST_BYTES
