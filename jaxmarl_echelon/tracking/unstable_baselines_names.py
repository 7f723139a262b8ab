"""Names of metrics in the tracker of Unstable Baselines, logged in addition to this project's own."""

import re

# Patterns of `namespace/key` to names there; `{env}` is the game, `{opponent}` the opponent in evaluations.
NAMES = {
    r"train/return(/.*)?": "collection-{env}/reward",
    r"train/win_rate": "collection-{env}/Win Rate",
    r"train/loss_rate": "collection-{env}/Loss Rate",
    r"train/draw_rate": "collection-{env}/Draw",
    r"train/score/(\d+)": r"collection-{env}/Reward (pid=\1)",
    r"train/episode_length": "collection-{env}/Game Length",
    # The misspelling is that of Unstable Baselines.
    r"train/answer_tokens": "collection-{env}/Respone Length (char)",
    r"train/prompt_tokens": "collection-{env}/Observation Length (char)",
    r"train/format_rate": "collection-{env}/Format Success Rate - correct_answer_format",
    r"train/invalid_rate": "collection-{env}/Format Success Rate - invalid_move",
    r"eval_agg/avg_reward": "evaluation-{env}{opponent}/Reward",
    r"eval_agg/win_rate": "evaluation-{env}{opponent}/Win Rate",
    r"eval_agg/loss_rate": "evaluation-{env}{opponent}/Loss Rate",
    r"eval_agg/draw_rate": "evaluation-{env}{opponent}/Draw Rate",
    r"losses/(.+)": r"learner/\1",
    r"pool/exploration/unique_(\d)_grams": r"exploration/{env}/Pct. Unique Action \1-gram",
    r"time/tokens_per_second": "inference/learner/tok_s",
}


def unstable_baselines_name(name: str, env: str, opponent: str | None = None) -> str | None:
    """Returns the name of a metric in Unstable Baselines; None if it has no counterpart.

    Args:
      name: `namespace/key`.
      env: name of the environment.
      opponent: script of the other seats in evaluations, or None.
    """
    for pattern, there in NAMES.items():
        if found := re.fullmatch(pattern, name):
            against = f" ({opponent})" if opponent else ""
            return found.expand(there).format(env=env, opponent=against)
    return None
