# SPDX-License-Identifier: Apache-2.0
"""Sockeye's recurrent translator: Hieber et al., "Sockeye" (2017), as P3 trains it on IWSLT15.

Encoder and decoder have two LSTM layers (the first of the encoder is bidirectional); a perceptron
is the attention (Bahdanau et al., 2015). Vocabularies are those of the data set and 4 symbols more.
"""

from __future__ import annotations

from workloads.architectures.network import Key

_UNITS = 512  # of embeddings, layers and attention
_GATES = 4  # of an LSTM
_SOURCE, _TARGET = 17_188 + 4, 7_706 + 4


def sockeye() -> list[Key]:
    """Returns the keys of Sockeye, in order of use; operations depend on the sentences' lengths."""
    keys: list[Key] = []

    def weight(layer: str, outputs: int, inputs: int, *, bias: bool = False) -> None:
        keys.append(Key(layer, "weight", (outputs, inputs), None))
        if bias:
            keys.append(Key(layer, "bias", (outputs,), None))

    def lstm(layer: str, units: int, inputs: int) -> None:
        weight(f"{layer}_i2h", _GATES * units, inputs, bias=True)
        weight(f"{layer}_h2h", _GATES * units, units, bias=True)

    weight("source_embed", _SOURCE, _UNITS)
    for direction in ("forward", "reverse"):
        lstm(f"encoder_birnn_{direction}_l0", _UNITS // 2, _UNITS)
    lstm("encoder_rnn_l0", _UNITS, _UNITS)
    for state in range(4):  # output and cell of both layers
        weight(f"decoder_enc2decinit_{state}", _UNITS, _UNITS, bias=True)
    weight("att_e2h", _UNITS, _UNITS)
    weight("target_embed", _TARGET, _UNITS)
    lstm("decoder_l0", _UNITS, 2 * _UNITS)  # of the last word and what attention found
    lstm("decoder_l1", _UNITS, _UNITS)
    weight("att_q2h", _UNITS, _UNITS)
    weight("att_h2s", 1, _UNITS)
    weight("decoder_hidden", _UNITS, 2 * _UNITS, bias=True)
    weight("decoder_cls", _TARGET, _UNITS, bias=True)
    return keys
