"""Functions of trees of arrays with a leading environment axis."""

import numpy as np
import pytest

from jaxmarl_echelon.envs.trees import WIDE, rows_are_finite


@pytest.mark.parametrize("last", [3, WIDE])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_marks_its_row_alone(last, value):
    leaf = np.full((4, 5, last), np.finfo(np.float32).max, np.float32)
    leaf[1] *= -1.0
    leaf[2] = 0.0
    tree = {"numbers": leaf, "counts": np.arange(4), "flat": np.ones((4, 2), np.float32)}
    assert rows_are_finite(tree).tolist() == [True] * 4
    leaf[2, 4, last - 1] = value
    assert rows_are_finite(tree).tolist() == [True, True, False, True]
