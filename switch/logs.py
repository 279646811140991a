# SPDX-License-Identifier: Apache-2.0
"""Where a switch process writes its log."""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from switch.options import Options

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def start(options: Options) -> None:
    """Starts logging as the command line says. Raises OSError if the file cannot be written."""
    handlers: list[logging.Handler] = []
    if options.log_file is not None:
        handlers.append(_file(options.log_file, options.log_bytes or 0, options.log_files))
    if options.log_console and options.manner.bmv2:
        handlers.append(logging.StreamHandler(sys.stdout))
    elif options.log_console or not handlers:
        handlers.append(logging.StreamHandler(sys.stderr))
    level = _LEVELS[options.log_level]
    if not options.logs:  # what is wrong is said even where there is no log
        level = max(level, logging.WARNING)
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=handlers,
    )


def heard(options: Options) -> bool:
    """Whether errors in the log are on the terminal, too."""
    return options.log_level != "off" and (options.log_console or options.log_file is None)


def _file(path: Path, most: int, older: int) -> logging.Handler:
    """A log that begins anew after `most` bytes (0: never); NAME.txt becomes NAME.1.txt."""
    handler = RotatingFileHandler(path, maxBytes=most, backupCount=older)
    handler.namer = _numbered
    return handler


def _numbered(name: str) -> str:
    """NAME.txt.1, which is Python's, -> NAME.1.txt, which is BMv2's."""
    path, _, number = name.rpartition(".")
    stem, dot, suffix = path.rpartition(".txt")
    return f"{stem}.{number}{dot}" if dot and not suffix else name
