"""``osrerank train``: fine-tune rerankers, average models, and write training data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from osrerank.cli.options import INDEX, MODEL, open_client, option_parser, split_options
from osrerank.cli.path_types import FILE, FOLDER, OUTPUT_FILE

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_sources(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Parse the value of ``--dev`` or the values of ``--data``: ``run=F,depth=9`` as ``{"run": "F", "depth": "9"}``."""
    if value is None:
        return None
    return split_options(value) if isinstance(value, str) else [split_options(source) for source in value]


def _parse_passages(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Parse how documents are split into passages, such as ``kmaxavgp,k=2``. Return None if the option is not set."""
    from osrerank.options.passages import AUTO, Passages

    passages = option_parser("aggregation")(context, parameter, value)
    if passages is not None and passages.get("aggregation") == AUTO:
        raise click.BadParameter("auto works only in searches; choose an aggregation, such as maxp")
    return Passages.of(passages)


def passages_option(name: str, help_text: str) -> Callable[[Command], Command]:
    """Return a click option for splitting documents into passages. Without a value, it means ``maxp``."""
    return click.option(
        name, is_flag=False, flag_value="maxp", callback=_parse_passages, metavar="[OPTIONS]", help=help_text
    )


recipe_option = click.option(
    "--recipe",
    callback=option_parser("name"),
    help="Recipe, with changes such as monobert,steps=1000,rate=1e-5.  [default: see above]",
)
time_option = click.option(
    "--max-minutes", type=click.FloatRange(0, min_open=True), help="Stop after this time; the same command resumes."
)
MODEL_HELP = "Model to start from: a directory with safetensors, a shipped model or a hub id."
DATA_HELP = "Training data, KIND=FILE,OPTION=VALUE; repeatable."
DEV_HELP = (
    "Development set, in the form of --data: keep the weights that rank it best.  [default: keep the last weights]"
)
DEPTH_HELP = "Number of candidates to rerank for each development query."
PASSAGES_HELP = "Split development documents into passages, such as kmaxavgp,k=2.  [default without a value: maxp]"
TRAINING_OPTIONS = (
    click.option("--init-from", "source", required=True, type=MODEL, help=MODEL_HELP),
    click.option("--data", required=True, multiple=True, callback=parse_sources, help=DATA_HELP),
    click.option("--dev", callback=parse_sources, help=DEV_HELP),
    click.option("--dev-depth", default=100, show_default=True, type=click.IntRange(1), help=DEPTH_HELP),
    passages_option("--dev-passages", PASSAGES_HELP),
    recipe_option,
    click.option("--output", "-o", required=True, type=FOLDER, help="Model directory to write."),
    time_option,
)


def training_options(command: Command) -> Command:
    """Add the options that all training commands share."""
    for option in reversed(TRAINING_OPTIONS):
        command = option(command)
    return command


def create_training_request(options: dict[str, Any], default_recipe: str) -> Any:
    """Return the `TrainingRequest` that the options of a command describe."""
    from osrerank.training.examples.sources import open_source
    from osrerank.training.fit import TrainingRequest
    from osrerank.training.recipes import Recipe

    return TrainingRequest(
        source=options["source"],
        output=options["output"],
        recipe=Recipe.from_options(options["recipe"], default_recipe),
        data=[open_source(source) for source in options["data"]],
        development=open_source(options["dev"]) if options["dev"] else None,
        depth=options["dev_depth"],
        passages=options["dev_passages"],
        max_minutes=options["max_minutes"],
        report=print_progress,
    )


def print_progress(line: str) -> None:
    """Print a line of progress on standard error."""
    click.echo(line, err=True)


def print_output(directory: Path | None, hint: str = "osrerank export writes an ONNX graph of it") -> None:
    """Print the trained model's directory and a hint. If ``directory`` is None, print how to resume."""
    if directory is None:
        click.echo("stopped: the time is up; run the same command to resume")
    else:
        click.echo(f"{directory}: done; {hint}")


@click.group()
def train() -> None:
    """Fine-tune rerankers by the recipes of monoBERT, duoBERT, ICIP and Birch, or by a modern recipe.

    Training data is KIND=FILE, with further options after commas:

    \b
    examples=F                          what `osrerank train data` writes
    triples=F                           MS MARCO's query, relevant passage, irrelevant passage
    id-triples=F,corpus=F,queries=F     the same triples, as ids
    candidates=F,qrels=F                candidates as for `osrerank rerank`, with judgments
    run=F,corpus=F,queries=F,qrels=F    a first-pass run with judgments; default: depth=1000,inject=true
    pairs=F                             WikiQA's four columns, or Birch's eight
    microblog=F,qrels=F,tweets=F        TREC Microblog's topics, judgments and tweets

    If training was stopped or killed, the same command resumes it.
    """


@train.command()
@training_options
def mono(**options: Any) -> None:
    """Fine-tune a model that scores a query with a document.

    \b
    osrerank train mono --init-from bert-large --recipe monobert --data triples=triples.tsv --output monobert
    osrerank train mono --init-from minilm --data examples=squad.jsonl --output mono
    osrerank train mono --init-from marco --recipe birch --data pairs=wikiqa.tsv --output marco-wikiqa

    Recipes: modern (the default), monobert, monobert-car, icip, birch.
    """
    from osrerank.training.fit import train as fit

    print_output(fit(create_training_request(options, "modern")))


@train.command()
@training_options
def duo(**options: Any) -> None:
    """Fine-tune a model that decides which of two documents is more relevant.

    \b
    osrerank train duo --init-from bert-large --data triples=triples.tsv --output duobert

    Recipes: duobert (the default).
    """
    from osrerank.training.fit import train as fit

    print_output(fit(create_training_request(options, "duobert"), kind="duo"))


def _parse_shares(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[float] | None:
    try:
        return [float(share) for share in value.split(",")] if value else None
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers separated by commas") from None


@train.command()
@click.argument("models", nargs=-1, required=True, type=MODEL)
@click.option("--shares", callback=_parse_shares, help="Share of each model, such as 0.6,0.4.  [default: equal]")
@click.option("--output", "-o", required=True, type=FOLDER, help="Model directory to write.")
def average(models: tuple[Path, ...], shares: list[float] | None, output: Path) -> None:
    """Average the weights of MODELS: a trained model and its start, or several models with the same start.

    \b
    osrerank train average trained minilm --shares 0.6,0.4 --output mono

    The card and the tokenizer are copied from the first model. The average of a trained model and its start often keeps
    most of what training gained, and forgets less of what the start had learned.
    """
    from osrerank.training.weights.averaging import average as average_weights

    print_output(average_weights(models, shares or [1.0] * len(models), output))


@train.command()
@click.argument("output", type=OUTPUT_FILE)
@click.option("--data", multiple=True, callback=parse_sources, help="Data to read, as for train mono.")
@click.option("--index", "-i", type=INDEX, help="Search this index for each query's documents.")
@click.option("--queries", type=FILE, help="Queries to search for, with --index.")
@click.option("--qrels", type=FILE, help="Judgments of the queries, with --index.")
@click.option("--squad", type=FILE, help="Questions in SQuAD's format; BM25 finds the irrelevant paragraphs.")
@click.option("--questions", type=click.IntRange(1), help="With --squad: number of questions.  [default: all]")
@click.option("--depth", default=30, show_default=True, type=click.IntRange(1, 1000), help="Documents per query.")
@click.option("--inject/--no-inject", default=True, show_default=True, help="Add relevant documents not found.")
@passages_option(
    "--passages", "Split documents into passages, and write triples of passages (ICIP), such as maxp,limit=50."
)
@click.option(
    "--filter", "filter_model", help="With --passages: model that chooses the passages of each relevant document."
)
@click.option("--hardest", help="Model that scores the irrelevant documents; those with the highest scores are kept.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    help="Number of passages that --filter keeps, or of documents that --hardest keeps.  [default: 5, 30]",
)
@click.option("--score", help="Teacher model whose scores are added, for recipes with soft=true.")
@click.option("--seed", default=1, show_default=True, help="Seed of all random choices.")
@click.pass_context
def data(context: click.Context, /, output: Path, **options: Any) -> None:
    """Write training examples as JSON lines: query, documents, relevance, and a teacher's scores with --score.

    \b
    osrerank train data squad.jsonl --squad train-v1.1.json --questions 20000 --depth 30
    osrerank train data scifact.jsonl --index scifact --queries queries.tsv --qrels qrels.txt
    osrerank train data passages.jsonl --data candidates=c.jsonl,qrels=qrels.txt --passages --filter passage-model
    """
    from osrerank.cli.train_data import create_examples
    from osrerank.training.examples.example import write_examples

    count = write_examples(output, create_examples(options, lambda: open_client(context)))
    print_progress(f"{output}: {count} examples")
