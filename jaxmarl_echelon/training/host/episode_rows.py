"""Rows of tables of episodes, from the results of an evaluation."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from jaxmarl_echelon.envs.base import EnvSpec
from jaxmarl_echelon.training.acting.episode_statistics import results_per_episode
from jaxmarl_echelon.training.program.evaluation import Evaluation


def result_labels(spec: EnvSpec) -> dict[str, Sequence[str]]:
    """Returns the labels of each result that is a code, by name."""
    return {result.name: result.labels for result in spec.results if result.kind == "code"}


def label_codes(values: Mapping[str, float], labels: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the labels of an episode's codes by name; empty for codes without one."""
    found = {name: int(values[name]) for name in labels if name in values}
    return {name: labels[name][code] if 0 <= code < len(labels[name]) else "" for name, code in found.items()}


def list_episodes(result: Evaluation, spec: EnvSpec, role: str) -> list[dict]:
    """Lists the counted episodes of an evaluation, as values by name.

    Args:
      result: N episodes.
      spec: of the environment.
      role: whose mean return is `reward`.
    """
    returns, labels = np.asarray(result.mean_return(role)), result_labels(spec)
    results = jax.device_get(results_per_episode(result.results, result.present, spec))
    found = []
    for index in np.flatnonzero(~np.asarray(result.quarantined)):
        values = {name: column[index].item() for name, column in results.items()}
        own = {"reward": float(returns[index]), "length": int(result.length[index])}
        found.append(values | {"episode": int(index)} | label_codes(values, labels) | own)
    return found
