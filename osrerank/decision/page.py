"""Make an HTML page in one file from headings, paragraphs and tables, for light and dark, narrow and wide screens."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #59636e; --line: #d1d9e0; --ground: #ffffff;
  --field: #f6f8fa; --good: #116f38; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9da7b1; --line: #3a424c; --ground: #12161c;
  --field: #1a2028; --good: #5fcf8a; --bad: #ff8b80; } }
* { box-sizing: border-box; } body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; } main { max-width: 980px; margin: 0 auto; padding: 20px 16px 60px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 4px; } h2 { font-size: 1.1rem; margin: 32px 0 8px; }
p { margin: 6px 0; max-width: 75ch; } .quiet { color: var(--quiet); } .verdict { font-size: 1.15rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); gap: 8px 24px; }
.pair ol { margin: 4px 0; padding-left: 24px; } .pair li { overflow-wrap: anywhere; margin: 2px 0; }
details { border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; margin: 8px 0;
  background: var(--field); }
summary { cursor: pointer; } code { background: var(--field); padding: 1px 4px; border-radius: 4px; }
@media (max-width: 600px) { table { font-size: .8rem; } th, td { padding-right: 8px; }
  th:last-child, td:last-child { padding-right: 0; } }
pre { background: var(--field); padding: 10px 12px; border-radius: 6px; overflow-x: auto; }
"""


def page(title: str, *blocks: str) -> str:
    """Return an HTML page; the title is plain text, the blocks are HTML."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(blocks)
    style = f"<style>{STYLE}</style>"
    opening = f'<!doctype html>\n<html lang="en"><head>{head}<title>{escape(title)}</title>{style}</head>'
    return f"{opening}<body><main>\n{body}\n</main></body></html>\n"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str, level: int = 2) -> str:
    """Return a heading of plain text."""
    return f"<h{level}>{escape(text)}</h{level}>"


def rows(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first are numbers, aligned to the right."""

    def row(tag: str, values: Sequence[str]) -> str:
        kinds = ["", *[' class="number"'] * (len(values) - 1)]
        inner = "".join(f"<{tag}{kind}>{escape(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True))
        return f"<tr>{inner}</tr>"

    body = "".join(row("td", cell) for cell in cells)
    return f'<div class="wide"><table><thead>{row("th", columns)}</thead><tbody>{body}</tbody></table></div>'
