"""One update of a run: a rollout, the learners' steps, the pool and the curriculum."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from algos import collectives
from algos.types import PyTree, Rollout
from jaxmarl_echelon.curricula.base import Curriculum
from jaxmarl_echelon.envs.episodes import Finished
from jaxmarl_echelon.selfplay import diversity, league_pool
from jaxmarl_echelon.selfplay import pool as pool_lib
from jaxmarl_echelon.selfplay import report as pool_report
from jaxmarl_echelon.training.acting import answer_statistics, episode_statistics
from jaxmarl_echelon.training.acting.episode_statistics import SelectedEpisodes
from jaxmarl_echelon.training.acting.random_streams import split_update
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.opponents import pool_role, seat_rounds
from jaxmarl_echelon.training.program.state import has_traced_hyperparameters, rotates_seats
from jaxmarl_echelon.training.rollouts import collect as rollout
from jaxmarl_echelon.training.rollouts import turn_based, turn_based_pool
from jaxmarl_echelon.training.rollouts.spec import CollectedRollout

# Folded into an update's key of opponents, to separate the draw of counted games from other draws.
BALANCED = 65


class Report(NamedTuple):
    """Output of an update for the host.

    Attributes:
      metrics: scalars by their full names (`train/...`, `losses/...`, `curriculum/...`).
      episodes: table of finished episodes, see `episode_statistics.episode_rows`.
      entries: table of the pool's entries, see `selfplay.report.pool_rows`; empty without a pool.
      lineage: of population based training, see `population.exchange_learners`; empty without it.
    """

    metrics: dict[str, jax.Array]
    episodes: dict[str, jax.Array]
    entries: dict[str, jax.Array] = {}
    lineage: dict[str, jax.Array] = {}


def update_once(config, collector, curriculum: Curriculum, run: RunState) -> tuple[RunState, Report]:
    """Runs one rollout, then updates every rollout learner and the curriculum, for one shard."""
    own_keys = split_update(run.key)
    collect = rollout.collect_rollout
    if turn_based.uses_turn_based_rollout(collector):
        collect = (
            turn_based.collect_turn_based
            if collector.seat is None
            else turn_based_pool.collect_turn_based_pool
        )
    with jax.named_scope("rollout"):
        run, collected = collect(
            collector, run, own_keys.rollout, lambda k: curriculum.draw(k, run.curriculum)
        )
    given = collector.env.spec, collector.seat, run.pool, collected.flow
    flow = pool_role.leave_out_episodes_near_cuts(*given, whole_games=collector.whole_games)
    policies, losses = dict(run.policies), dict(collected.metrics)
    said = answer_statistics.answer_metrics(collected.rollouts)
    with jax.named_scope("learn"):
        credit, rollouts = apply_reward_transforms(collector, run, collected)
        keys = jax.random.split(own_keys.learning, len(collector.agents))
        for k, (role, agent) in zip(keys, collector.agents.items(), strict=True):
            if role in rollouts:
                policies[role], losses[role] = agent.update(run.policies[role], k, rollouts[role])
    pool, plays, policies = update_pool(collector, run, own_keys.opponents, policies, flow.finished)
    judged = flow
    if collector.seat is not None:
        own = pool_role.restrict_to_own_seat(collector.env.spec, collector.seat, flow.finished)
        flow = flow.replace(finished=own)
        judged = pool_role.select_scored_games(collector.env.spec, collector.seat, flow)
    finished = flow.finished
    with jax.named_scope("curriculum"):
        # Stages are judged by the episodes that are admitted as they begin; a ramp counts all that end.
        flow = collectives.gather_shards(flow.replace(begins=judged.begins), 1)
        course, tickets = curriculum.update(run.curriculum, run.tickets, flow)
    rows = config.episode_rows if collector.seat else max(config.episode_rows, config.window)
    newest = episode_statistics.select_finished(finished, rows, newest=True)
    scored = newest
    if collector.seat is not None:
        scored = episode_statistics.select_finished(judged.finished, config.window, newest=True)
    run = run.replace(
        key=own_keys.following,
        policies=policies,
        curriculum=course,
        tickets=tickets,
        recent=episode_statistics.add_recent(run.recent, scored.finished, collector.env.spec),
        updates=run.updates + 1,
        pool=pool,
        plays=plays,
        credit=credit,
    )
    metrics = said | curriculum.metrics(run.curriculum)
    metrics |= episode_statistics.quarantine_metrics(collected.quarantined)
    metrics |= {} if collector.seat is None else {episode_statistics.SCORED: scored.number}
    listed = episode_statistics.keep_newest(newest, config.episode_rows)
    return run, _make_report(collector, run, losses, metrics, listed)


def _make_report(collector, run: RunState, losses, metrics, listed: SelectedEpisodes) -> Report:
    """Builds the report of an update from losses by role, other `metrics` and the listed episodes."""
    spec, seat, roles = collector.env.spec, collector.seat, tuple(collector.agents)
    named = {}
    for role in roles:
        prefix = "losses" if len(roles) == 1 else f"losses/{role}"
        named |= {f"{prefix}/{name}": value for name, value in losses[role].items()}
    named |= episode_statistics.recent_metrics(run.recent, spec, roles) | metrics
    table = episode_statistics.episode_rows(listed, spec, roles)
    if seat is None:
        return Report(named, table)
    named |= pool_report.pool_metrics(seat.pool, run.pool)
    if run.plays is not None:
        named |= pool_report.exploration_metrics(run.plays, spec.roles[0].action)
    return Report(named, table, pool_report.pool_rows(seat.pool, run.pool))


def apply_reward_transforms(
    collector, run: RunState, collected: CollectedRollout
) -> tuple[PyTree, dict[str, Rollout]]:
    """Applies reward transforms to the rollouts; returns the transforms' states and the rollouts."""
    credit, rollouts = {}, dict(collected.rollouts)
    for role, transforms in collector.credits.items():
        given = run.credit[role], rollouts[role], collected.transform_inputs[role]
        credit[role], rollouts[role] = transforms.apply(*given)
    return credit or None, rollouts


def update_pool(
    collector, run: RunState, key: jax.Array, policies: dict[str, PyTree], finished: Finished
) -> tuple[PyTree, PyTree, dict[str, PyTree]]:
    """Updates the pool after a rollout's games and the learners' updates; None without a pool.

    Returns the pool, the record of moves, and the policies, in which a league's learner may be reset.
    """
    seat, plays = collector.seat, run.plays
    if seat is None:
        return None, None, policies
    before = run.pool
    if plays is not None:
        moves = diversity.action_count(collector.env.spec.roles[0].action)
        before = before.replace(
            distinct=diversity.distinct_ngram_share(plays, moves, diversity.MATCHMAKING_GRAM)
        )
    rated = finished
    if rotates_seats(collector):
        given = finished, seat.pool.settings.entries, collector.env.spec.turns
        rated = seat_rounds.balance_seats(jax.random.fold_in(key, BALANCED), *given)
    counts = pool_role.count_outcomes(collector.env.spec, seat, rated)
    agent, learner = collector.agents[seat.owner], policies[seat.owner]
    games = pool_role.select_ranked_games(
        jax.random.fold_in(key, pool_role.RANKED), collector.env.spec, seat, rated
    )
    points = pool_role.sum_rival_scores(collector.env.spec, seat, rated)
    given = seat.pool, before, key, counts, agent.rollout_policy(learner), games, points
    if before.league is not None:
        after, anew = league_pool.update_league_pool(*given)
        origin = before.league.origin
        if has_traced_hyperparameters(collector.agents, seat.owner):
            origin = origin.replace(hyper=learner.hyper)
        learner = jax.tree.map(lambda x, y: jnp.where(anew, x, y), origin, learner)
        return after, plays, policies | {seat.owner: learner}
    after = pool_lib.update_pool_state(*given)
    if plays is not None:
        plays = diversity.clear_entries(plays, after.iteration != before.iteration)
    return after, plays, policies
