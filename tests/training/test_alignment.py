"""Links from weights, and the alignment error rate by hand."""

import numpy as np
import pytest

from attnlab.training.alignment import alignment_error_rate, known_links, strongest_links

WEIGHTS = np.array([[0.1, 0.7, 0.2], [0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.9, 0.1]])


def test_each_target_token_is_linked_with_its_largest_weight():
    assert strongest_links(WEIGHTS) == {(0, 1), (1, 0), (3, 1)}  # ties: the first; zeros: none
    assert strongest_links(WEIGHTS, targets=[3, 2]) == {(3, 1)}
    assert strongest_links(np.zeros((2, 0))) == set()


def test_aer_by_hand():
    sure, possible = {(0, 0), (1, 1)}, {(0, 0), (1, 1), (1, 2), (2, 2)}
    found = {(0, 0), (1, 2), (3, 3)}
    # |A ∩ S| = 1, |A ∩ P| = 2, |A| = 3, |S| = 2
    assert alignment_error_rate([found], [sure], [possible]) == pytest.approx(1 - 3 / 5)
    # without possible links: 1 − 2·1 / (3 + 2), one less F-score of the links
    assert alignment_error_rate([found], [sure]) == pytest.approx(1 - 2 / 5)
    # counted over sentences together, so that it is not the mean of 2/5 and 1
    found_2, sure_2 = {(0, 1)}, {(0, 0), (1, 0), (2, 0)}
    rate = alignment_error_rate([found, found_2], [sure, sure_2], [possible, sure_2])
    assert rate == pytest.approx(1 - 3 / 9)


def test_a_token_of_several_sources_is_right_with_any_of_them():
    alignment = [(9,), (0, 1, 2), ()]  # a day, a month by name, a hyphen
    sure, possible = known_links(alignment)
    assert sure == {(0, 9)}
    assert possible == {(0, 9), (1, 0), (1, 1), (1, 2)}
    for letter in range(3):
        assert alignment_error_rate([{(0, 9), (1, letter)}], [sure], [possible]) == 0
