# SPDX-License-Identifier: Apache-2.0
"""``rackhub report``: a run as one HTML file, which needs nothing else to be read.

No script, and nothing is loaded from anywhere, which the page's own policy says, too.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from observability.record import RunDirectory
from observability.report.reading import read
from observability.report.report_context import report_context

__all__ = ["make"]


def make(run: RunDirectory) -> str:
    """The page of a run, over or not. Raises ``RunError`` if nothing is known of it."""
    templates = Environment(
        loader=PackageLoader("observability.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["svg"] = Markup  # of our own drawing, whose texts are escaped
    style, _, _ = templates.loader.get_source(templates, "page.css")  # type: ignore[union-attr]
    return templates.get_template("page.html").render(
        style=Markup(style), **report_context(read(run))
    )
