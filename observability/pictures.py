# SPDX-License-Identifier: Apache-2.0
"""Plots by matplotlib, the same bytes for the same data, and files of drawings.

Figures are SVG, PNG or PDF by matplotlib. Drawings that are SVG already (a topology's) become PNG
and PDF by CairoSVG (https://cairosvg.org), which the extra ``rackhub[plots]`` installs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:  # imported where something is drawn: it takes a second
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
KINDS = "drawings are written as .svg, .png or .pdf"
# Okabe and Ito, "Color Universal Design" (2008): distinguishable with any kind of colour vision.
# Grey replaces their yellow, which is hard to see on white.
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f",
)  # fmt: skip
_PIXELS = 3.0  # of PNG per unit of a drawing; about 2,000 across
_DOTS = 200  # of PNG per inch of a figure
_MOST_TICKS = 6
_DECADES = 100  # from here on only powers of ten are labelled
_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "path.simplify_threshold": 0.5,  # of a pixel: long curves keep what can be seen
    "svg.fonttype": "none",  # text that can be searched and read aloud
    "svg.hashsalt": "rackhub",
}
_SVG = "{http://www.w3.org/2000/svg}"
# In the dark, colours of paper, lines and letters change with the viewer's preference, and the
# darkest of COLOURS. Viewers that have none show the light drawing, which has paper of its own.
_DARK = {"#ffffff": "#12161d", "#000000": "#e5eaf1", "#dddddd": "#333d4c", "#0072b2": "#1a85cc"}
_DARK_STYLE = (
    f"@media (prefers-color-scheme: dark){{svg{{fill: {_DARK['#000000']}}}"  # what states none
    + "".join(
        f'[style*="{what}: {light}"]{{{what}: {dark} !important}}'
        for light, dark in _DARK.items()
        for what in ("fill", "stroke")
    )
    + "}"
)
# Facts of the moment and the program, which would make equal plots differ.
_NO_FACTS = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def style() -> AbstractContextManager[None]:
    """Sets matplotlib's defaults for figures that are made and drawn within."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure of this size in inches, which arranges its axes by itself, and which
    notebooks show."""
    return _figure()((width, height), layout="constrained")


@cache
def _figure() -> type[Figure]:
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure that needs no pyplot to be shown."""

        def _repr_svg_(self) -> str:
            return ElementTree.tostring(_svg(self, ""), encoding="unicode")

    return ShownFigure


def label_ticks(axis: Axis, values: Sequence[float] | None = None) -> None:
    """Labels an axis with plain numbers, at these values or at round ones."""
    from matplotlib import ticker

    low, high = sorted(axis.get_view_interval())
    if values is not None:
        axis.set_major_locator(ticker.FixedLocator(values))
    elif axis.get_scale() == "log":
        steps = (1, 2, 5) if high < _DECADES * low else (1,)
        axis.set_major_locator(ticker.LogLocator(subs=steps))
    else:
        axis.set_major_locator(ticker.MaxNLocator(_MOST_TICKS, steps=(1, 2, 5, 10)))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))


def missing(path: Path) -> str:
    """Returns why a drawing cannot be written in this suffix's format; "" if it can."""
    if path.suffix == ".svg":
        return ""
    try:
        import cairosvg  # noqa: F401
    except ImportError:
        return (
            f"{path.suffix} needs CairoSVG, which is not installed here: pip install"
            " 'rackhub[plots]'; .svg needs nothing"
        )
    except OSError as error:  # the cairo library is missing
        reason = str(error).split("\n", 1)[0]
        return f"{path.suffix} needs cairo, which is not here ({reason}); .svg needs nothing"
    return ""


def write(path: Path, picture: Figure | str, about: str = "") -> None:
    """Writes a figure, or a standalone SVG, in the format of the path's suffix.

    Args:
        about: A figure's title for screen readers.

    Raises:
        OSError: The file cannot be written. Call ``missing`` first for an SVG.
    """
    if not isinstance(picture, str):
        if path.suffix == ".svg":
            svg = _svg(picture, about)
            path.write_text(ElementTree.tostring(svg, encoding="unicode") + "\n")
        else:
            path.write_bytes(_saved(picture, path.suffix[1:], about))
    elif path.suffix == ".svg":
        path.write_text(picture)
    else:
        import cairosvg

        if path.suffix == ".png":
            png = cairosvg.svg2png(picture.encode(), scale=_PIXELS, background_color="white")
            path.write_bytes(png)
        else:
            path.write_bytes(cairosvg.svg2pdf(picture.encode()))


def inline(figure: Figure, about: str, colours: Mapping[str, str]) -> str:
    """Returns a figure as an SVG element for a page.

    Args:
        about: Its accessible label.
        colours: Colours of the page's style sheet in place of the figure's.
    """
    svg = _svg(figure, "")
    for part in svg.findall(f"{_SVG}defs"):  # a style sheet, which would be the whole page's
        svg.remove(part)
    for name in ("width", "height", "version"):
        svg.attrib.pop(name, None)
    svg.attrib |= {"class": "chart", "role": "img", "aria-label": about}
    text = re.sub(r"\s+", " ", ElementTree.tostring(svg, encoding="unicode"))
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)  # the page's font
    return re.sub("|".join(map(re.escape, colours)), lambda found: colours[found[0]], text)


def _svg(figure: Figure, about: str) -> ElementTree.Element:
    """Returns a figure's SVG. An artist with a gid has its label as a title, which viewers show
    where the pointer is."""
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    svg = ElementTree.fromstring(_saved(figure, "svg", about))
    for part in svg.findall(f"{_SVG}metadata"):
        svg.remove(part)
    sheet = svg.find(f"{_SVG}defs/{_SVG}style")
    assert sheet is not None
    sheet.text = (sheet.text or "") + _DARK_STYLE
    titles = {one.get_gid(): str(one.get_label()) for one in figure.findobj() if one.get_gid()}
    for group in svg.iter(f"{_SVG}g"):
        if group.get("id") in titles:
            title = ElementTree.Element(f"{_SVG}title")
            title.text = titles[group.get("id")]
            group.insert(0, title)
    return svg


def _saved(figure: Figure, form: str, about: str) -> bytes:
    facts: dict[str, Any] = {**_NO_FACTS[form], **({"Title": about} if about else {})}
    output = io.BytesIO()
    with style():
        figure.savefig(output, format=form, dpi=_DOTS, metadata=facts)
    return output.getvalue()
