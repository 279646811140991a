# SPDX-License-Identifier: Apache-2.0
"""Configures a switch process's log, and writes traces of packets to it without the logging
module."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from switch.cli.options import Options
from switch.pipeline import Pipeline

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


def start(options: Options) -> None:
    """Configures logging by the command line. Raises OSError if the file cannot be written."""
    handlers: list[logging.Handler] = []
    if options.log_file is not None:
        handlers.append(_file(options.log_file, options.log_bytes or 0, options.log_files))
    if options.log_console and options.identity.bmv2:
        handlers.append(logging.StreamHandler(sys.stdout))
    elif options.log_console or not handlers:
        handlers.append(logging.StreamHandler(sys.stderr))
    level = _LEVELS[options.log_level]
    if not options.logs:  # errors are reported even without a log
        level = max(level, logging.WARNING)
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=handlers,
    )


def trace(pipeline: Pipeline) -> None:
    """Logs the trace of every packet at level debug.

    A packet produces ten lines or more, which bound the speed of a traced switch. So C writes them
    itself, unless the log has several destinations or a file that rotates.
    """
    handlers = [one for one in logging.root.handlers if isinstance(one, logging.StreamHandler)]
    turned = any(isinstance(one, RotatingFileHandler) and one.maxBytes for one in handlers)
    if len(handlers) == 1 and not turned:
        pipeline.trace_to(handlers[0].stream.fileno())
    else:
        pipeline.set_trace(_tracer(handlers))


def _tracer(handlers: Sequence[logging.StreamHandler[Any]]) -> Callable[[str], None]:
    """Returns a function that formats a line as `logging` does, in a tenth of the time."""
    second, stamp = 0, ""

    def write(line: str) -> None:
        nonlocal second, stamp
        now = time.time()
        if int(now) != second:
            second = int(now)
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        text = f"{stamp},{int(now * 1000) % 1000:03d} DEBUG switch.trace: {line}\n"
        for handler in handlers:
            handler.acquire()
            try:
                _append(handler, text)
            finally:
                handler.release()

    return write


def _append(handler: logging.StreamHandler[Any], text: str) -> None:
    stream = handler.stream
    most = handler.maxBytes if isinstance(handler, RotatingFileHandler) else 0
    if isinstance(handler, RotatingFileHandler) and 0 < most < stream.tell() + len(text):
        handler.doRollover()
        stream = handler.stream
    stream.write(text)
    stream.flush()


def heard(options: Options) -> bool:
    """Returns True if errors in the log appear on the terminal."""
    return options.log_level != "off" and (options.log_console or options.log_file is None)


def _file(path: Path, most: int, older: int) -> logging.Handler:
    """Opens a log that rotates after `most` bytes (0: never); NAME.txt becomes NAME.1.txt."""
    handler = RotatingFileHandler(path, maxBytes=most, backupCount=older)
    handler.namer = _numbered
    return handler


def _numbered(name: str) -> str:
    """Turns Python's NAME.txt.1 into BMv2's NAME.1.txt."""
    path, _, number = name.rpartition(".")
    stem, dot, suffix = path.rpartition(".txt")
    return f"{stem}.{number}{dot}" if dot and not suffix else name
