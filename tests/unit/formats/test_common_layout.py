"""Writing collections as JSON lines and TSV."""

import json
from pathlib import Path

from osrerank.formats.common_layout import write_corpus, write_queries
from osrerank.types import Document, Query

HALF_AN_EMOJI = "half \ud83d of it, größer"


def test_half_of_a_surrogate_pair_ends_no_conversion(tmp_path: Path) -> None:
    assert write_corpus([Document("1", HALF_AN_EMOJI)], tmp_path / "corpus.jsonl") == 1
    line = (tmp_path / "corpus.jsonl").read_text("utf-8")
    assert json.loads(line)["text"] == HALF_AN_EMOJI
    assert "größer" in line  # only the surrogate is escaped
    assert write_queries([Query("1", HALF_AN_EMOJI)], tmp_path / "queries.tsv") == 1
    assert (tmp_path / "queries.tsv").read_text("utf-8") == "1\thalf ? of it, größer\n"
