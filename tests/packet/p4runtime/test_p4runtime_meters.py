# SPDX-License-Identifier: Apache-2.0
"""Tests meters in the data plane and over P4Runtime, with a manual clock."""

import random
from fractions import Fraction

import pytest
from google.rpc import code_pb2 as code

from switch.loader import load_program
from switch.p4runtime.stubs import p4runtime_pb2 as p4rt
from switch.pipeline import Pipeline, PipelineError
from switch.pipeline.meters_and_digests import Externs, Rates
from tests.p4 import HERE
from tests.packet.p4runtime.p4rt_learning import (
    INFO,
    RATES,
    Learner,
    bare,
    direct,
    meter,
    number,
    source,
)
from tests.packet.p4runtime.p4rt_support import DELETE, INSERT, MODIFY, config_request

GREEN, YELLOW, RED = range(3)
HOST = 0x0200_0000_00AA
VOLUME = number("direct_meters", "volume")


@pytest.fixture
def learner():
    learner = Learner()
    yield learner
    learner.device.close()


class Model:
    """RFC 2698, section 3, color-blind, in exact numbers."""

    def __init__(self, rates):
        self.rates = rates
        self.committed, self.peak = Fraction(rates.cburst), Fraction(rates.pburst)
        self.then = 0

    def color(self, now_us, tokens):
        passed = Fraction(now_us - self.then, 1_000_000)
        self.then = now_us
        self.committed = min(Fraction(self.rates.cburst), self.committed + passed * self.rates.cir)
        self.peak = min(Fraction(self.rates.pburst), self.peak + passed * self.rates.pir)
        if self.peak < tokens:
            return RED
        self.peak -= tokens
        if self.committed < tokens:
            return YELLOW
        self.committed -= tokens
        return GREEN


@pytest.mark.parametrize("seed", range(4))
def test_colors_are_those_of_rfc_2698(seed):
    rng = random.Random(seed)
    with Pipeline(load_program(HERE / "metered.json"), 64) as pipeline:
        externs, models, now_us = Externs(pipeline), {}, 0
        for name, unit in (("Enter.packets", 1), ("Enter.bytes", 60)):
            cir = rng.randrange(1, 900)
            rates = Rates(
                cir * unit, rng.randrange(1, 9) * unit, rng.randrange(cir, 1500) * unit,
                rng.randrange(1, 9) * unit,
            )  # fmt: skip
            externs.set_meter(name, 5, rates)
            models[name] = Model(rates)
        seen = set()
        for _ in range(400):
            now_us += rng.choice([0, 0, 1, 700, 1333, 5001])
            payload = bytes(rng.randrange(80))
            [(_, sent)] = pipeline.inject(1, bytes([5]) + bytes(6) + payload, now_us)
            colors = (
                models["Enter.packets"].color(now_us, 1),
                models["Enter.bytes"].color(now_us, 7 + len(payload)),
            )
            assert tuple(sent[2:4]) == colors
            seen |= set(colors)
        assert seen == {GREEN, YELLOW, RED}


def test_rates_as_large_as_there_are_do_not_overflow(learner):
    most = (1 << 63) - 1
    rates = dict.fromkeys(RATES, most)
    learner.write((MODIFY, meter(1, config=rates)))
    for now_us in (0, 1, 1 << 50):
        learner.now_us = now_us
        [(_, sent)] = learner.arrives(HOST)
        assert sent[13] >> 6 == GREEN
    learner.write((MODIFY, meter(1, config=dict.fromkeys(RATES, 0))))
    [(_, sent)] = learner.arrives(HOST)
    assert sent[13] >> 6 == RED


def test_missing_meter_is_named():
    program = load_program(HERE / "metered.json")
    with Pipeline(program, 64) as pipeline:
        with pytest.raises(IndexError, match=r"meter 'Enter.bytes' has cells 0 .. 7, not 8"):
            Externs(pipeline).set_meter("Enter.bytes", 8, None)
        with pytest.raises(KeyError, match=r"no meter 'Leave.volume'; it has: Enter.bytes, Enter"):
            Externs(pipeline).meter("Leave.volume", 0)
        with pytest.raises(PipelineError, match=r"table 'Enter.hosts' has no times of hits"):
            Externs(pipeline).last_hits("Enter.hosts", [0])


def test_meters_read_back_as_written(learner):
    learner.write((MODIFY, meter(3, config=RATES)))
    assert learner.read(meter(3)) == [meter(3, config=RATES)]
    assert learner.read(meter(4)) == [meter(4)]
    every = learner.read(meter())
    assert len(every) == 512
    assert every == learner.read(p4rt.MeterEntry())
    assert [one.index.index for one in every if one.HasField("config")] == [3]
    learner.write((MODIFY, meter(config=RATES)))
    assert all(one.config == p4rt.MeterConfig(**RATES) for one in learner.read(meter()))
    learner.write((MODIFY, meter(3)))
    assert learner.read(meter(3)) == [meter(3)]


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (INSERT, meter(1, config=RATES), code.INVALID_ARGUMENT),
        (DELETE, meter(1), code.INVALID_ARGUMENT),
        (MODIFY, meter(-1, config=RATES), code.INVALID_ARGUMENT),
        (MODIFY, meter(512, config=RATES), code.OUT_OF_RANGE),
        (MODIFY, meter(1, config=RATES | {"cir": -1}), code.INVALID_ARGUMENT),
        (MODIFY, meter(1, config=RATES | {"cir": 5}), code.INVALID_ARGUMENT),
        (MODIFY, meter(1, config=RATES | {"eburst": 5}), code.INVALID_ARGUMENT),
        (MODIFY, meter(1, counter_data={}), code.UNIMPLEMENTED),
        (MODIFY, p4rt.MeterEntry(), code.INVALID_ARGUMENT),
        (MODIFY, p4rt.MeterEntry(meter_id=VOLUME), code.INVALID_ARGUMENT),
        (MODIFY, direct(HOST, config=RATES), code.NOT_FOUND),
        (MODIFY, p4rt.DirectMeterEntry(), code.INVALID_ARGUMENT),
        (INSERT, source(HOST, meter_config=RATES | {"pburst": -1}), code.INVALID_ARGUMENT),
        (INSERT, source(HOST, meter_counter_data={}), code.UNIMPLEMENTED),
    ],
)
def test_invalid_input_is_rejected(learner, kind, message, expected):
    assert learner.refusal((kind, message)) == expected
    assert not any(one.HasField("config") for one in learner.read(meter()))
    assert learner.read(bare(HOST)) == []


def test_meters_of_entries(learner):
    rates = p4rt.MeterConfig(cburst=30, pburst=60)
    learner.write((INSERT, source(HOST, meter_config=rates)))
    colors = [learner.arrives(HOST, payload=bytes(10))[0][1][13] >> 6 for _ in range(3)]
    assert colors == [GREEN, YELLOW, RED]
    asked = bare(HOST, meter_config={})
    assert learner.read(asked)[0].meter_config == rates
    assert not learner.read(bare(HOST))[0].HasField("meter_config")
    assert learner.read(direct(HOST)) == [direct(HOST, config=rates)]
    # Who modifies an entry without its meter's rates takes them away.
    learner.write((MODIFY, source(HOST)))
    assert not learner.read(asked)[0].HasField("meter_config")
    assert learner.arrives(HOST)[0][1][13] >> 6 == GREEN
    learner.write((MODIFY, direct(HOST, config=RATES)))
    table = p4rt.DirectMeterEntry()
    table.table_entry.table_id = number("tables", "sources")
    assert learner.read(table) == learner.read(p4rt.DirectMeterEntry())
    assert learner.read(table) == [direct(HOST, config=RATES)]
    # An entry that comes where another was has none of its meter.
    learner.write((DELETE, bare(HOST)), (INSERT, source(HOST)))
    assert learner.read(direct(HOST)) == [direct(HOST)]
    default = p4rt.DirectMeterEntry(config=RATES)
    default.table_entry.table_id = number("tables", "sources")
    default.table_entry.is_default_action = True
    assert learner.refusal((MODIFY, default)) == code.UNIMPLEMENTED


def test_reconciling_keeps_rates_timeouts_and_digests(learner):
    timed = source(HOST, meter_config=RATES, idle_timeout_ns=5_000_000_000)
    enabled = p4rt.DigestEntry(digest_id=number("digests", "odd_t"), config={"max_list_size": 7})
    learner.write((INSERT, timed), (MODIFY, meter(9, config=RATES)), (INSERT, enabled))
    other = p4rt.ForwardingPipelineConfig(
        p4info=INFO.message, p4_device_config=(HERE / "learning.json").read_bytes() + b"\n"
    )
    old = learner.device.pipeline
    learner.device.set_forwarding_pipeline_config(config_request("RECONCILE_AND_COMMIT", other))
    assert learner.device.pipeline is not old
    assert learner.read(bare(HOST, meter_config={})) == [timed]
    assert learner.read(meter(9)) == [meter(9, config=RATES)]
    assert learner.read(p4rt.DigestEntry()) == [enabled]
