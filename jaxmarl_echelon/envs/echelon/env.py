"""Environment: two teams of mechs fight for a zone in voxel terrain."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs import results
from jaxmarl_echelon.envs.base import Environment, EnvSpec, Role, ScriptedPolicy, TimeStep
from jaxmarl_echelon.envs.echelon import assistance
from jaxmarl_echelon.envs.echelon import zone as zone_lib
from jaxmarl_echelon.envs.echelon.battle.simulation import BattleSimulation
from jaxmarl_echelon.envs.echelon.battle.state import BLUE, TEAMS, EchelonParams, EchelonState
from jaxmarl_echelon.envs.echelon.battle.surroundings import Scene, pack_gap
from jaxmarl_echelon.envs.echelon.battle_interface import BattleInterface
from jaxmarl_echelon.envs.echelon.commands import ACTION_SIZE
from jaxmarl_echelon.envs.echelon.results import ENDINGS, OUTCOMES, RUNNING, WINS, decide_outcome
from jaxmarl_echelon.envs.echelon.rewards import BattleRewardInputs
from jaxmarl_echelon.envs.echelon.scripts import baselines
from jaxmarl_echelon.envs.echelon.scripts.heuristic import make_heuristic
from jaxmarl_echelon.envs.echelon.settings import PERIOD, SettingLimits, change_battle_params
from jaxmarl_echelon.envs.echelon.terrain.bank import TerrainBank
from jaxmarl_echelon.envs.echelon.view.viewer import BattleViewer
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.spaces import Box

RED_SCORE = "success/red"


class Echelon(Environment):
    """Blue against red on terrains of one size; see `make` for the settings.

    Roles `blue` and `red` have one agent per mech, with the actions of `commands` and the
    observations of `layout`, each from its own perspective. A mech that dies is terminated and
    receives no further reward; the episode continues until the zone is won, a team is eliminated or
    time is up. Each of these terminates the living mechs: the time limit decides the battle, may be
    rewarded and is observed, so there is no value to bootstrap beyond it. `info["ending"]` is an
    index into `endings`; rewards in `info` are means over blue's mechs.
    Reference: docs/reference/echelon.md 1.2 and 13.

    Attributes:
      spec: roles, spaces, outcomes.
      interface: the battle with the actions and observations of its mechs.
      teams: mechs of blue and of red.
      layout: layout of an observation.
      blocks: its blocks per role, for encoders.
      endings: names of the ways in which an episode can end.
      baselines: scripts to compare a learner with.
      controllers: default controller of each role.
      viewer: draws evaluations.
    """

    endings = ENDINGS

    def __init__(
        self,
        interface: BattleInterface,
        reward: Reward,
        limits: SettingLimits,
        params: EchelonParams,
    ):
        self.interface, self.reward = interface, reward
        self.teams, self.layout = interface.teams, interface.layout
        self._params, self._limits = params, limits
        self._team, self._assists = interface.simulation.team, interface.bank.ways is not None
        self.spec = _spec(interface, reward, int(params.max_decisions))
        self.blocks = dict.fromkeys(TEAMS, self.layout.blocks)
        self.baselines = baselines.BASELINES
        self.controllers = {"blue": "learner", "red": "heuristic"}
        self.viewer = BattleViewer(self.bank, self.teams, OUTCOMES, PERIOD)
        self.scripts = self._make_scripts()

    @property
    def bank(self) -> TerrainBank:
        """The terrains."""
        return self.interface.bank

    @property
    def simulation(self) -> BattleSimulation:
        """The battle."""
        return self.interface.simulation

    def _make_scripts(self) -> dict[str, ScriptedPolicy]:
        """Returns the scripted policies, `NAME_blue` and `NAME_red`, for the current world."""
        return baselines.make_battle_scripts(self.spec, partial(make_heuristic, self.interface))

    @property
    def world(self) -> TerrainBank:
        """The terrains."""
        return self.bank

    def _place_world(self, world: TerrainBank) -> None:
        self.interface = self.interface.with_bank(world)
        self.scripts = self._make_scripts()

    def default_params(self) -> EchelonParams:
        """Returns the configured parameters."""
        return self._params

    def task_params(self, settings: Mapping) -> EchelonParams:
        """Returns the default parameters with some settings changed; see `change_battle_params`."""
        return change_battle_params(self._params, settings, self._limits, self.reward)

    def evaluation_params(self, params: EchelonParams, index: jax.Array) -> EchelonParams:
        """Returns the parameters of evaluation episode `index`, which cycle through the terrains in use."""
        used = params.map_weights > 0
        chosen = used & (jnp.cumsum(used) == index % jnp.sum(used) + 1)
        return params.replace(map_weights=chosen.astype(params.map_weights.dtype))

    def reset(self, key: jax.Array, params: EchelonParams) -> tuple[EchelonState, TimeStep]:
        """Starts an episode on a drawn terrain."""
        key_map, key_start = jax.random.split(key)
        index = jax.random.categorical(key_map, jnp.log(params.map_weights)).astype(jnp.int32)
        state = self.interface.begin(self.simulation.start(key_start, index, params))
        size = sum(self.teams)
        unpaid = {name: jnp.zeros(size, jnp.float32) for name in self.reward.names}
        return self._show(state, params, jnp.ones(size, bool), unpaid)

    def step(
        self, key: jax.Array, state: EchelonState, actions: dict[str, jax.Array], params: EchelonParams
    ) -> tuple[EchelonState, TimeStep]:
        """Advances one decision of 0.25 s; both teams act at once."""
        before, parsed = state.battle.mechs, self.interface.parse_actions(state, actions)
        commands, waypoint = self._assisted(state, parsed.commands, params)
        moved = self.interface.decide(key, state, parsed._replace(commands=commands), params)
        battle = moved.battle
        scene = self.simulation.scene(battle, params)
        hold = self._hold(battle, battle.mechs.alive, scene)
        score = state.score + PERIOD * hold.tick
        outcome, ending, lead = decide_outcome(
            score, *self._strength(battle.mechs), moved.decision, params.zone_seconds, params.max_decisions
        )
        situation = self._situation(before, battle, scene, hold, lead)
        paid, _ = self.reward(params.reward, situation, self.reward.init())
        paid = {name: jnp.where(before.alive, value, 0.0) for name, value in paid.items()}
        moved = moved.replace(score=score, waypoint=waypoint, outcome=outcome, ending=ending)
        return self._show(moved, params, before.alive, paid)

    def _assisted(self, state: EchelonState, commands, params: EchelonParams) -> tuple[jax.Array, jax.Array]:
        """Returns commands blended with navigation assistance, and its waypoints."""
        if not self._assists:
            return commands, state.waypoint
        battle = state.battle
        mechs, chassis = battle.mechs, self.simulation.scene(battle, params).chassis
        waypoint = assistance.refresh_waypoints(self.bank, battle.map_index, mechs, chassis, state.waypoint)
        waypoint = jnp.where(state.decision % assistance.REFRESH == 0, waypoint, state.waypoint)
        share = params.assist[self._team]
        return assistance.blend_throttles(commands, mechs, chassis, waypoint, share), waypoint

    def _hold(self, battle, counts, scene: Scene) -> zone_lib.ZoneHold:
        zone = self.bank.zone[battle.map_index]
        return zone_lib.compute_zone_hold(
            battle.mechs.position, counts, scene.chassis.tonnage, self._team, zone
        )

    def _strength(self, mechs) -> tuple[jax.Array, jax.Array]:
        """Returns the number of living mechs and the sum of their hit points, `[2]` each."""
        living = jnp.stack([mechs.alive & (self._team == side) for side in range(len(TEAMS))])
        return jnp.sum(living, axis=1), jnp.sum(jnp.where(living, mechs.hp, 0.0), axis=1)

    def _situation(self, before, battle, scene: Scene, hold: zone_lib.ZoneHold, lead) -> BattleRewardInputs:
        """Returns the inputs of the reward for a decision."""
        zone, after, tally = self.bank.zone[battle.map_index], battle.mechs, battle.tally
        gained = zone_lib.distance_to_zone(before.position, zone) - zone_lib.distance_to_zone(
            after.position, zone
        )
        inside = jnp.stack([jnp.sum(hold.inside & (self._team == side)) for side in range(len(TEAMS))])
        stood = before.alive & zone_lib.inside_zone(after.position, zone)
        return BattleRewardInputs(
            approach=gained / float(max(self.bank.size[:2])),
            inside=hold.inside,
            friends_inside=inside[self._team] - hold.inside,
            tick=hold.tick[self._team],
            fighting=stood & (inside[1 - self._team] > 0),
            pack_gap=pack_gap(after, scene.packmates),
            dealt=tally.dealt,
            kills=tally.kills,
            assists=tally.assists,
            died=before.alive & ~after.alive,
            alive=after.alive,
            result=jnp.where(self._team == BLUE, lead, -lead),
        )

    def _show(self, state: EchelonState, params, acted, paid) -> tuple[EchelonState, TimeStep]:
        """Returns the state with its contacts and the time step; `acted` `[M]` were alive before."""
        senses = self.interface.sense(state.battle, params)
        observations, contacts = self.interface.observe(state, params, senses)
        state = state.replace(contacts=contacts)
        over, alive = state.outcome != RUNNING, state.battle.mechs.alive
        total = sum(paid.values(), jnp.zeros_like(acted, jnp.float32))
        info = {
            "outcome": state.outcome,
            "ending": state.ending,
            "map": state.battle.map_index,
            "decision": state.decision,
        }
        paid_blue = {f"reward/{name}": jnp.mean(value[: self.teams[BLUE]]) for name, value in paid.items()}
        by_role = self.interface.split_by_role
        return state, TimeStep(
            obs=by_role(observations),
            reward=by_role(total),
            terminated=by_role(acted & (~alive | over)),
            truncated=by_role(jnp.zeros_like(acted)),
            alive=by_role(alive & ~over),
            action_mask={},
            over=over,
            info=info | paid_blue,
            critic_obs=self.interface.observe_for_critics(observations, state, params),
        )


def _spec(interface: BattleInterface, reward: Reward, limit: int) -> EnvSpec:
    observation = Box((interface.layout.size,), -np.inf, np.inf)
    action, critic = Box((ACTION_SIZE,), -1.0, 1.0), interface.critic_space()
    sides = zip(TEAMS, interface.teams, ("success", RED_SCORE), strict=True)
    reported = results.standard_results(OUTCOMES, WINS[:1], components=reward.names)
    won = results.Result(RED_SCORE, kind="rate", source="outcome", among=WINS[1:])
    ending = results.Result("ending", kind="code", labels=ENDINGS)
    return EnvSpec(
        name="echelon",
        version=6,
        roles=tuple(Role(team, count, observation, action, score, critic) for team, count, score in sides),
        decision_period=PERIOD,
        episode_limit=limit,
        results=(*reported, won, ending),
        score="success",
    )
