"""Measure how well the languages of documents and queries are told: alarms of foreign texts, false alarms of English.

python -m tools.collections.languages GUIDE SETS DATA

GUIDE is the folder of Debian's package installation-guide-amd64 (GPL-2) with a folder of HTML pages for each language:
apt-get download installation-guide-amd64 && dpkg-deb -x installation-guide-amd64_*.deb guide. SETS are the development
sets that tools/models/joined/sets.py writes with --depth 10. DATA holds collections with a corpus.jsonl each.

Printed are two Markdown tables: of single texts, and of searches, as `osrerank.stages.language_guard` judges them.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

from osrerank.formats.lines import numbered_objects
from osrerank.stages.language_guard import (
    MAX_CHARACTERS,
    MIN_CHARACTERS,
    detect_language,
    unreadable_reason,
    unreadable_script,
)
from osrerank.testing import FunctionScorer
from osrerank.types import Advice, Candidate, Query, Ranking

LANGUAGES = ("de", "fr", "es", "nl", "it")
DOCUMENTS, SEARCHES, HITS = 200, 200, 10
TITLE = 60
"""Characters of a text that is as short as a product's name."""
MINIMUM = 60
"""Characters of a paragraph that is a document; the guard passes over the shortest of them."""
ENGLISH = ("en",)


class ReadsEnglish(FunctionScorer):
    """A scorer whose model reads English."""

    @property
    def advice(self) -> Advice:
        return Advice(languages=ENGLISH)


class Paragraphs(HTMLParser):
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
    """Return the different paragraphs of a folder's HTML pages that are long enough to be a document."""
    texts: dict[str, None] = {}
    for page in sorted(folder.glob("*.html")):
        parser = Paragraphs()
        parser.feed(page.read_text("utf-8"))
        texts |= dict.fromkeys(text for text in parser.texts if len(text) >= MINIMUM)
    return list(texts)


def is_alarm(query: str, texts: Sequence[str]) -> bool:
    """Return whether a search with these hits keeps its first pass."""
    found = (Candidate(str(at), text, 1.0 / at, at) for at, text in enumerate(texts, 1))
    return bool(unreadable_reason(Ranking(Query("q", query or "?"), tuple(found)), ReadsEnglish()))


def row(name: str, texts: Sequence[str]) -> str:
    """Return the row of single texts: how many there are, are long enough, are told and are called foreign."""
    long = [text for text in texts if len(text) >= MIN_CHARACTERS]
    told = [language for text in long if (language := detect_language(text[:MAX_CHARACTERS]))]
    foreign = sum(language not in ENGLISH for language in told)
    return f"| {name} | {len(texts):,} | {len(long):,} | {len(told):,} | {foreign:,} | {foreign / len(long):.2%} |"


def guides(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each language with its documents: paragraphs that are not English ones left untranslated."""
    english = set(paragraphs(folder / "en"))
    for language in LANGUAGES:
        translated = [text for text in paragraphs(folder / language) if text not in english]
        yield language, random.Random(1).sample(translated, DOCUMENTS)
    yield "en", random.Random(1).sample(sorted(english), DOCUMENTS)


def searches(folder: Path) -> Iterator[tuple[str, Mapping[str, list[str]]]]:
    """Yield each set with its queries, each with the texts of its first hits."""
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_bytes())
        texts, asked = content["texts"], {}
        for query_id, found in content["candidates"].items():
            best = sorted(found, key=found.__getitem__, reverse=True)[:HITS]
            asked[content["queries"][query_id]] = [" ".join(texts[doc_id]) for doc_id in best if doc_id in texts]
        yield file.stem, asked


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("guide", "sets", "data"):
        parser.add_argument(name, type=Path)
    arguments = parser.parse_args()
    print("| texts | all | long enough | clear | called foreign | share |\n|---|---|---|---|---|---|")
    pools = dict(guides(arguments.guide))
    for language, texts in pools.items():
        print(row(f"guide, {language}", texts))
    for corpus in sorted(arguments.data.glob("*/corpus.jsonl")):
        lines = [f"{line.get('title') or ''} {line['text']}".strip() for _, line in numbered_objects(corpus)]
        print(row(corpus.parent.name, lines))
    print("\n| searches | all | foreign queries | foreign documents |\n|---|---|---|---|")
    for language, texts in pools.items():
        for name, some in (("", texts), (f", {TITLE} characters", [text[:TITLE] for text in texts])):
            drawn = random.Random(2)
            alarms = sum(is_alarm("", drawn.sample(some, HITS)) for _ in range(SEARCHES))
            print(f"| guide, {language}{name} | {SEARCHES} | | {alarms} |")
    for name, asked in searches(arguments.sets):
        refused = sum(bool(unreadable_script(query, ENGLISH)) for query in asked)
        alarms = sum(is_alarm(query, texts) for query, texts in asked.items())
        print(f"| {name} | {len(asked):,} | {refused} | {alarms} |")


if __name__ == "__main__":
    main()
