# SPDX-License-Identifier: Apache-2.0
"""Builds ``rackhub report``: a run as one self-contained HTML file, or its data.

The file has no scripts and loads nothing; its content security policy enforces that.
"""

from __future__ import annotations

from functools import partial

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from observability.messages.report import ReportData
from observability.record import RunDirectory
from observability.report.reading import read
from observability.report.report_context import STYLES, report_context, report_data
from topologies.model.units import time_text

__all__ = ["collect", "make"]


def collect(run: RunDirectory) -> ReportData:
    """Returns what the page of a run shows. Raises ``RunError`` if nothing is known of it."""
    return report_data(read(run))


def make(run: RunDirectory) -> str:
    """Returns the page of a run, over or not. Raises ``RunError`` if nothing is known of it."""
    templates = Environment(
        loader=PackageLoader("observability.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["svg"] = Markup  # for drawings of this project, whose texts are escaped
    style, _, _ = templates.loader.get_source(templates, "page.css")  # type: ignore[union-attr]
    return templates.get_template("page.html").render(
        vars(report_context(read(run))),
        style=Markup(style),
        styles=STYLES,
        time=partial(time_text, digits=4),
    )
