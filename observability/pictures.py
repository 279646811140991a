# SPDX-License-Identifier: Apache-2.0
"""Drawings as files. All are drawn as SVG; PNG and PDF are made of that by CairoSVG
(https://cairosvg.org), the extra ``rackhub[plots]``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["KINDS", "SUFFIXES", "missing", "write"]

SUFFIXES = (".svg", ".png", ".pdf")
KINDS = "drawings are written as .svg, .png or .pdf"
_PIXELS = 3.0  # of PNG, for each unit of the drawing: some 2,000 across


def missing(path: Path) -> str:
    """Why a file of this kind cannot be written here, "" if it can."""
    if path.suffix == ".svg":
        return ""
    try:
        import cairosvg  # noqa: F401
    except ImportError:
        return (
            f"{path.suffix} needs CairoSVG, which is not installed here: pip install"
            " 'rackhub[plots]'; .svg needs nothing"
        )
    except OSError as error:  # the C library that it is made for
        reason = str(error).split("\n", 1)[0]
        return f"{path.suffix} needs cairo, which is not here ({reason}); .svg needs nothing"
    return ""


def write(path: Path, svg: str) -> None:
    """Writes a drawing, SVG that stands alone, as what the path's suffix says. Raises ``OSError``;
    ``missing`` is to be asked first."""
    if path.suffix == ".svg":
        path.write_text(svg)
        return
    import cairosvg

    if path.suffix == ".png":
        path.write_bytes(cairosvg.svg2png(svg.encode(), scale=_PIXELS, background_color="white"))
    else:
        path.write_bytes(cairosvg.svg2pdf(svg.encode()))
