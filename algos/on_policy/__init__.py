"""On-policy learners: PPO, A2C and PQN, one file per idea.

Reading order for PPO:

1. `settings`: settings, state and schedules of all on-policy learners;
   `plan` and `ppo_settings`: the sizes of an update, and the settings of PPO.
2. `returns`: advantages and targets.
3. `losses`: clipped surrogate, value loss, entropy bonus.
4. `minibatches`: gradient steps over minibatches.
5. `samples`: from a rollout to single samples, and the epochs over them.
6. `sampling`, `segments`: the same for whole segments, which recurrent policies need; `teacher`: imitation
   of a trained policy in addition to the reinforcement-learning objective.
7. `agent`: acting, and the update that calls the above; `ppo`: the agent that the settings describe.

For A2C read 1, 2, 3, 5 and 7, then `a2c`; for PQN 1, 2, 4, 5 and 7, then `pqn`. Formulas:
docs/reference/trainer.md.
"""
