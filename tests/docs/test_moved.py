"""What was on a page before is still found: each old heading has a successor, and the pages keep to short sentences."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.servers import ROOT

DOCS = ROOT / "docs"
MOVED = tomllib.loads(Path(__file__).with_name("moved.toml").read_text("utf-8"))
GENERATED = ("cli.md", "reference.md", "api.md")
WRITTEN = [page for page in sorted(DOCS.glob("*.md")) if page.name not in GENERATED]
MOST_WORDS = 30


def without_code(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as mkdocs makes them; the page itself is the empty one."""
    titles = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {""} | {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in shown}


@pytest.mark.parametrize("old", MOVED)
def test_each_old_heading_has_a_successor(old: str) -> None:
    for heading, successor in MOVED[old].items():
        page, _, anchor = successor.partition("#")
        assert (DOCS / page).is_file(), f"{old}#{heading} leads to {successor}"
        assert anchor in anchors(DOCS / page), f"{old}#{heading} leads to {successor}"


def test_the_site_redirects_each_old_page_to_its_successor() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    redirects = dict(re.findall(r"^ {8}(\S+\.md): (\S+)$", settings, re.MULTILINE))
    gone = {old: next(iter(headings.values())) for old, headings in MOVED.items() if not (DOCS / old).exists()}
    pages = {old: successor.partition("#")[0] for old, successor in redirects.items()}
    assert pages == {old: successor.partition("#")[0] for old, successor in gone.items()}
    for successor in redirects.values():
        page, _, anchor = successor.partition("#")
        assert anchor in anchors(DOCS / page), f"mkdocs.yml redirects to {successor}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *WRITTEN], ids=lambda page: page.name)
def test_links_lead_to_headings(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*\.md)?#([^)\s]+)\)", without_code(page)):
        target = page.parent / link if link else page
        assert anchor in anchors(target), f"{page.name} links to {link}#{anchor}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *WRITTEN], ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    prose = re.sub(r"^(?:\||#|!\[|\[[^\]]+\]: ).*$", "", without_code(page), flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)|<[^>]+>", "]", prose)
    prose = re.sub(r"`[^`]*`", "code", prose)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", prose):
        for sentence in re.split(r"(?<=[.!?:;])[*\])]*\s+(?=\S)", " ".join(paragraph.split())):
            assert len(sentence.split()) <= MOST_WORDS, f"{page.name}: {sentence}"


def test_pages_that_the_program_and_the_readme_name_are_there() -> None:
    folders = [ROOT / folder for folder in ("osrerank", "index_loaders", "workers", "docker", "tools")]
    kinds = (".py", ".yml", ".yaml", ".md")
    files = [file for folder in folders for file in folder.rglob("*.*") if file.suffix in kinds]
    for file in (*files, ROOT / "README.md"):
        for page, anchor in re.findall(r"docs/([\w/-]+\.md)(?:#([\w-]+))?", file.read_text("utf-8")):
            assert (DOCS / page).is_file(), f"{file} names {page}"
            assert anchor in anchors(DOCS / page), f"{file} names {page}#{anchor}"
