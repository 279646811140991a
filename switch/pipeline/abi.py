# SPDX-License-Identifier: Apache-2.0
"""Declares the C interface of runtime/target.h for ctypes: structs and signatures."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as pointer

from switch.compiler import Functions

# enum sw_error
EXISTS, FULL, NOT_FOUND, NO_MEMORY, RANGE = -1, -2, -3, -4, -5


class Replica(ctypes.Structure):
    """struct sw_replica"""

    _fields_ = (("port", c_uint32), ("instance", c_uint32))


class Output(ctypes.Structure):
    """struct sw_output"""

    _fields_ = (("port", c_uint32), ("length", c_uint32), ("offset", c_uint64))


class Stats(ctypes.Structure):
    """struct sw_stats"""

    _fields_ = (
        ("received", c_uint64),
        ("sent", c_uint64),
        ("dropped", c_uint64),
        ("oversized", c_uint64),
        ("no_buffer", c_uint64),
        ("no_session", c_uint64),
        ("no_group", c_uint64),
        ("out_of_range", c_uint64),
        ("assertions", c_uint64),
        ("parser_timeouts", c_uint64),
        ("rounds_lost", c_uint64),
        ("digests_lost", c_uint64),
    )


LOG_FUNCTION = ctypes.CFUNCTYPE(None, pointer, c_char_p)

_words = POINTER(c_uint64)

FUNCTIONS: Functions = {
    "sw_create": (pointer, (c_uint32,)),
    "sw_destroy": (None, (pointer,)),
    "sw_set_priority_queues": (c_int, (pointer, c_uint32)),
    "sw_get_stats": (None, (pointer, POINTER(Stats))),
    "sw_set_log": (None, (pointer, LOG_FUNCTION, pointer)),
    "sw_table_insert": (
        c_int64,
        (pointer, c_uint32, _words, _words, _words, _words, c_int32, c_uint32, _words),
    ),
    "sw_table_modify": (c_int, (pointer, c_uint32, c_int64, c_uint32, _words)),
    "sw_table_delete": (c_int, (pointer, c_uint32, c_int64)),
    "sw_table_set_default": (c_int, (pointer, c_uint32, c_uint32, _words)),
    "sw_table_counter": (c_int, (pointer, c_uint32, c_int64, _words, _words)),
    "sw_table_set_counter": (c_int, (pointer, c_uint32, c_int64, c_uint64, c_uint64)),
    "sw_member_set": (c_int, (pointer, c_uint32, c_uint32, c_uint32, _words)),
    "sw_member_delete": (c_int, (pointer, c_uint32, c_uint32)),
    "sw_choices_set": (c_int, (pointer, c_uint32, c_uint32, POINTER(c_uint32), c_uint32)),
    "sw_choices_delete": (c_int, (pointer, c_uint32, c_uint32)),
    "sw_crc_set": (c_int, (pointer, c_uint32, c_uint32, c_uint32, c_uint32, c_int, c_int)),
    "sw_counter_read": (c_int, (pointer, c_uint32, c_uint64, _words, _words)),
    "sw_counter_write": (c_int, (pointer, c_uint32, c_uint64, c_uint64, c_uint64)),
    "sw_register_read": (c_int, (pointer, c_uint32, c_uint64, _words)),
    "sw_register_write": (c_int, (pointer, c_uint32, c_uint64, _words)),
    "sw_meter_write": (c_int, (pointer, c_uint32, c_uint64, _words)),
    "sw_meter_read": (c_int, (pointer, c_uint32, c_uint64, _words)),
    "sw_table_meter_write": (c_int, (pointer, c_uint32, c_int64, _words)),
    "sw_table_meter_read": (c_int, (pointer, c_uint32, c_int64, _words)),
    "sw_table_touch": (c_int, (pointer, c_uint32, c_int64, c_uint64)),
    "sw_table_hits": (c_int, (pointer, c_uint32, c_size_t, POINTER(c_int64), _words)),
    "sw_set_notice": (None, (pointer, c_int)),
    "sw_digest_enable": (c_int, (pointer, c_uint32, c_uint32)),
    "sw_digest_waiting": (c_int64, (pointer, c_uint32, _words)),
    "sw_digest_take": (c_int64, (pointer, c_uint32, c_size_t, _words, POINTER(c_uint32))),
    "sw_digest_release": (c_int, (pointer, c_uint32, c_size_t, POINTER(c_uint32))),
    "sw_group_set": (c_int, (pointer, c_uint32, POINTER(Replica), c_size_t)),
    "sw_group_delete": (c_int, (pointer, c_uint32)),
    "sw_session_set": (
        c_int,
        (pointer, c_uint32, POINTER(Replica), c_size_t, c_uint32, c_uint32),
    ),
    "sw_session_delete": (c_int, (pointer, c_uint32)),
    "sw_set_trace": (c_int, (pointer, LOG_FUNCTION, pointer)),
    "sw_trace_to": (c_int, (pointer, c_int)),
    "sw_inject": (
        c_int,
        (
            pointer, c_size_t, POINTER(c_uint32), c_char_p, _words, POINTER(c_uint32), c_uint64,
            POINTER(Output), c_size_t, POINTER(ctypes.c_uint8), c_size_t, POINTER(c_size_t),
        ),
    ),
}  # fmt: skip
