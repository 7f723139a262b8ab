"""The trie of answers: its nodes against a search, probabilities over live children by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algos.language import answer_trie
from algos.language.answer_trie import build_answer_trie, live_children

A, B, C, END, START = 5, 6, 7, 9, 1


def test_nodes_hold_consecutive_answers_and_finished_answers_wait():
    trie = build_answer_trie([(1, 2, 3, 9), (1, 2, 4, 5, 9), (1, 2, 4, 6, 9)])
    assert trie.prefix == (1, 2) and (trie.width, trie.choices) == (3, 2)
    assert trie.branching == (True, True) and trie.most_choices == 2
    np.testing.assert_array_equal(trie.token[0], [3, 4])
    three, four = trie.next[0]
    assert (trie.lo[three], trie.hi[three], trie.lo[four], trie.hi[four]) == (0, 1, 1, 3)
    np.testing.assert_array_equal(trie.tokens, [[3, 9, 0], [4, 5, 9], [4, 6, 9]])
    np.testing.assert_array_equal(trie.lengths, [2, 3, 3])
    nine = trie.next[three, 0]
    assert trie.token[three, 0] == 9 and trie.depth[nine] == 2
    assert trie.next[nine, 0] == nine and trie.token[nine, 0] == 0
    missing = len(trie.lo) - 1
    assert trie.next[three, 1] == missing and trie.lo[missing] == trie.hi[missing]


def test_forced_tokens_are_told_from_choices():
    trie = build_answer_trie([(1, 2, 3, 4, 9), (1, 2, 3, 5, 9), (1, 6, 3, 4, 9)])
    assert (trie.prefix, trie.width, trie.choices) == ((1,), 4, 3)
    assert trie.branching == (True, False, True) and trie.most_choices == 2
    one = build_answer_trie([(1, 9)])
    assert (one.prefix, one.width, one.choices, one.most_choices) == ((1, 9), 0, 0, 0)


@pytest.mark.parametrize("sequences", [[(1, 9), (1, 2, 9), (1, 9, 3)], [(1, 3), (1, 2)], [(1, 2), (1, 2, 3)]])
def test_sequences_that_are_unsorted_or_begin_another_are_refused(sequences):
    with pytest.raises(ValueError, match="must be sorted, and none may begin another"):
        build_answer_trie(sequences)


def random_sequences(rng):
    """Sorted sequences of digits that only end in END."""
    lengths = rng.integers(1, 5, size=60)
    return sorted({(START, *map(int, rng.integers(2, 6, size=length)), END) for length in lengths})


def test_live_children_are_those_with_a_legal_answer_below():
    rng = np.random.default_rng(0)
    sequences = random_sequences(rng)
    trie = build_answer_trie(sequences)
    ok = rng.random((8, len(sequences))) < 0.1
    nodes = np.arange(len(trie.lo) - 1)
    found = jax.jit(lambda ok: live_children(trie, ok[:, None], jnp.broadcast_to(nodes, (8, len(nodes)))))(
        np.broadcast_to(ok, (8, len(sequences)))
    )
    paths = {0: trie.prefix}
    for node in nodes:  # breadth first: parents come before their children
        for token, child in zip(trie.token[node], trie.next[node], strict=True):
            if child not in (node, len(nodes)):
                paths[int(child)] = (*paths[int(node)], int(token))
    assert len(paths) == len(nodes) and set(sequences) <= set(paths.values())
    for row in range(8):
        legal = [sequence for sequence, good in zip(sequences, ok[row], strict=True) if good]
        for node in nodes:
            for slot, child in enumerate(trie.next[node]):
                path = paths.get(int(child))
                wanted = path is not None and any(one[: len(path)] == path for one in legal)
                assert bool(found[row, node, slot]) == wanted


def test_batched_masks_and_nodes_agree():
    sequences = [(1, 2, 9), (1, 3, 4, 9), (1, 3, 5, 9)]
    trie = build_answer_trie(sequences)
    ok = np.array([[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(live_children(trie, ok, np.array([0, 0])), [[True, True], [False, True]])
    counts = answer_trie.count_legal(ok)
    np.testing.assert_array_equal(counts, [[0, 1, 1, 2], [0, 0, 1, 1]])


def answer_distribution(trie, ok, logits):
    """Probability of each answer, and the expected sum of the entropies, by walking the trie."""
    chances, entropy = np.zeros(len(ok)), 0.0
    waiting = [(0, 1.0)]
    while waiting:
        node, chance = waiting.pop()
        live = np.asarray(live_children(trie, ok, np.array(node)))
        weights = np.where(live, np.exp([logits.get(int(token), 0.0) for token in trie.token[node]]), 0.0)
        shares = weights / weights.sum()
        entropy -= chance * sum(share * np.log(share) for share in shares if share > 0)
        for share, child in zip(shares, trie.next[node], strict=True):
            if child == node:
                chances[trie.lo[node]] = chance
            elif share > 0:
                waiting.append((int(child), chance * share))
    return chances, entropy


def test_probabilities_over_live_children_match_the_known_ones():
    sequences = sorted([(START, A, B, END), (START, A, C, END), (START, B, 8, END)])
    trie = build_answer_trie(sequences)
    assert trie.prefix == (START,)
    logits = {A: 0.4, B: -0.2, C: 1.1}
    chances, entropy = answer_distribution(trie, np.ones(3, bool), logits)
    np.testing.assert_allclose(chances, [0.138276994, 0.507379312, 0.354343694], atol=1e-8)
    np.testing.assert_allclose(entropy, 0.985462887, atol=1e-8)
    chances, _ = answer_distribution(trie, np.array([True, False, True]), logits)
    np.testing.assert_allclose(chances, [0.645656306, 0, 0.354343694], atol=1e-8)
