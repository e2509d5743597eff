"""The documents are true: examples run, pages made from code are current, links lead somewhere."""

import contextlib
import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib

import pytest

from osrerank.errors import MissingDependencyError
from tests.servers import ROOT

SAMPLE = ROOT / "osrerank" / "data" / "squad"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
USER_PAGES = [page for page in PAGES if page.parent.name != "research" and page.name not in ("cli.md", "deploy.md")]
"""The pages that name no options of other programs."""
REPOSITORY = "https://github.com/osrerank/osrerank/blob/main/"
PUBLIC = ("", ".aio", ".options", ".evaluation", ".types", ".errors", ".testing")
"""Modules of the package whose ``__all__`` is public."""
ADAPTERS = (".adapters.langchain", ".adapters.llama_index", ".adapters.haystack", ".adapters.pyterrier")


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    text = (ROOT / "README.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    shown = capsys.readouterr().out
    assert names["response"]["hits"]["hits"][0]["_rerank"]["first_pass"]["rank"] == 2  # the example shows a gain
    assert "first_pass" in shown
    assert "'applied': True" in shown


def test_the_example_of_how_it_works_prints_what_its_comments_say(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(example, "concepts.md", "exec"), names)
    shown = re.findall(r"^print\((.*)\)  # (.*)$", example, re.MULTILINE)
    assert len(shown) == 4
    for expression, printed in shown:
        assert eval(expression, names) == pytest.approx(json.loads(printed), abs=0.02)


@pytest.mark.parametrize("name", ["cli", "reference"])
def test_generated_pages_are_current(name):
    script = f"tools/pages/{name}_page.py"  # in a process of its own: click keeps help options
    output = subprocess.run(
        [sys.executable, ROOT / script], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert (ROOT / "docs" / f"{name}.md").read_text("utf-8") == output, f"run: python {script} > docs/{name}.md"


def test_the_api_page_is_the_public_api():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    matches = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    modules = [importlib.import_module(f"osrerank{name}") for name in PUBLIC]
    for name in ADAPTERS:
        with contextlib.suppress(MissingDependencyError):
            modules.append(importlib.import_module(f"osrerank{name}"))
    exported = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    missing = {name for name in ADAPTERS if f"osrerank{name}" not in {module.__name__ for module in modules}}
    documented = {one for one in matches if not any(name in one for name in missing)}
    assert documented == exported
    assert len(matches) == len(set(matches))


@pytest.mark.parametrize("name", PUBLIC[1:])
def test_what_a_public_module_defines_is_exported(name):
    module = importlib.import_module(f"osrerank{name}")
    objects = [value for value in vars(module).values() if inspect.isroutine(value) or inspect.isclass(value)]
    defined = {
        object_.__name__ for object_ in objects if object_.__module__ == module.__name__ and object_.__name__[0] != "_"
    }
    assert defined <= set(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)  # ruff has them sorted


def test_every_page_is_in_the_navigation():
    named = re.findall(r"^ +- (?:\w[^:\n]*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    log = ROOT / "docs" / "research"  # not in the navigation: its own list leads to its pages
    listed = re.findall(r"\]\((\S+\.md)\)", (log / "index.md").read_text("utf-8"))
    assert sorted(["index.md", *listed]) == sorted(page.name for page in log.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_to_files(page):
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for link in re.findall(rf"{REPOSITORY}([^\s)#]+)", text):
        assert (ROOT / link).exists(), f"{page.name} links to {link}"
    labels = re.findall(r"^\[(\S+)\]: ", text, re.MULTILINE)
    assert sorted(labels) == sorted(set(re.findall(r"\]\[([a-z]+)\]", text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_pages_compile(page):
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


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_options_in_pages_exist(page):
    import click

    from osrerank.cli import cli

    def options(command):
        own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        commands = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ()
        return own.union({"--help"}, *(options(command.get_command(click.Context(command), name)) for name in commands))

    known = options(cli)
    spans = re.findall(r"`((?:osrerank|--)[^`\n]*)`", page.read_text("utf-8"))
    unknown = {name for span in spans for name in re.findall(r"(?<!\S)--[a-z][\w-]*", span)} - known
    assert not unknown, f"{page.name} names options that do not exist: {unknown}"


def skip_options(words):
    for word in words:
        if word in ("--json", "--debug", "-h", "--help", "--version"):
            continue
        if word.startswith("-"):
            next(words, None)
            continue
        yield word


def test_names_in_the_contributing_page_are_defined_in_the_linked_files():
    page = ROOT / "docs" / "contributing.md"
    links = re.findall(r"\[`([\w.]+)`\]\((\S+\.py)\)", page.read_text("utf-8"))
    assert len(links) > 30
    for name, file in links:
        source = (page.parent / file).read_text("utf-8")
        for part in name.removesuffix(".py").split("."):
            is_there = re.search(rf"^\s*(?:async )?(?:def|class) {part}\b|^{part}\b", source, re.MULTILINE)
            assert is_there or file.endswith(f"/{part}.py"), f"{file} has no {name}"


def test_the_contributing_page_shows_the_layers_that_import_linter_enforces():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (held,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    page = (ROOT / "docs" / "contributing.md").read_text("utf-8")
    shown = re.search(r"## Who may import whom.*?```\n(.*?)```", page, re.DOTALL).group(1).splitlines()
    assert shown[0] == "cli | osrerank_loaders | osrerank_workers"
    assert shown[1:] == held[2:]
    assert held[:2] == ["__main__", "cli"]


@pytest.mark.parametrize(
    ("example", "shown"),
    [
        ("search_my_index.py", ["first pass", "reranked", "'applied': True"]),
        ("rerank_texts.py", ["Dehydration, bed rest"]),
    ],
)
def test_scripts_in_docs_examples_run(example, shown, tmp_path):
    command = [sys.executable, ROOT / "docs" / "examples" / example]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert [line for line in shown if line not in output] == []
