"""``osrerank train``: fine-tune rerankers and make training data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from osrerank.cli.options import MODEL, client_of, named_options

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
_read = named_options("name")


def source_options(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Read one or several `KIND=FILE,OPTION=VALUE,...`."""
    if value is None or isinstance(value, str):
        return None if value is None else _split(value)
    return [_split(one) for one in value]


def _split(text: str) -> dict[str, str]:
    options = {}
    for part in text.split(","):
        name, equals, content = part.strip().partition("=")
        if not (equals and name and content):
            raise click.BadParameter(f"{part!r} is not NAME=VALUE")
        if name in options:
            raise click.BadParameter(f"{name} is given twice; give it once")
        options[name] = content
    return options


def passage_options(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Read how documents are cut, as `osrerank rerank --passages` does; None where they are not."""
    from osrerank.options.passages import AUTO, Passages

    given = named_options("aggregation")(context, parameter, value)
    if given is not None and given.get("aggregation") == AUTO:
        raise click.BadParameter("auto works only in searches; name an aggregation, such as maxp")
    return Passages.of(given)


def passages_option(name: str, text: str) -> Callable[[Command], Command]:
    """Return an option that cuts documents into passages, with or without saying how."""
    return click.option(
        name, is_flag=False, flag_value="maxp", callback=passage_options, metavar="[OPTIONS]", help=text
    )


def training_options(command: Command) -> Command:
    """Add the options of every training with examples."""
    for option in reversed(
        (
            click.option(
                "--init-from",
                "source",
                required=True,
                type=MODEL,
                help="What to start from: a directory with safetensors, a shipped model, a hub id.",
            ),
            click.option(
                "--data",
                required=True,
                multiple=True,
                callback=source_options,
                help="What to learn from, KIND=FILE,OPTION=VALUE; may be repeated.",
            ),
            click.option(
                "--dev",
                callback=source_options,
                help="Development set that chooses the best weights, in a tenth of the time; as --data.",
            ),
            click.option("--dev-depth", default=100, show_default=True, type=click.IntRange(1), help="Reordered ones."),
            passages_option("--dev-passages", "Judge the candidates by their passages: kmaxavgp,k=2; maxp if bare."),
            recipe_option,
            click.option("--output", "-o", required=True, type=FOLDER, help="Model directory to make."),
            time_option,
        )
    ):
        command = option(command)
    return command


recipe_option = click.option(
    "--recipe",
    callback=_read,
    help="Preset and changes: monobert,steps=1000,rate=1e-5.  [default: each command's own]",
)
time_option = click.option(
    "--max-minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Stop after this time; the same command resumes.",
)


def request_of(options: dict[str, Any], preset: str) -> Any:
    """Return the training that a command's options describe."""
    from osrerank.training.examples.sources import open_source
    from osrerank.training.fit import TrainingRequest
    from osrerank.training.recipes import Recipe

    return TrainingRequest(
        source=options["source"],
        output=options["output"],
        recipe=Recipe.of(options["recipe"], preset),
        data=[open_source(option) for option in options["data"]],
        development=open_source(options["dev"]) if options["dev"] else None,
        depth=options["dev_depth"],
        passages=options["dev_passages"],
        max_minutes=options["max_minutes"],
        report=show_line,
    )


def show_line(line: str) -> None:
    """Print a line of progress."""
    click.echo(line, err=True)


def report_output(made: Path | None) -> None:
    """Print where the model is, or that the same command resumes."""
    done = f"{made}: done; osrerank export makes an ONNX graph of it"
    click.echo("stopped: the time is over; the same command resumes" if made is None else done)


@click.group()
def train() -> None:
    """Fine-tune rerankers: monoBERT, duoBERT, ICIP's and Birch's ways, and a modern one.

    Data is KIND=FILE with options behind commas:

    \b
    examples=F                          what `osrerank train data` writes
    triples=F                           MS MARCO's query, relevant text, other text
    id-triples=F,corpus=F,queries=F     the same by ids
    candidates=F,qrels=F                candidates of `osrerank rerank` with judgments
    run=F,corpus=F,queries=F,qrels=F    a first pass's run with judgments; depth=1000, inject=true
    pairs=F                             WikiQA's 4 columns or Birch's 8
    microblog=F,qrels=F,tweets=F        TREC Microblog's topics, judgments and tweets

    The same command resumes a training that was stopped or killed.
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

    report_output(fit(request_of(options, "modern")))


@train.command()
@training_options
def duo(**options: Any) -> None:
    """Fine-tune a model that decides which of two documents is more relevant.

    \b
    osrerank train duo --init-from bert-large --data triples=triples.tsv --output duobert

    The recipe is duobert unless another is given.
    """
    from osrerank.training.fit import train as fit

    report_output(fit(request_of(options, "duobert"), "duo"))


def _shares(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[float] | None:
    try:
        return [float(share) for share in value.split(",")] if value else None
    except ValueError:
        raise click.BadParameter(f"{value!r} is not numbers with commas between") from None


@train.command()
@click.argument("models", nargs=-1, required=True, type=MODEL)
@click.option("--shares", callback=_shares, help="Of each model, such as 0.6,0.4.  [default: equal ones]")
@click.option("--output", "-o", required=True, type=FOLDER, help="Model directory to make.")
def average(models: tuple[Path, ...], shares: list[float] | None, output: Path) -> None:
    """Average the weights of MODELS: a trained one with its start, or several trainings of one start.

    \b
    osrerank train average trained minilm --shares 0.6,0.4 --output mono

    The first model gives card and tokenizer. An average of a model and its start often keeps most of what was learnt
    and forgets less of what the start knew.
    """
    from osrerank.training.weights.averaging import average as mean

    report_output(mean(models, shares or [1.0] * len(models), output))


@train.command()
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--data", multiple=True, callback=source_options, help="Examples to change, as for train mono.")
@click.option("--index", "-i", help="Search this index for each query's documents.")
@click.option("--queries", type=FILE, help="Query set, with --index.")
@click.option("--qrels", type=FILE, help="Judgments, with --index.")
@click.option("--squad", type=FILE, help="Questions in SQuAD's layout; BM25 finds the other paragraphs.")
@click.option(
    "--questions",
    type=click.IntRange(1),
    help="With --squad: size of a random sample of the questions.  [default: all]",
)
@click.option("--depth", default=30, show_default=True, type=click.IntRange(1, 1000), help="Documents found.")
@click.option("--inject/--no-inject", default=True, show_default=True, help="Add relevant documents not found.")
@passages_option("--passages", "Cut documents into passages, and write triples of them (ICIP); limit=50.")
@click.option("--filter", "judge", help="Model that chooses each relevant document's passages, with --passages.")
@click.option("--hardest", help="Model that orders the other documents; the hardest are kept.")
@click.option("--keep", type=click.IntRange(1), help="Passages or hardest documents kept.  [default: 5; 30]")
@click.option("--score", help="Model whose scores are written too, for a recipe's soft=true.")
@click.option("--seed", default=1, show_default=True, help="Seed of every sample.")
@click.pass_context
def data(context: click.Context, /, output: Path, **options: Any) -> None:
    """Write training examples as JSON lines: query, documents, relevance, and a teacher's scores with --score.

    \b
    osrerank train data squad.jsonl --squad train-v1.1.json --questions 20000 --depth 30
    osrerank train data scifact.jsonl --index scifact --queries queries.tsv --qrels qrels.txt
    osrerank train data passages.jsonl --data candidates=c.jsonl,qrels=qrels.txt --passages --filter passage-model
    """
    from osrerank.cli.train_data import examples_of
    from osrerank.training.examples.lists import write_examples

    count = write_examples(output, examples_of(options, lambda: client_of(context)))
    show_line(f"{output}: {count} examples")
