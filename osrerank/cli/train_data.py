"""Create training examples for ``osrerank train data``, from files, from an index or from questions."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import click

from osrerank.client import Client
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.scoring.registry import load_scorer
from osrerank.training.documents import DEFAULT_KEEP, add_scores, create_passage_triples, keep_hardest
from osrerank.training.examples.example import Example
from osrerank.training.examples.first_pass import Search, examples_from_index, examples_from_questions
from osrerank.training.examples.sources import open_source

DEFAULT_HARD_DOCUMENTS = 30
"""The number of irrelevant documents that ``--hardest`` keeps for each query without ``--keep``."""


def create_examples(options: dict[str, Any], open_client: Callable[[], Client]) -> Iterator[Example]:
    """Return the training examples that the command's options describe. They are read while they are iterated.

    Raises:
        click.UsageError: the options contradict each other.
    """
    if sum(bool(options[name]) for name in ("data", "index", "squad")) != 1:
        raise click.UsageError("pass exactly one of --data, --index and --squad")
    if options["index"] and not (options["queries"] and options["qrels"]):
        raise click.UsageError("--index needs --queries and --qrels")
    if options["filter_model"] and not options["passages"]:
        raise click.UsageError("--filter chooses passages: also pass --passages")
    return _transform_examples(_read_examples(options, open_client), options)


def _read_examples(options: dict[str, Any], open_client: Callable[[], Client]) -> Iterator[Example]:
    if options["squad"]:
        yield from examples_from_questions(
            options["squad"], depth=options["depth"], questions=options["questions"], seed=options["seed"]
        )
    elif options["index"]:
        with closing(open_client()) as client:
            search = Search(client, options["index"], options["depth"])
            queries, qrels = read_queries(options["queries"]), read_qrels(options["qrels"])
            yield from examples_from_index(search, queries, qrels, inject=options["inject"])
    else:
        for source in options["data"]:
            yield from open_source(source).read()


def _transform_examples(examples: Iterator[Example], options: dict[str, Any]) -> Iterator[Example]:
    """Apply the options ``--passages``, ``--hardest`` and ``--score``, in this order."""
    if options["passages"]:
        scorer = load_scorer(options["filter_model"]) if options["filter_model"] else None
        n_passages = options["keep"] or DEFAULT_KEEP
        examples = create_passage_triples(
            examples, options["passages"], keep=n_passages, scorer=scorer, seed=options["seed"]
        )
    if options["hardest"]:
        n_documents = options["keep"] or DEFAULT_HARD_DOCUMENTS
        examples = keep_hardest(examples, load_scorer(options["hardest"]), keep=n_documents)
    if options["score"]:
        examples = add_scores(examples, load_scorer(options["score"]))
    return examples
