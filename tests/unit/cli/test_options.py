"""Options of the command line, their help, and the rerank options that they become."""

import click
import pytest
from click.testing import CliRunner

from osrerank import Rerank
from osrerank.cli import cli
from osrerank.cli.options import SEARCH_OPTIONS, build_rerank_argument, rerank_options, search_options
from osrerank.options.descriptions import first_sentence, read_descriptions


def arguments_of(*given):
    descriptions = []

    @click.command()
    @rerank_options
    def command(**options):
        descriptions.append(build_rerank_argument(options))

    outcome = CliRunner().invoke(command, given)
    assert outcome.exit_code == 0, outcome.output
    return descriptions[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), {}),
        (("--no-rerank",), False),
        (("--no-rerank", "--rm3"), {"pipeline": "none", "rm3": True}),
        (("--rm3",), {"rm3": True}),
        (("--sentences", "--depth", "5"), {"sentences": True, "depth": 5}),
        (("--depth", "auto", "--deadline-ms", "1.5"), {"depth": "auto", "deadline_ms": 1.5}),
        (("--separator", "1"), {"separator": "1"}),
        (("--rm3", "20,weight=0.3"), {"rm3": {"documents": 20, "weight": 0.3}}),
        (("--passages", "maxp", "--fields", "a,b"), {"passages": {"aggregation": "maxp"}, "fields": ("a", "b")}),
        (
            ("--sentences", "0.4,weights=1/0.2,drop_tail=true"),
            {"sentences": {"a": 0.4, "weights": [1, 0.2], "drop_tail": True}},
        ),
        (("--sentences", "splitter=punkt,chunks=tokens"), {"sentences": {"splitter": "punkt", "chunks": "tokens"}}),
        (("--passages", "limit=5"), {"passages": {"limit": 5}}),
    ],
)
def test_command_line_options_become_rerank_options(given, expected):
    arguments = arguments_of(*given)
    assert arguments == expected
    Rerank.of(arguments, Rerank())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--depth", "0"), 'rerank option depth is 0; it must be a whole number from 1 to 10000, or "auto"'),
        (
            ("--pairs", "sum,size=1"),
            "rerank option pairs has no 'size'; its options are aggregation, sample_size, seed",
        ),
        (("--pipeline", "best"), "'best' is not one of 'auto'"),
        (("--rm3", "0"), "rerank option rm3.documents is 0; it must be a whole number of at least 1"),
    ],
)
def test_an_unusable_value_of_an_option_is_bad_usage(given, said):
    outcome = CliRunner().invoke(click.command()(rerank_options(lambda **_options: None)), given)
    assert (outcome.exit_code, said in " ".join(outcome.output.split())) == (2, True), outcome.output


def test_the_help_of_an_option_is_the_docstring_of_its_attribute():
    command = click.command()(rerank_options(lambda **_options: None))
    shown = CliRunner().invoke(command, ["--help"], terminal_width=1000).output
    for name, description in read_descriptions(Rerank).items():
        if name in SEARCH_OPTIONS:
            assert first_sentence(description) in " ".join(shown.split())


def test_the_removed_cliff_cutoff_names_its_successor():
    outcome = CliRunner().invoke(
        click.command()(search_options("cutoff")(lambda **_options: None)), ["--cutoff", "cliff"]
    )
    assert (outcome.exit_code, "use min_score, or cutoff=" in " ".join(outcome.output.split())) == (2, True)


@pytest.mark.parametrize(
    "command", [("search", "fox"), ("vectors", "drop", "--yes"), ("vectors", "prune"), ("vectors", "build")]
)
def test_an_empty_index_name_is_refused_instead_of_standing_for_all_indices(command):
    outcome = CliRunner().invoke(cli, [*command, "--index", ""])
    assert (outcome.exit_code, "the name of the index is empty" in outcome.output) == (2, True)
