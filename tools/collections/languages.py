"""Measure the language guard: how often it refuses foreign texts, and how often English ones.

python -m tools.collections.languages GUIDE SETS DATA

GUIDE is the folder of Debian's package installation-guide-amd64 (GPL-2) with a folder of HTML pages per language:
apt-get download installation-guide-amd64 && dpkg-deb -x installation-guide-amd64_*.deb guide. SETS are the development
sets that tools/models/joined/sets.py writes with --depth 10. DATA has a folder with corpus.jsonl per collection.

The output is two Markdown tables, of single texts and of searches.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

from osrerank.formats.lines import read_numbered_objects
from osrerank.stages.language_guard import (
    MAX_CHARACTERS,
    MIN_CHARACTERS,
    detect_language,
    explain_unsupported_language,
    find_unsupported_script,
)
from osrerank.testing import FunctionScorer
from osrerank.types import Advice, Candidate, Query, Ranking

LANGUAGES = ("de", "fr", "es", "nl", "it")
DOCUMENTS, SEARCHES, HITS = 200, 200, 10
TITLE_LENGTH = 60
"""The length of a text as short as a product's name, in characters."""
MIN_PARAGRAPH_LENGTH = 60
"""The minimum length of a paragraph that is a document, in characters."""
ENGLISH = ("en",)


class EnglishScorer(FunctionScorer):
    """A scorer whose model supports only English."""

    @property
    def advice(self) -> Advice:
        return Advice(languages=ENGLISH)


class ParagraphParser(HTMLParser):
    """Collects the texts of paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._parts: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - its signature
        self._parts = [] if tag == "p" else self._parts

    def handle_data(self, data: str) -> None:
        if self._parts is not None:
            self._parts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "p" and self._parts is not None:
            self.texts.append(re.sub(r"\s+", " ", "".join(self._parts)).strip())
            self._parts = None


def paragraphs(folder: Path) -> list[str]:
    """Return the unique paragraphs of a folder's HTML pages that are long enough to be a document."""
    texts: dict[str, None] = {}
    for page in sorted(folder.glob("*.html")):
        parser = ParagraphParser()
        parser.feed(page.read_text("utf-8"))
        texts |= dict.fromkeys(text for text in parser.texts if len(text) >= MIN_PARAGRAPH_LENGTH)
    return list(texts)


def is_refused(query: str, texts: Sequence[str]) -> bool:
    """Return whether the guard prevents reranking of a search with these hits."""
    candidates = (Candidate(str(rank), text, 1.0 / rank, rank) for rank, text in enumerate(texts, 1))
    return bool(explain_unsupported_language(Ranking(Query("q", query or "?"), tuple(candidates)), EnglishScorer()))


def row(name: str, texts: Sequence[str]) -> str:
    """Return a table row: the numbers of all texts, of long ones, of those with a clear language, of foreign ones."""
    long = [text for text in texts if len(text) >= MIN_CHARACTERS]
    languages = [language for text in long if (language := detect_language(text[:MAX_CHARACTERS]))]
    foreign = sum(language not in ENGLISH for language in languages)
    counts = f"{len(texts):,} | {len(long):,} | {len(languages):,} | {foreign:,}"
    return f"| {name} | {counts} | {foreign / len(long):.2%} |"


def guide_documents(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each language with a sample of its paragraphs, without untranslated ones."""
    english = set(paragraphs(folder / "en"))
    for language in LANGUAGES:
        translated = [text for text in paragraphs(folder / language) if text not in english]
        yield language, random.Random(1).sample(translated, DOCUMENTS)
    yield "en", random.Random(1).sample(sorted(english), DOCUMENTS)


def read_searches(folder: Path) -> Iterator[tuple[str, Mapping[str, list[str]]]]:
    """Yield each set with its queries, each with the texts of its first hits."""
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_bytes())
        texts = content["texts"]
        hits: dict[str, list[str]] = {}
        for query_id, scores in content["candidates"].items():
            best = sorted(scores, key=scores.__getitem__, reverse=True)[:HITS]
            hits[content["queries"][query_id]] = [" ".join(texts[doc_id]) for doc_id in best if doc_id in texts]
        yield file.stem, hits


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("guide", "sets", "data"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    print("| texts | all | long enough | clear | called foreign | share |\n|---|---|---|---|---|---|")
    documents = dict(guide_documents(arguments.guide))
    for language, texts in documents.items():
        print(row(f"guide, {language}", texts))
    for corpus in sorted(arguments.data.glob("*/corpus.jsonl")):
        lines = [f"{line.get('title') or ''} {line['text']}".strip() for _, line in read_numbered_objects(corpus)]
        print(row(corpus.parent.name, lines))
    print("\n| searches | all | foreign queries | foreign documents |\n|---|---|---|---|")
    for language, texts in documents.items():
        titles = [text[:TITLE_LENGTH] for text in texts]
        for suffix, pool in (("", texts), (f", {TITLE_LENGTH} characters", titles)):
            generator = random.Random(2)
            n_refused = sum(is_refused("", generator.sample(pool, HITS)) for _ in range(SEARCHES))
            print(f"| guide, {language}{suffix} | {SEARCHES} | | {n_refused} |")
    for name, hits in read_searches(arguments.sets):
        n_foreign_queries = sum(bool(find_unsupported_script(query, ENGLISH)) for query in hits)
        n_refused = sum(is_refused(query, texts) for query, texts in hits.items())
        print(f"| {name} | {len(hits):,} | {n_foreign_queries} | {n_refused} |")


if __name__ == "__main__":
    main()
