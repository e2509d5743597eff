"""A ModernBERT of Ettin's smallest reranker's shape (17M), with random weights, beside other libraries.

TEST_BENCH_OPTIONS="--peers peers --words 60 --queries 2 --depth 40" make bench TEST_OPTIONS="-k test_modern_bert -s"

``peers`` is an environment with ``tools/bench/peers.txt``; without ``--peers`` only this library is measured.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from osrerank.scoring.checkpoints.self_check import examples
from tests.servers import ROOT
from tools.models.families import Architecture, make

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

SHAPE = (256, 7, 4, 384)
"""Width, layers, heads, inner width: every third layer looks at all, the others at 64 tokens to either side."""
TOKENS = {"pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102, "bos_token_id": 101, "eos_token_id": 102}
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "pad_token": "[PAD]"}
OPTIONS = os.environ.get("TEST_BENCH_OPTIONS", "--words 50 250 --queries 3 --depth 40 --rounds 5").split()


def test_speed_of_a_modern_bert_beside_other_libraries(tmp_path: Path) -> None:
    texts = [(example.question, example.answer) for example in examples()]
    checkpoint = make(tmp_path / "ettin-17m", Architecture("modernbert", TOKENS), SHAPE, texts)
    tokenizer = {**TOKENIZER, "model_input_names": ["input_ids", "attention_mask"]}  # its forward takes no segments
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(tokenizer), "utf-8")
    command = [sys.executable, "-m", "tools.bench", str(checkpoint), *OPTIONS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    print(f"\n{done.stdout}")
    assert "osrerank int8" in done.stdout
