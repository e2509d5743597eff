"""A hook for mkdocs that makes links to files outside ``docs`` lead to the repository."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_arguments: Any) -> str:
    """Return a page's Markdown with absolute links to source files."""

    def make_absolute(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link.group(1)))
        return link.group(0) if target.startswith("docs/") else f"]({config.repo_url}/blob/main/{target})"

    return LINK.sub(make_absolute, markdown)
