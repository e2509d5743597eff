import click
import pytest
from click.testing import CliRunner

from osrerank import Rerank
from osrerank.cli.options import rerank_arguments, rerank_options


def arguments_of(*given):
    seen = []

    @click.command()
    @rerank_options
    def command(**options):
        seen.append(rerank_arguments(options))

    outcome = CliRunner().invoke(command, given)
    assert outcome.exit_code == 0, outcome.output
    return seen[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), {}),
        (("--no-rerank",), False),
        (("--no-rerank", "--rm3"), {"pipeline": "none", "rm3": True}),
        (("--rm3",), {"rm3": True}),
        (("--rm3-options", "20,weight=0.3"), {"rm3": {"documents": 20, "weight": 0.3}}),
        (("--passages", "maxp", "--fields", "a,b"), {"passages": {"aggregation": "maxp"}, "fields": ("a", "b")}),
        (
            ("--sentences", "0.4,weights=1/0.2,drop_tail=true"),
            {"sentences": {"a": 0.4, "weights": [1, 0.2], "drop_tail": True}},
        ),
        (("--sentences", "splitter=punkt,chunks=tokens"), {"sentences": {"splitter": "punkt", "chunks": "tokens"}}),
        (("--passages", "limit=5"), {"passages": {"limit": 5}}),
    ],
)
def test_arguments(given, expected):
    arguments = arguments_of(*given)
    assert arguments == expected
    Rerank.of(arguments, Rerank())
