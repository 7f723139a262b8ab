"""Environment: squads of mechs carry out mission orders in voxel terrain."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.echelon import commands
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import BLUE, TEAMS, EchelonParams
from jaxmarl_echelon.envs.echelon.battle.surroundings import chassis_of
from jaxmarl_echelon.envs.echelon.battle_interface import BattleInterface
from jaxmarl_echelon.envs.echelon.missions import embedding, navigation, own_progress, results
from jaxmarl_echelon.envs.echelon.missions.course import MissionEvaluator
from jaxmarl_echelon.envs.echelon.missions.destinations import DestinationRules
from jaxmarl_echelon.envs.echelon.missions.measures import staging
from jaxmarl_echelon.envs.echelon.missions.measures.credit import CreditRule
from jaxmarl_echelon.envs.echelon.missions.measures.judge import Verdict
from jaxmarl_echelon.envs.echelon.missions.measures.success import time_taken
from jaxmarl_echelon.envs.echelon.missions.objective_status import observe_objective
from jaxmarl_echelon.envs.echelon.missions.parameters import MissionLimits
from jaxmarl_echelon.envs.echelon.missions.scenarios.deploy import deploy_mechs
from jaxmarl_echelon.envs.echelon.missions.scenarios.draw import ScenarioLimits, draw_scenario
from jaxmarl_echelon.envs.echelon.missions.scenarios.ground import ScenarioGround
from jaxmarl_echelon.envs.echelon.missions.script import make_mission_script
from jaxmarl_echelon.envs.echelon.missions.state import MissionParams, MissionState, Scenario
from jaxmarl_echelon.envs.echelon.missions.turns import pick_by_weight, pick_shuffled
from jaxmarl_echelon.envs.echelon.missions.view.render import MissionViewer
from jaxmarl_echelon.envs.echelon.observing.layout import BODY
from jaxmarl_echelon.envs.echelon.observing.observe import Senses
from jaxmarl_echelon.envs.echelon.scripts import baselines
from jaxmarl_echelon.envs.echelon.settings import PERIOD
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from jaxmarl_echelon.envs.results import COMPONENT
from jaxmarl_echelon.envs.spaces import Box

# State, time and order of the mission. Dead mechs still see them: critics need them for delayed rewards.
DEAD_SEE = ("self", "mission", "progress")


class EchelonMissions(Environment):
    """Blue carries out a mission order, red an opposing one; both can succeed. See `make` for the settings.

    The battle, its observations and actions are those of `Echelon`. Observations have an additional block
    `mission`, actions a 27th number, the status report. Mechs see only what their sensors detect. A dead
    mech no longer acts, but receives the mission's terminal reward at the end of the episode with the
    others (a delayed reward); therefore it still sees the blocks on which that reward depends.
    Reference: docs/reference/echelon.md 15.

    Attributes:
      spec: roles, spaces, outcomes.
      interface: the battle with the actions and observations of its mechs.
      teams: mechs of blue and of red.
      layout: layout of an observation.
      blocks: its blocks per role, for encoders.
      registry: the verbs.
      ground: terrain data of scenarios.
      credit: rule by which mechs are credited with success.
      endings: names of the ways in which an episode can end.
      baselines: scripts to compare a learner with.
      controllers: default controller of each role.
      viewer: draws evaluations.
    """

    endings = results.MISSION_ENDINGS

    def __init__(
        self,
        interface: BattleInterface,
        ground: ScenarioGround,
        frame: MissionLimits,
        params: MissionParams,
        task,
        credit: CreditRule,
    ):
        """Assembles the environment.

        Args:
          interface: the battle, whose simulation keeps a hit log, and its layout of an observation.
          ground: terrain data of scenarios.
          frame: bounds that settings are checked against.
          params: default parameters.
          task: `(settings) -> params`, for curricula.
          credit: rule by which mechs are credited with success.
        """
        self.interface, self.reward = interface, frame.reward
        self.teams, self.layout = interface.teams, interface.layout
        self.registry, self.ground = frame.registry, ground
        self.credit, self._params, self._task = credit, params, task
        self.spec = _spec(interface, frame, int(params.echelon.max_decisions))
        self.blocks = dict.fromkeys(TEAMS, self.layout.blocks)
        self.baselines = baselines.BASELINES
        self.controllers = {"blue": "learner", "red": "heuristic"}
        self.viewer = MissionViewer(self, results.MISSION_OUTCOMES, PERIOD)
        self.scripts = self._make_scripts()

    @property
    def bank(self) -> TerrainBank:
        """The terrains."""
        return self.interface.bank

    @property
    def simulation(self) -> BattleSimulation:
        """The battle."""
        return self.interface.simulation

    @property
    def navigates(self) -> bool:
        """Whether observations have the block `navigation`."""
        return navigation.BLOCK in self.layout.names

    @property
    def destination_rules(self) -> DestinationRules:
        """The constants from which destinations of mechs are found."""
        return DestinationRules(self.registry, self.ground, self.bank.size[:2], self.teams)

    def _make_scripts(self) -> dict[str, ScriptedPolicy]:
        """Returns the scripted policies, `NAME_blue` and `NAME_red`, for the present world."""
        return baselines.make_battle_scripts(self.spec, partial(make_mission_script, self))

    @property
    def world(self) -> tuple[TerrainBank, ScenarioGround]:
        """The terrains, and the terrain data of scenarios."""
        return self.bank, self.ground

    def _place_world(self, world: tuple[TerrainBank, ScenarioGround]) -> None:
        bank, self.ground = world
        self.interface = self.interface.with_bank(bank)
        self.scripts = self._make_scripts()

    def default_params(self) -> MissionParams:
        """Returns the configured parameters."""
        return self._params

    def task_params(self, settings: Mapping) -> MissionParams:
        """Returns the default parameters with some of `make`'s settings changed.

        Raises:
          ValueError: one line, for a setting that is unknown, would require recompiling or has a value
            that `make` would refuse.
        """
        return self._task(settings)

    def evaluation_params(self, params: MissionParams, index: jax.Array) -> MissionParams:
        """Returns the parameters of evaluation episode `index`: cycles through verbs and held-out terrains.

        Verbs occur in proportion to their weights; each terrain occurs once in every round of all terrains.
        """
        maps, mission = params.evaluation_maps, params.levers.mission
        index_map, verb = pick_shuffled(maps, index), pick_by_weight(mission, index)
        return params.replace(
            echelon=params.echelon.replace(
                map_weights=jax.nn.one_hot(index_map, maps.size, dtype=maps.dtype)
            ),
            levers=params.levers.replace(mission=jax.nn.one_hot(verb, mission.size, dtype=mission.dtype)),
        )

    def battle_params(self, scenario: Scenario, params: MissionParams) -> EchelonParams:
        """Returns the parameters of a scenario's battle."""
        return params.echelon.replace(classes=scenario.classes, fire_probability=scenario.fire)

    @property
    def course(self) -> MissionEvaluator:
        """The evaluator of the missions."""
        return MissionEvaluator(self.registry, self.simulation, self.ground, self.credit)

    def reset(self, key: jax.Array, params: MissionParams) -> tuple[MissionState, TimeStep]:
        """Starts an episode with a drawn scenario on a drawn terrain."""
        key_map, key_scenario, key_start = jax.random.split(key, 3)
        rules = params.echelon
        index = jax.random.categorical(key_map, jnp.log(rules.map_weights)).astype(jnp.int32)
        limits = ScenarioLimits(self.teams, self.bank.size, rules.max_decisions, rules.fire_probability)
        drawn = draw_scenario(
            key_scenario, self.registry, self.ground, index, params.levers, params.weights, limits
        )
        battle_params = self.battle_params(drawn.scenario, params)
        battle = self.simulation.opened(index, deploy_mechs(key_start, drawn, self.simulation, battle_params))
        size = sum(self.teams)
        opening, senses = self.interface.begin(battle), self.interface.sense(battle, battle_params)
        state, verdict = self.course.opening(opening, drawn.scenario, battle_params, params)
        if self.navigates:
            state = state.replace(navigation=navigation.initial_navigation(battle.mechs.position))
        unpaid = {name: jnp.zeros(size, jnp.float32) for name in self.reward.names}
        return self._report(state, params, senses, verdict, unpaid, unpaid)

    def step(
        self, key: jax.Array, state: MissionState, actions: dict[str, jax.Array], params: MissionParams
    ) -> tuple[MissionState, TimeStep]:
        """Advances one decision of 0.25 s; both teams act at once."""
        battle_params = self.battle_params(state.scenario, params)
        parsed = self.interface.parse_actions(state.echelon, actions)
        # The key is also that of sampled credit and navigation, which fold constants far above the counters
        # of the battle's numbers into it (`assign_credit`): their streams do not overlap.
        after = self.interface.decide(key, state.echelon, parsed, battle_params)
        senses = self.interface.sense(after.battle, battle_params)
        status = parsed.commands[:, commands.STATUS_REPORT]
        state, verdict, due, said = self.course.advance(
            key, state, after, status, senses, battle_params, params
        )
        if self.navigates:
            moved = navigation.advance_navigation(key, state, self.destination_rules)
            state = state.replace(navigation=moved)
        paid, said = (self.reward(params.echelon.reward, one, self.reward.init())[0] for one in (due, said))
        return self._report(state, params, senses, verdict, paid, said)

    def _report(
        self, state: MissionState, params: MissionParams, senses: Senses, verdict: Verdict, paid, said
    ) -> tuple[MissionState, TimeStep]:
        """Returns the state with its contacts and the time step; `paid` are rewards, `said` is logged."""
        battle_params = self.battle_params(state.scenario, params)
        battle, over = state.echelon.battle, verdict.over
        order = staging.present_orders(state.scenario.orders, state.echelon.decision)
        tons = chassis_of(battle_params).tonnage
        told = observe_objective(order, state.by_team, battle.mechs, tons, senses.visible, self.teams)
        mission = embedding.embed_orders(order, battle.mechs.position, len(self.registry.verbs), self.teams)
        further, marks = {"mission": mission}, None
        if self.layout.frame == BODY:
            limit = params.echelon.max_decisions
            further |= own_progress.observe_progress(state, order, self.ground, limit, self.teams)
            marks = own_progress.mark_contacts(state, order, self.teams)
        if self.navigates:
            further |= navigation.observe_navigation(state, self.destination_rules)
        observations, contacts = self.interface.observe(
            state.echelon, battle_params, senses, told, further, DEAD_SEE, marks
        )
        echelon = state.echelon.replace(
            contacts=contacts,
            score=verdict.success,
            outcome=results.outcome_code(verdict.success, over),
            ending=jnp.where(over, verdict.ending, results.RUNNING),
        )
        state, present = state.replace(echelon=echelon), state.scenario.present
        info = self._info(state, params, verdict) | self._paid_to_blue(said, present)
        by_role = self.interface.split_by_role
        return state, TimeStep(
            obs=by_role(observations),
            reward=by_role(sum(paid.values(), jnp.zeros(present.shape, jnp.float32))),
            terminated=by_role(present & over),
            truncated=by_role(jnp.zeros_like(present)),
            alive=by_role(battle.mechs.alive & ~over),
            action_mask={},
            over=over,
            info=info,
            present=by_role(present),
            critic_obs=self.interface.observe_for_critics(
                observations, state.echelon, battle_params, own_progress.both_missions(state, self.teams)
            ),
        )

    def _info(self, state: MissionState, params: MissionParams, verdict: Verdict) -> dict[str, jax.Array]:
        scenario, echelon = state.scenario, state.echelon
        limit = params.echelon.max_decisions * PERIOD
        order = scenario.orders.verb[:, 0]
        taken = time_taken(self.registry, order, verdict.by_team.latched, echelon.decision)
        attempted = verdict.by_team.attempted
        full_fire = scenario.fire[1] >= params.echelon.fire_probability[1]
        return {
            "outcome": echelon.outcome,
            "ending": echelon.ending,
            results.TASK: order[BLUE],
            "map": echelon.battle.map_index,
            "decision": echelon.decision,
            "difficulty": scenario.difficulty,
            **results.report_blue_results(
                verdict.outcome, verdict.success, attempted, taken, limit, full_fire
            ),
        }

    def _paid_to_blue(self, paid: dict[str, jax.Array], present: jax.Array) -> dict[str, jax.Array]:
        """Returns the log entries of the reward components, means over blue's mechs."""
        blue = self.teams[BLUE]
        count = jnp.maximum(jnp.sum(present[:blue]), 1)
        return {f"{COMPONENT}{name}": jnp.sum(value[:blue]) / count for name, value in paid.items()}


def _spec(interface: BattleInterface, frame: MissionLimits, limit: int) -> EnvSpec:
    observation = Box((interface.layout.size,), -np.inf, np.inf)
    action = Box((commands.ACTION_SIZE + 1,), -1.0, 1.0)
    critic = interface.critic_space(len(own_progress.BOTH_FIELDS))
    scores = results.SCORE, results.RED_SCORE
    roles = (
        Role(team, count, observation, action, score, critic)
        for team, count, score in zip(TEAMS, interface.teams, scores, strict=True)
    )
    return EnvSpec(
        name="echelon_missions",
        version=9,
        roles=tuple(roles),
        decision_period=PERIOD,
        episode_limit=limit,
        results=results.declare_mission_results(frame.registry.names, frame.reward.names),
        score=results.SCORE,
        late=True,
    )
