"""Names of metrics as the tracker of Unstable Baselines spells them, beside this project's own."""

import re

# Patterns of `namespace/key` and what it is called there; `{env}` is the game, `{opponent}` who is met in
# evaluations.
NAMES = {
    r"train/return(/.*)?": "collection-{env}/reward",
    r"train/win_rate": "collection-{env}/Win Rate",
    r"train/loss_rate": "collection-{env}/Loss Rate",
    r"train/draw_rate": "collection-{env}/Draw",
    r"train/score/(\d+)": r"collection-{env}/Reward (pid=\1)",
    r"train/episode_length": "collection-{env}/Game Length",
    # Spelled as there.
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


def doc_name(name: str, env: str, opponent: str | None = None) -> str | None:
    """What a metric is called there; None for those that it does not have.

    Args:
      name: `namespace/key`.
      env: name of the environment.
      opponent: who plays the other seats in evaluations, if it is named.
    """
    for pattern, there in NAMES.items():
        if found := re.fullmatch(pattern, name):
            against = f" ({opponent})" if opponent else ""
            return found.expand(there).format(env=env, opponent=against)
    return None
