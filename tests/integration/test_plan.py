"""`osrerank plan` with an index of the embedded engine."""

import json
from pathlib import Path

from click.testing import CliRunner

from osrerank import connect
from osrerank.cli import cli
from tests.articles import ARTICLES, fill


def test_plan_measures_with_the_documents_of_an_index(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url) as client:
        fill(client, "articles", ARTICLES)
    given = ["--json", "--url", url, "--model", "osrerank/minilm-l6", "plan", "--searches-per-s", "1"]
    found = CliRunner().invoke(cli, [*given, "--index", "articles", "--p95-ms", "60000"], catch_exceptions=False)
    made = json.loads(found.stdout)
    assert made["needed"] >= 1
    assert made["rates"]["encoded_per_s"] > 0
    assert set(made["storage_bytes"]) == {"file", "side_index"}
    assert made["storage_bytes"]["file"] > 384
