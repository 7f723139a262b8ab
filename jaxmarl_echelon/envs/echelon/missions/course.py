"""Evaluation of missions during an episode: facts, progress, success, end and rewards."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxmarl_echelon.envs.echelon.battle import vectors
from jaxmarl_echelon.envs.echelon.battle.heat_and_stability import is_shut_down
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import EchelonParams, EchelonState, Mechs
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of
from jaxmarl_echelon.envs.echelon.missions import calibration
from jaxmarl_echelon.envs.echelon.missions.measures import facts, record, staging
from jaxmarl_echelon.envs.echelon.missions.measures.credit import CreditInputs, CreditRule, assign_credit
from jaxmarl_echelon.envs.echelon.missions.measures.judge import Verdict, assess_missions
from jaxmarl_echelon.envs.echelon.missions.measures.overwatch_coverage import sees_objective_sample
from jaxmarl_echelon.envs.echelon.missions.pay.components import ShapingInputs
from jaxmarl_echelon.envs.echelon.missions.pay.decision import (
    ComponentRewards,
    MissionRewardInputs,
    compute_mission_rewards,
    read_order_terms,
)
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import ScenarioGround
from jaxmarl_echelon.envs.echelon.missions.state import MissionParams, MissionState, Order, Scenario
from jaxmarl_echelon.envs.echelon.missions.verbs.registry import Registry
from jaxmarl_echelon.envs.echelon.missions.verbs.verb import ACTS
from jaxmarl_echelon.envs.echelon.observing.observe import Senses


@dataclass(frozen=True, eq=False)
class MissionEvaluator:
    """Static configuration of mission evaluation, with its transition functions.

    Attributes:
      registry: the verbs.
      simulation: the battle.
      ground: terrain data of scenarios.
      credit: rule by which mechs are credited with success.
    """

    registry: Registry
    simulation: BattleSimulation
    ground: ScenarioGround
    credit: CreditRule

    def opening(
        self, echelon: EchelonState, scenario: Scenario, battle: EchelonParams, params: MissionParams
    ) -> tuple[MissionState, Verdict]:
        """Returns the mission state before the first decision, and its verdict.

        Args:
          echelon: state of the battle.
          scenario: the drawn scenario.
          battle: parameters of the battle.
          params: parameters of the mission.
        """
        mechs, teams = echelon.battle.mechs, self.simulation.teams
        size = mechs.hp.shape[0]
        order = staging.present_orders(scenario.orders, echelon.decision)
        gap = vectors.vector_length(mechs.position[:, :2] - order.zone[self.simulation.team, :2])
        words = self.ground.open_cells.shape[-1]
        ready = staging.measure_readiness(mechs, chassis_of(battle), scenario.classes, order, teams)
        state = MissionState(
            echelon=echelon,
            scenario=scenario.replace(start=mechs.position[:, :2]),
            by_mech=facts.initial_mech_facts(size, words, self.ground.cell_of(mechs.position), gap),
            by_team=facts.initial_team_facts().replace(**ready._asdict()),
            potential=jnp.zeros(2),
            success=jnp.zeros(2),
            report=calibration.empty_reports(size),
        )
        verdict = self._judged(state, order, params)
        # Before the first decision no mission counts as attempted or done.
        undone = {name: getattr(state.by_team, name) for name in ("latched", "stalled", "attempted")}
        verdict = verdict._replace(
            over=jnp.bool_(False), by_team=verdict.by_team.replace(opening=verdict.potential, **undone)
        )
        return self._with(state, verdict), verdict

    def advance(
        self,
        key: jax.Array,
        state: MissionState,
        after: EchelonState,
        status: jax.Array,
        senses: Senses,
        battle: EchelonParams,
        params: MissionParams,
    ) -> tuple[MissionState, Verdict, ComponentRewards, ComponentRewards]:
        """Advances the missions by one decision.

        Args:
          key: of the decision; see `assign_credit`.
          state: before the decision.
          after: the battle after it.
          status: `[M]` status reports, in [-1, 1].
          senses: sensor readings after it.
          battle: parameters of the battle.
          params: parameters of the mission.

        Returns:
          the state, its verdict, rewards `[M]` per component, and the values `[M]` per component to log.
        """
        orders, teams = state.scenario.orders, self.simulation.teams
        told = staging.present_orders(orders, state.echelon.decision)
        later = staging.present_orders(orders, after.decision)
        now = self._moment(state, after, senses, told, battle, params)
        by_mech, by_team, news = facts.update_facts(now, state.by_mech, state.by_team)
        gap = by_mech.gap
        act = jnp.asarray([ACTS.index(verb.begins) for verb in self.registry.verbs])[told.verb]
        by_mech, by_team = staging.update_stage(
            orders, told, after.decision, act, now.mechs, now.chassis, now.classes, by_mech, by_team, teams
        )
        moved = state.replace(echelon=after, by_mech=by_mech, by_team=by_team)
        verdict = self._judged(moved, later, params)
        report, bonus = self._calibrated(state, status, now, later, verdict.over, params)
        moved = self._with(moved, verdict).replace(report=report)
        limit = params.echelon.max_decisions.astype(jnp.float32)
        shaping = ShapingInputs(
            now=now,
            before=state.echelon.battle.mechs,
            news=news,
            scenario=state.scenario,
            gap=gap,
            potential=jnp.stack([state.potential, verdict.potential]),
            over=verdict.over,
            stalled=verdict.by_team.stalled,
            orders=read_order_terms(told, limit),
            limit=limit,
            gamma=params.gamma,
            decision=after.decision,
            asked=record.requested_cells(now.open_cells, params.cover_target),
        )
        evidence = self._evidence(moved, params)
        it = MissionRewardInputs(shaping, verdict, evidence, told, later, bonus, after.decision)
        return moved, verdict, *compute_mission_rewards(key, self.registry, self.credit, params, it)

    def credit_mechs(self, key: jax.Array, state: MissionState, params: MissionParams) -> jax.Array:
        """Returns the credit `[M]` of each mech if the episode ended now, not weighted.

        Args:
          key: see `assign_credit`.
          state: the missions.
          params: parameters of the mission.
        """
        decision = state.echelon.decision
        order = staging.present_orders(state.scenario.orders, decision)
        verdict = self._judged(state, order, params)
        evidence = self._evidence(state, params)
        assessed = CreditInputs(
            self.registry, evidence, order.went, verdict.outcome, verdict.success, decision
        )
        return assign_credit(self.credit, key, assessed)

    def _with(self, state: MissionState, verdict: Verdict) -> MissionState:
        return state.replace(by_team=verdict.by_team, potential=verdict.potential, success=verdict.success)

    def _moment(
        self, state: MissionState, after: EchelonState, senses: Senses, told: Order, battle, params
    ) -> facts.FactInputs:
        scene = self.simulation.scene(after.battle, battle)
        needed = jnp.asarray(self.registry.flags("watches"))[told.verb]
        teams = self.simulation.teams
        return facts.FactInputs(
            teams=teams,
            mechs=after.battle.mechs,
            tally=after.battle.tally,
            chassis=scene.chassis,
            classes=battle.classes,
            order=told,
            sight=senses.sight,
            quality=senses.quality,
            sensor_range=params.sensor_range,
            stealth=state.scenario.stealth,
            cell=self.ground.cell_of(after.battle.mechs.position),
            open_cells=self.ground.open_cells[after.battle.map_index],
            watching=sees_objective_sample(scene.terrain, after.battle, told, needed, after.decision, teams),
        )

    def _evidence(self, state: MissionState, params: MissionParams) -> record.RecordInputs:
        battle = state.echelon.battle
        return record.RecordInputs(
            teams=self.simulation.teams,
            scenario=state.scenario,
            alive=battle.mechs.alive,
            by_mech=state.by_mech,
            by_team=state.by_team,
            open_cells=self.ground.open_cells[battle.map_index],
            cover_target=params.cover_target,
        )

    def _judged(self, state: MissionState, order: Order, params: MissionParams) -> Verdict:
        echelon, limit = state.echelon, params.echelon.max_decisions
        evidence = self._evidence(state, params)
        return assess_missions(self.registry, evidence, order, echelon.battle.mechs, echelon.decision, limit)

    def _calibrated(
        self,
        state: MissionState,
        status: jax.Array,
        now: facts.FactInputs,
        later: Order,
        over: jax.Array,
        params: MissionParams,
    ):
        """Returns the history of status reports and the bonus `[M]`; `later` are the orders from now on."""
        mechs: Mechs = now.mechs
        distance, next_distance = (
            vectors.vector_length(mechs.position[:, :2] - zone[now.team, :2])
            for zone in (now.order.zone, later.zone)
        )
        fails = (mechs.suppressed > 0) | (mechs.fallen > 0) | is_shut_down(mechs, now.chassis)
        condition = calibration.AgentCondition(
            reported=(status + 1.0) / 2.0,
            acted=state.echelon.battle.mechs.alive,
            alive=mechs.alive,
            trouble=now.tally.hit | fails,
            distance=distance,
            inside=facts.inside_operation_area(now),
            over=over,
        )
        weight, limit = params.weights.calibration, params.echelon.max_decisions
        report, bonus = calibration.score_due_reports(state.report, condition, weight, limit)
        return calibration.shift_report_distances(report, next_distance - distance), bonus
