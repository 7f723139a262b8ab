"""Policies that are loaded from the folder of a run."""

import jax
import numpy as np
import pytest

import jaxmarl_echelon as je
from jaxmarl_echelon import checkpoints, run_loading


def check_loaded_policies(folder, role, stranger):
    """Policies are those of their checkpoints; a role that learns nothing and a checkpoint are refused."""
    _, _, config, _, best = run_loading.load_run(folder, "best_eval")
    latest = checkpoints.restore_state(checkpoints.find_checkpoint(folder, "latest"), best)
    assert len(repr(je.load_policy(folder))) < 200
    for name, state in (("best_eval", best), ("latest", latest)):
        ours, theirs = je.load_policy(folder, role, name), je.make_policy(config, state)
        jax.tree.map(np.testing.assert_array_equal, ours.state, theirs.state)
    with pytest.raises(ValueError, match="has no checkpoint named 'worst'"):
        je.load_policy(folder, checkpoint="worst")
    with pytest.raises(
        ValueError, match=f"role={stranger}: has no learnt policy in this run; allowed: {role[:3]}"
    ):
        je.load_policy(folder, stranger)
