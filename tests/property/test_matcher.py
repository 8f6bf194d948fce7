"""Promises of the matcher on random sequences under random edits: it finds its way back, and is seldom wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chameleon_lab.runtime import core

NEAR = 16
"""Ops by which a position may be off and still fire a trigger in time."""


def training_step(seed: int, layers: int, ops_per_layer: int) -> list[int]:
    """Tokens as training makes them: layers alike but for the weights they read, backward, optimizer.

    About a third of the tokens are a layer's own; the rest are the same in every layer.
    """
    rng = random.Random(seed)
    kinds = [rng.randrange(1 << 20) for _ in range(12)]
    layer = [(rng.choice(kinds), rng.random() < 0.35) for _ in range(ops_per_layer)]
    tokens = []
    for stage, order in ((1, range(layers)), (2, reversed(range(layers)))):
        for number in order:
            tokens += [
                kind * 8 + stage + ((number + 1) << 24 if own else 0)
                for kind, own in (layer if stage == 1 else layer[::-1])
            ]
    tokens += [kinds[k % 3] * 8 + 3 + ((k // 3 + 1) << 24) for k in range(3 * layers)]
    return tokens


def edited(tokens: Sequence[int], rate: float, seed: int) -> tuple[list[int], list[int]]:
    """Ops left out, put in and replaced at random; the live tokens, and the op that each one is, or -1."""
    rng = random.Random(seed)
    live, truth = [], []
    for op, token in enumerate(tokens):
        fate = rng.random()
        if fate < rate / 3:
            continue
        if fate < rate:
            live.append(rng.choice(tokens) if rng.random() < 0.5 else rng.randrange(1 << 32))
            truth.append(-1)
        if fate < rate / 3 or fate >= 2 * rate / 3:
            live.append(token)
            truth.append(op)
    return live, truth


def match(tokens: Sequence[int], live: Sequence[int]) -> np.ndarray:
    """Where the matcher puts every live op."""
    return core.Matcher(np.array(tokens, np.uint32)).match_all(np.array(live, np.uint32))[0]


def quality(found: np.ndarray, truth: Sequence[int]) -> tuple[float, float]:
    """Precision (of the ops that were found, how many lie where they should) and recall."""
    want = np.array(truth)
    real = want >= 0
    right = real & (found >= 0) & (abs(found - want) <= NEAR)
    return float(right.sum() / max((found[real] >= 0).sum(), 1)), float(right.sum() / max(real.sum(), 1))


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(8, 40))
@settings(deadline=None)
def test_the_same_sequence_matches_whole(seed: int, layers: int, ops: int) -> None:
    tokens = training_step(seed, layers, ops)
    assert match(tokens, tokens).tolist() == list(range(len(tokens)))


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=120))
@settings(deadline=None)
def test_positions_are_of_the_same_token_and_inside(tokens: list[int], live: list[int]) -> None:
    """Whatever comes, a match is with an op of that very token, and the cursor stays within the sequence."""
    matcher = core.Matcher(np.array(tokens, np.uint32))
    for token in live:
        op, _ = matcher.match(token)
        assert op == -1 or tokens[op] == token
        assert 0 <= matcher.cursor <= len(tokens)


@given(
    st.integers(0, 10**6),
    st.integers(3, 12),
    st.integers(12, 40),
    st.sampled_from([0.01, 0.02, 0.05, 0.1]),
    st.integers(0, 10**6),
)
@examples(200)
@example(29, 3, 29, 0.1, 4442)  # lost a fifth of the ops when an op after a gap counted as an extra one
def test_random_edits_are_followed(seed: int, layers: int, ops: int, rate: float, edits: int) -> None:
    tokens = training_step(seed, layers, ops)
    live, truth = edited(tokens, rate, edits)
    precision, recall = quality(match(tokens, live), truth)
    assert precision >= 0.9 and recall >= 0.9, (precision, recall)


@pytest.mark.parametrize("rate, floor", [(0.01, 0.999), (0.02, 0.999), (0.1, 0.99)])
def test_on_average_hardly_an_op_is_lost(rate: float, floor: float) -> None:
    scores = [
        quality(match(tokens, live), truth)
        for seed in range(40)
        for tokens in [training_step(seed, 8, 30)]
        for live, truth in [edited(tokens, rate, seed + 1000)]
    ]
    precision, recall = np.mean(scores, axis=0)
    assert precision >= floor and recall >= floor, (precision, recall)


def test_layers_left_out_run_twice_or_preceded_by_an_evaluation() -> None:
    layers, ops = 8, 30
    tokens = training_step(5, layers, ops)
    index = list(range(len(tokens)))
    forward, backward = index[: layers * ops], index[layers * ops : 2 * layers * ops]
    optimizer = index[2 * layers * ops :]
    skipped = {3, 4}
    runs = {
        "two layers left out": [op for op in forward if op // ops not in skipped]
        + [op for op in backward if layers - 1 - (op - layers * ops) // ops not in skipped]
        + optimizer,
        "a second micro-batch": forward + backward + forward + backward + optimizer,
        "no optimizer": forward + backward,
    }
    for name, truth in runs.items():
        precision, recall = quality(match(tokens, [tokens[op] for op in truth]), truth)
        assert precision >= 0.97 and recall >= 0.97, (name, precision, recall)
    evaluation = [tokens[op] ^ 0x5A5A0000 for op in forward]
    found = match(tokens, evaluation + tokens)
    assert (found[: len(evaluation)] == -1).all()
    assert (found[len(evaluation) :] == np.arange(len(tokens))).mean() >= 0.99


def test_it_is_never_lost_for_long() -> None:
    """After any amount of noise, a clean run is followed again: after a layer at most, since layers are much alike."""
    rng = random.Random(1)
    tokens = training_step(2, 10, 30)
    for _ in range(50):
        begin = rng.randrange(len(tokens) - 60)
        noise = [rng.randrange(1 << 32) for _ in range(rng.randrange(1, 300))]
        found = match(tokens, tokens[: rng.randrange(len(tokens))] + noise + tokens[begin : begin + 60])
        assert (abs(found[-30:] - np.arange(begin + 30, begin + 60)) <= NEAR).all(), begin


def test_two_sequences_of_one_beginning_share_its_hash() -> None:
    tokens = training_step(1, 2, 10)

    def fingerprint(part: list[int]) -> int:
        empty = np.empty(0, np.int64)
        columns = [empty] * 6 + [np.zeros(1), *[empty] * 7]
        return core.make_program(np.array(part, np.uint32), *columns).fingerprint

    assert fingerprint(tokens) == fingerprint(list(tokens)) != fingerprint(tokens[:-1])
    assert fingerprint([1, 2]) != fingerprint([2, 1])
