"""Build a self-contained HTML page from headings, paragraphs and tables, for light, dark and narrow screens."""

from collections.abc import Iterable, Sequence
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
    """Return an HTML page from a title in plain text and blocks of HTML."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join(blocks)
    style = f"<style>{STYLE}</style>"
    opening = f'<!doctype html>\n<html lang="en"><head>{head}<title>{escape(title)}</title>{style}</head>'
    return f"{opening}<body><main>\n{body}\n</main></body></html>\n"


def paragraph(text: str, css_class: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{css_class}">{escape(text)}</p>' if css_class else f"<p>{escape(text)}</p>"


def heading(text: str, level: int = 2) -> str:
    """Return a heading of plain text."""
    return f"<h{level}>{escape(text)}</h{level}>"


def compare_lists(summary: str, before: Iterable[str], after: Iterable[str]) -> str:
    """Return the hits of the first pass and the reranked hits side by side, under a summary that can be clicked.

    ``summary`` is plain text, and the hits are HTML, such as ``<li>d7</li>``.
    """
    first_pass = f"<div><strong>First pass</strong><ol>{''.join(before)}</ol></div>"
    reranked = f"<div><strong>Reranked</strong><ol>{''.join(after)}</ol></div>"
    lists = f'<div class="pair">{first_pass}{reranked}</div>'
    return f"<details open><summary>{escape(summary)}</summary>{lists}</details>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain text. All columns except the first contain numbers, which are aligned to the right."""

    def render_row(tag: str, cells: Sequence[str]) -> str:
        first, *numbers = (escape(cell) for cell in cells)
        number_cells = "".join(f'<{tag} class="number">{number}</{tag}>' for number in numbers)
        return f"<tr><{tag}>{first}</{tag}>{number_cells}</tr>"

    body = "".join(render_row("td", row) for row in rows)
    return f'<div class="wide"><table><thead>{render_row("th", columns)}</thead><tbody>{body}</tbody></table></div>'
