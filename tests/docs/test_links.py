"""Links lead to headings that are there, and the pages keep to short sentences."""

import re
from pathlib import Path

import pytest

from tests.servers import ROOT

DOCS = ROOT / "docs"
GENERATED = ("cli.md", "reference.md", "api.md")
WRITTEN = [page for page in sorted(DOCS.glob("*.md")) if page.name not in GENERATED]
MAX_WORDS = 30


def without_code(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as mkdocs makes them; the page itself is the empty one."""
    titles = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {""} | {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in shown}


@pytest.mark.parametrize("page", [ROOT / "README.md", *WRITTEN], ids=lambda page: page.name)
def test_links_to_headings_lead_to_existing_headings(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*\.md)?#([^)\s]+)\)", without_code(page)):
        target = page.parent / link if link else page
        assert anchor in anchors(target), f"{page.name} links to {link}#{anchor}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *WRITTEN], ids=lambda page: page.name)
def test_sentences_of_the_pages_are_short(page: Path) -> None:
    prose = re.sub(r"^(?:\||#|!\[|\[[^\]]+\]: ).*$", "", without_code(page), flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)|<[^>]+>", "]", prose)
    prose = re.sub(r"`[^`]*`", "code", prose)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", prose):
        for sentence in re.split(r"(?<=[.!?:;])[*\])]*\s+(?=\S)", " ".join(paragraph.split())):
            assert len(sentence.split()) <= MAX_WORDS, f"{page.name}: {sentence}"


def test_pages_named_by_the_program_and_the_readme_exist() -> None:
    folders = [ROOT / folder for folder in ("osrerank", "index_loaders", "workers", "docker", "tools")]
    kinds = (".py", ".yml", ".yaml", ".md")
    files = [file for folder in folders for file in folder.rglob("*.*") if file.suffix in kinds]
    for file in (*files, ROOT / "README.md"):
        for page, anchor in re.findall(r"docs/([\w/-]+\.md)(?:#([\w-]+))?", file.read_text("utf-8")):
            assert (DOCS / page).is_file(), f"{file} names {page}"
            assert anchor in anchors(DOCS / page), f"{file} names {page}#{anchor}"
