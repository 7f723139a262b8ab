"""Learners of whole rollouts: PPO and A2C, a file per idea.

PPO, read in this order:

1. `settings`: what all learners of rollouts can be told, their state, and schedules;
   `plan` and `ppo_settings`: the sizes of an update, and what only PPO can be told.
2. `returns`: advantages and targets.
3. `losses`: clipped surrogate, value loss, entropy bonus.
4. `minibatches`: gradient steps over minibatches.
5. `samples`: from a rollout to single samples, and the epochs over them.
6. `sampling`, `segments`: the same for whole segments, which recurrent policies need; `teacher`: imitation
   of a trained policy beside the reward.
7. `agent`: acting, and the update that calls all this; `ppo`: the agent that the settings describe.

A2C is `a2c`, after 1, 2, 3, 5 and 7.
"""
