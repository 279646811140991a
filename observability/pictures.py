# SPDX-License-Identifier: Apache-2.0
"""Writes drawings to files: SVG as it is, PNG and PDF by CairoSVG (https://cairosvg.org), which the
extra ``rackhub[plots]`` installs."""

from __future__ import annotations

from pathlib import Path

__all__ = ["KINDS", "SUFFIXES", "missing", "write"]

SUFFIXES = (".svg", ".png", ".pdf")
KINDS = "drawings are written as .svg, .png or .pdf"
_PIXELS = 3.0  # of PNG per unit of the drawing; about 2,000 across


def missing(path: Path) -> str:
    """Returns why a file with this suffix cannot be written here; "" if it can."""
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


def write(path: Path, svg: str) -> None:
    """Writes a standalone SVG in the format of the path's suffix. Raises ``OSError``.

    Call ``missing`` first.
    """
    if path.suffix == ".svg":
        path.write_text(svg)
        return
    import cairosvg

    if path.suffix == ".png":
        path.write_bytes(cairosvg.svg2png(svg.encode(), scale=_PIXELS, background_color="white"))
    else:
        path.write_bytes(cairosvg.svg2pdf(svg.encode()))
