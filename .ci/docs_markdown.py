"""An extension of Markdown: <x, y> is text, as CommonMark has it, where Python's Markdown takes it for an element."""

from typing import Any

from markdown import Extension, Markdown
from markdown.inlinepatterns import HtmlInlineProcessor

ELEMENT = r"(<(/?[a-zA-Z][\w-]*(\s[^<>]*)?/?|!--(?:(?!<!--|-->).)*--)>)"


class Elements(Extension):
    """Take for elements only what has the name of one."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Replace the pattern of elements."""
        md.inlinePatterns.register(HtmlInlineProcessor(ELEMENT, md), "html", 90)


def makeExtension(**options: Any) -> Elements:
    """Return the extension, by the name that Markdown looks for."""
    return Elements(**options)
