# SPDX-License-Identifier: Apache-2.0
"""Tests fixed point: error bounds, flags, checksums, and common exponents."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocol.codecs.registry import USUAL
from protocol.exponents import Exponents
from protocol.header import Flag, Op, blank, carries_payload
from protocol.payloads import (
    NO_EXPONENT,
    chunk_exponents,
    chunk_hash,
    float_words,
    floats_of,
    header_hashes,
    rank_order_sum,
    sum_checks,
    word_sums,
)
from protocol.reference import reference_round, reference_sums

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def row(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


@st.composite
def worlds(draw: st.DrawFn) -> np.ndarray:
    """(world, 1, lanes) float32 of similar or wildly different size."""
    world = draw(st.integers(1, 33))
    lanes = draw(st.integers(1, 4))
    top = draw(st.sampled_from([2.0**-148, 2.0**-120, 2.0**-20, 1.0, 1e6, 2.0**120]))
    elements = st.floats(-top, top, width=32) if draw(st.booleans()) else finite
    return draw(hnp.arrays(np.float32, (world, 1, lanes), elements=elements))


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_error_is_half_a_step_per_worker_and_one_rounding(values: np.ndarray) -> None:
    world, _, lanes = values.shape
    own = np.stack([chunk_exponents(mine)[0] for mine in values])
    e = int(own.max()) if own.max() != NO_EXPONENT else 0
    result = reference_sums(values, np.array([e]))
    assert bool(result.flags.any()) == bool((np.abs(values) >= 2.0**127).any())
    if result.flags.any():
        return  # no exponent of the header holds it: summed in float32
    s = 30 - (world - 1).bit_length() - e
    for lane in range(lanes):
        exact = sum((Fraction(float(x)) for x in values[:, 0, lane]), Fraction(0))
        got = float(result.sums[0, lane])
        if np.isinf(got):
            assert abs(exact) > Fraction(2) ** 127
            continue
        bound = world * Fraction(2) ** -(1 + s) + Fraction(2) ** -24 * abs(Fraction(got))
        assert abs(Fraction(got) - exact) <= bound


@given(worlds(), st.integers(-126, 127))
@settings(max_examples=100, deadline=None)
def test_no_partial_sum_overflows_and_nothing_is_clipped(values: np.ndarray, e: int) -> None:
    world = len(values)
    total = np.zeros(values.shape[1:], np.int64)
    for mine in values:
        words, own, flags = USUAL.encode(mine, np.array([e]), world)
        fits = bool((np.abs(mine.astype(np.float64)) < 2.0**e).all())
        assert bool(flags[0] & Flag.OVERFLOW) == (not fits)
        assert fits or not words.any()
        total += np.abs(words.astype(np.int64))
        assert own[0] <= e or flags[0]
    assert (total <= 1 << 30).all()


def test_own_exponent_is_the_least_power_of_two_above_every_value() -> None:
    for value, expected in [
        (1.0, 1),
        (0.999, 0),
        (-2.0, 2),
        (2.0**-126, -125),
        (2.0**-149, -126),  # clamped
        (0.0, NO_EXPONENT),
        (-0.0, NO_EXPONENT),
    ]:
        exponents, flags = chunk_exponents(row(0, value))
        assert (exponents[0], flags[0]) == (expected, 0), value
    exponents, flags = chunk_exponents(row(np.finfo(np.float32).max))
    assert (exponents[0], flags[0]) == (127, Flag.OVERFLOW)


def test_non_finite_values_are_flagged_and_do_not_count() -> None:
    values = np.array([[np.nan, 3, 0], [np.inf, -5, 1], [-np.inf, 0, 0]], np.float32)
    exponents, flags = chunk_exponents(values)
    assert exponents.tolist() == [2, 3, NO_EXPONENT]
    assert (flags == Flag.NONFINITE).all()
    words, own, flags = USUAL.encode(values, np.array([2, 2, 2]), 2)
    assert not words.any()
    assert own.tolist() == [2, 3, NO_EXPONENT]
    assert flags.tolist() == [Flag.NONFINITE, Flag.NONFINITE | Flag.OVERFLOW, Flag.NONFINITE]


@given(
    hnp.arrays(np.float32, (3, 4), elements=finite),
    st.lists(st.integers(-126, 127), min_size=3, max_size=3),
    st.integers(1, 1000),
)
@settings(max_examples=100, deadline=None)
def test_float32_arithmetic_gives_the_bits_of_float64(
    values: np.ndarray, exponents: list[int], world: int
) -> None:
    e = np.array(exponents)
    words, _, flags = USUAL.encode(values, e, world)
    for i in range(3):
        if flags[i]:
            continue
        s = int(USUAL.scale(e[i], world))
        wide = np.rint(values[i].astype(np.float64) * 2.0**s)
        assert words[i].tolist() == wide.tolist()
        with np.errstate(over="ignore"):
            back = (words[i].astype(np.float64) * 2.0**-s).astype(np.float32)
        assert USUAL.decode(words[i : i + 1], e[i : i + 1], world)[0].tobytes() == back.tobytes()


@given(hnp.arrays(np.uint32, (2, 3)))
@settings(max_examples=30, deadline=None)
def test_direct_payloads_keep_every_bit_of_numbers(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    back = floats_of(float_words(values))
    numbers = ~np.isnan(values)
    assert (back.view(np.uint32)[numbers] == bits[numbers]).all()
    assert np.isnan(back[~numbers]).all()


def test_direct_sums_are_in_rank_order() -> None:
    values = np.array([[[1e8]], [[1.0]], [[-1e8]]], np.float32)
    assert rank_order_sum(values)[0, 0] == np.float32(np.float32(1e8 + 1.0) - np.float32(1e8))
    assert rank_order_sum(values[::-1])[0, 0] == np.float32(np.float32(-1e8 + 1.0) + 1e8)


def contribution(seq: int, chunk: int, words: np.ndarray, exponent: int = 3):
    """One worker's header and checksum for a payload."""
    headers = blank(1, Op.CONTRIBUTE)
    for name, value in (
        ("job", 1),
        ("epoch", 1),
        ("seq", seq),
        ("chunk", chunk),
        ("workers", 1),
        ("lanes", words.shape[1]),
        ("exponent", exponent),
    ):
        headers[name] = value
    headers["checksum"] = word_sums(words) + header_hashes(headers)
    return headers


def added(*contributions: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The RESULT that nodes make of contributions, adding checksums like lanes."""
    headers = contributions[0][0].copy()
    headers["version_op"] = 1 << 4 | Op.RESULT
    headers["workers"] = len(contributions)
    headers["checksum"] = sum(int(h["checksum"][0]) for h, _ in contributions) % 2**32
    with np.errstate(over="ignore"):
        total = sum((w.astype(np.int32) for _, w in contributions), np.int32(0))
    return headers, np.asarray(total).astype(">i4")


def holds(headers: np.ndarray, words: np.ndarray) -> bool:
    return bool(sum_checks(headers, words, carries_payload(headers))[0])


def test_the_checksum_survives_aggregation_and_shows_what_went_wrong() -> None:
    rng = np.random.default_rng(1)
    words = [rng.integers(-(2**26), 2**26, (1, 64)).astype(">i4") for _ in range(3)]
    parts = [(contribution(5, 9, w), w) for w in words]
    headers, total = added(*parts)
    assert holds(headers, total)

    for lane, bit in [(0, 0), (17, 31), (63, 12)]:  # a switch corrupts a lane
        wrong = total.copy()
        wrong[0, lane] ^= np.int32(-(2**31) if bit == 31 else 1 << bit)
        assert not holds(headers, wrong)

    other = rng.integers(-(2**26), 2**26, (1, 64)).astype(">i4")
    for seq, chunk, exponent in [(5, 10, 3), (6, 9, 3), (5, 9, 4)]:  # mixed chunks
        mixed = added(*parts[:2], (contribution(seq, chunk, other, exponent), other))
        assert not holds(*mixed)

    twice = added(*parts, parts[2])  # a duplicate summed, the count not noticing
    twice[0]["workers"] = 3
    assert not holds(*twice)
    fewer = added(*parts[:2])  # and one left out
    fewer[0]["workers"] = 3
    assert not holds(*fewer)


def test_a_flagged_sum_has_no_payload_to_check() -> None:
    words = np.ones((1, 4), ">i4")
    headers = contribution(0, 0, words)
    headers["flags"] = Flag.OVERFLOW
    assert holds(headers, words)
    headers["flags"] = Flag.OVERFLOW | Flag.DIRECT
    assert holds(headers, words)
    headers["checksum"] += 1
    assert not holds(headers, words)


def test_the_hash_is_the_documented_one() -> None:
    def reference(job: int, stream: int, seq: int, chunk: int, exponent: int) -> int:
        h = 0x9E3779B9
        for word in (job << 16 | stream << 8 | exponent & 0xFF, seq, chunk):
            h = (h ^ word) * 0x85EBCA6B % 2**32
            h ^= h >> 15
        h = h * 0xC2B2AE35 % 2**32
        return h ^ h >> 13

    for arguments in [(1, 0, 0, 0, 0), (65535, 255, 2**32 - 1, 2**32 - 1, -126), (7, 3, 8, 9, 5)]:
        assert int(chunk_hash(*arguments)) == reference(*arguments)


def round_exponent(policy: Exponents, *values: float) -> tuple[int, int]:
    """Exponent used for, and flags of, one round of chunk 0 with one value per worker."""
    data = np.array(values, np.float32).reshape(len(values), 1, 1)
    result = reference_round(data, [0], policy)
    return int(result.exponents[0]), int(result.flags[0])


def test_exponents_follow_the_last_complete_round_with_headroom() -> None:
    policy = Exponents(1, world=2)
    assert round_exponent(policy, 0.75, 3.0) == (2, 0)  # first contact: the largest exponent
    assert round_exponent(policy, 0.75, 0.1) == (4, 0)  # 2 + headroom
    assert round_exponent(policy, 0.0, 0.0) == (2, 0)  # 0 + headroom
    assert round_exponent(policy, 0.5, 100.0) == (2, Flag.OVERFLOW)  # all zero: as it was
    assert round_exponent(policy, 0.5, 0.5) == (9, 0)  # the flagged round's DIRECT result counts


def test_a_chunk_that_is_all_zero_at_first_starts_at_exponent_zero() -> None:
    policy = Exponents(1, world=2)
    assert round_exponent(policy, 0.0, 0.0) == (0, 0)
    assert round_exponent(policy, 0.5, 0.0) == (0, 0)
    assert round_exponent(policy, 0.5, 0.0) == (2, 0)


def test_with_staleness_rounds_may_overlap_and_still_agree() -> None:
    in_turn, overlapping = (Exponents(1, world=1, staleness=1) for _ in range(2))
    found = [3, 5, -128, 7, 1]
    used: list[list[int]] = [[], []]
    for policy, log, order in (
        (in_turn, used[0], [[0], [1], [2], [3], [4]]),
        (overlapping, used[1], [[0], [2, 1], [4, 3]]),  # pairs complete in reverse
    ):
        for t, _ in enumerate(found):
            rounds, first = policy.begin([0])
            assert (int(rounds[0]), bool(first[0])) == (t, t == 0)
        policy.contact([0], [found[0]])
        for group in order:
            for t in sorted(group):
                assert policy.ready([0], [t])[0]
                log.append(int(policy.exponents([0], [t])[0]))
            assert not policy.ready([0], [max(group) + 2])[0]
            for t in group:
                policy.complete([0], [t], [found[t]])
    assert used[0] == used[1] == [3, 5, 5, 7, 7]


def test_a_submission_with_a_repeated_or_unknown_chunk_is_refused() -> None:
    policy = Exponents(4, world=1)
    with pytest.raises(ValueError, match="twice"):
        policy.begin([1, 2, 1])
    with pytest.raises(ValueError, match=r"0\.\.3"):
        policy.begin([4])
