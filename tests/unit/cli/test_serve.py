"""The options of the comparison page; serving itself is tested on a running server."""

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.cli.serve import _judgments
from osrerank.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "name"),
    [(["--index", "a"], "index"), (["--queries", __file__], "queries"), (["--qrels", __file__], "qrels")],
)
def test_options_of_the_page_need_it(options, name):
    outcome = CliRunner().invoke(cli, ["serve", *options])
    assert isinstance(outcome.exception, ConfigError)
    assert f"--{name} is the comparison page's: add --ui" in str(outcome.exception)


def test_judgments_need_queries(tmp_path):
    with pytest.raises(ConfigError, match="--queries"):
        _judgments(None, str(tmp_path / "qrels"))


def test_queries_and_judgments_are_read(tmp_path):
    (tmp_path / "queries.tsv").write_text("7\twhere does a duck sleep\n")
    (tmp_path / "qrels").write_text("7 0 a 2\n")
    judgments = _judgments(str(tmp_path / "queries.tsv"), str(tmp_path / "qrels"))
    assert judgments.of("Where does a duck sleep") == ("7", {"a": 2})
