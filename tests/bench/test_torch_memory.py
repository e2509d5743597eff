"""Memory that the torch backend needs beyond the model, on the CPU: ``pytest -m bench tests/bench``."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench
pytest.importorskip("torch")

CANDIDATES = 1000
MOST_BYTES = 1 << 30
SCRIPT = """
import resource, shutil, sys
from pathlib import Path
import torch, transformers
from osrerank.scoring.factory import load_scorer

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
candidates, size = int(sys.argv[3]), sys.argv[4]
shape = {"base": (768, 12, 3072), "large": (1024, 24, 4096), "small": (384, 6, 1536)}[size]
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
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
scores = scorer.score("low", documents, [(i,) for i in range(candidates)])
assert not scores.failures and scores.truncated == candidates
print(peak() - before, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
"""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("size", ["small"])
def test_a_thousand_long_candidates(tmp_path: Path, size: str) -> None:
    source = Path(__file__).parents[1] / "data" / "tiny-bert-one-label"
    arguments = [sys.executable, "-c", SCRIPT, str(source), str(tmp_path), str(CANDIDATES), size]
    subprocess.run(arguments, check=True)
    found = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    grown, model = (int(part) for part in found.split())
    print(f"\n{size}: {grown / 2**20:.0f} MiB for {CANDIDATES} candidates of 512 tokens, weights {model / 2**20:.0f} MiB")
    assert grown < MOST_BYTES
