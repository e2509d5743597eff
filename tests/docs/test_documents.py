"""The documents say what is so: examples run, pages made from code are current, links lead somewhere."""

import re
import subprocess
import sys

import pytest

from tests.servers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_readme_is_short_and_its_example_runs(tmp_path, monkeypatch, capsys):
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 150
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    assert len(example.splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "first_pass" in shown
    assert "'applied': True" in shown


def test_command_page_is_current():
    script = ROOT / "tools" / "pages" / "cli_page.py"  # in a process of its own: click keeps help options
    page = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == page, "run: python tools/pages/cli_page.py > docs/cli.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_are_python(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        # a block may await, as in a notebook
        compile(block, page.name, "exec", flags=0x2000)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_pages_exist(page):
    import click

    from osrerank.cli import cli

    names = set(cli.list_commands(click.Context(cli)))
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for line in block.splitlines():
            words = re.sub(r"^\$ ", "", line).split()
            if words and words[0].endswith("osrerank"):
                rest = iter(words[1:])
                command = next((w for w in skip_options(rest)), None)
                assert command is None or command in names, f"{page.name}: {line}"


def skip_options(words):
    for word in words:
        if word in ("--json", "--debug", "-h", "--help", "--version"):
            continue
        if word.startswith("-"):
            next(words, None)
            continue
        yield word
