"""Speed of the mech battles, and behaviour statistics of two heuristic teams.

    python benchmarks/echelon.py [--quick]                          # steps/s, bytes, parts, compile seconds
    python benchmarks/echelon.py --behaviour [--episodes 200]       # distributions with standard errors

One environment step is one decision of 0.25 s (five substeps) of all mechs, with observations, rewards
and automatic resets. Peer, measured elsewhere on two such CPU cores with heuristic teams: the original
does about 230 env steps/s in 5 v 5 on 40x40 and 60 in 10 v 10 on 100x100.
"""

import argparse
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hydra import compose, initialize_config_dir
from machine import gather_rate, matmul_rate, seconds_per_call
from rich.console import Console
from rich.table import Table
from spread import bytes_per_environment, spread

from algos.defaults import config_directory
from algos.masks import select_rows
from jaxmarl_echelon.envs import episodes
from jaxmarl_echelon.envs.echelon.battle import heat_and_stability, movement, projectiles, weapons
from jaxmarl_echelon.envs.echelon.battle.state import TEAMS
from jaxmarl_echelon.envs.echelon.battle.unit_tables import MISSILE, WEAPONS
from jaxmarl_echelon.envs.echelon.observing.observe import observe_mechs, place_of
from jaxmarl_echelon.training.config import build

SIZES = {"echelon": ("5 v 5, 40x40", 230.0), "echelon_10v10": ("10 v 10, 100x100", 60.0)}


def environment(name: str, overrides=()):
    """The environment of a configuration."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return build.build_run_config(compose("config", [f"env={name}", *overrides])).env


def heuristic_teams(env):
    """Builds both teams' memories, and `act`: `(key, memory, state, params) -> (memory, actions)`."""
    policies = {role: env.scripts[f"heuristic_{role}"] for role in TEAMS}
    memory = {role: policy.init() for role, policy in policies.items()}

    def act(key, memory, state, params):
        keys = dict(zip(TEAMS, jax.random.split(key, 2), strict=True))
        done = {role: p.act(keys[role], memory[role], state, params) for role, p in policies.items()}
        return {role: one[0] for role, one in done.items()}, {role: one[1] for role, one in done.items()}

    return memory, act


def battles(env, num_envs: int, steps: int, devices: int):
    """Builds a function that runs `steps` decisions of heuristic teams, and its arguments; see `spread`."""
    params = env.default_params()
    memory, act = heuristic_teams(env)
    share = num_envs // devices
    begin = jax.tree.map(lambda x: jnp.broadcast_to(x, (share, *jnp.shape(x))), memory)

    def draw(_key):
        return episodes.EpisodeTask(params)

    def advance(carry, key):
        running, memory = carry
        key_act, key_step = jax.random.split(key)
        memory = select_rows(running.time.info["decision"] == 0, begin, memory)
        keys = jax.random.split(key_act, share)
        memory, actions = jax.vmap(act)(keys, memory, running.env, running.params)
        return (episodes.step_episodes(env, key_step, running, actions, draw)[0], memory), None

    def run(running, key):
        return jax.lax.scan(advance, (running, begin), jax.random.split(key, steps))[0][0]

    return spread(run, lambda key: episodes.start_episodes(env, key, draw, num_envs), devices)


def measure_speed(console, name: str, env, sizes) -> None:
    """Prints steps per second by number of environments and devices."""
    title, peer = SIZES[name]
    table = Table(title=f"heuristic teams, {title}", title_justify="left")
    for column in ("envs", "devices", "compile s", "env steps/s", "agent steps/s", "x original", "bytes/env"):
        table.add_column(column, justify="right")
    mechs = sum(role.size for role in env.spec.roles)
    for devices in sorted({1, jax.local_device_count()}):
        for num_envs in sizes:
            steps = max(8, 4096 // num_envs)
            run, arguments = battles(env, num_envs, steps, devices)
            begin = time.perf_counter()
            compiled = run.lower(*arguments).compile()
            compile_seconds = time.perf_counter() - begin
            rate = num_envs * steps / seconds_per_call(compiled, *arguments, budget=3.0)
            size = bytes_per_environment(arguments[0].env, num_envs)
            table.add_row(
                f"{num_envs:,}", str(devices), f"{compile_seconds:.1f}", f"{rate:,.0f}",
                f"{mechs * rate:,.0f}", f"{rate / peer:.1f}", f"{size:,.0f}",
            )  # fmt: skip
    console.print(table)


def measure_parts(console, name: str, env, num_envs: int) -> None:
    """Prints microseconds per environment and decision of the parts of a step, each run in isolation."""
    params = env.default_params()
    run, arguments = battles(env, num_envs, 40, 1)
    running = jax.tree.map(jnp.asarray, jax.device_get(run(*arguments)))
    keys = jax.random.split(jax.random.key(3), num_envs)
    memory, act = heuristic_teams(env)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *jnp.shape(x))), memory)
    _, actions = jax.jit(jax.vmap(partial(act, params=params)))(keys, memory, running.env)
    commands = jnp.concatenate([actions[team] for team in TEAMS], axis=1)
    senses = jax.jit(jax.vmap(partial(env.interface.sense, params=params)))(running.env.battle)
    parts = {
        "whole step": (partial(env.step, params=params), (keys, running.env, actions)),
        "simulation, five substeps": (
            partial(env.simulation.decide, params=params),
            (keys, running.env.battle, commands),
        ),
        "- weapons": (partial(weapons_alone, env, params), (running.env.battle, commands)),
        "- projectiles": (partial(projectiles_alone, env, params), (running.env.battle,)),
        "- movement": (partial(movement_alone, env, params), (running.env.battle, commands)),
        "sight and sensors": (partial(env.interface.sense, params=params), (running.env.battle,)),
        "observation": (partial(observation_alone, env, params), (running.env, senses)),
        "heuristic teams": (partial(act, params=params), (keys, memory, running.env)),
    }
    title = f"parts of a decision, {SIZES[name][0]}, {num_envs} environments"
    table = Table(title=title, title_justify="left")
    table.add_column("part")
    table.add_column("us per environment", justify="right")
    for part, (fn, inputs) in parts.items():
        seconds = seconds_per_call(jax.jit(jax.vmap(fn)), *inputs)
        table.add_row(part, f"{1e6 * seconds / num_envs:,.1f}")
    console.print(table)


def every_substep(env, advance, start):
    """Repeats a part of the simulation for all substeps of a decision."""
    return jax.lax.scan(lambda carry, _: (advance(carry), None), start, None, env.simulation.substeps)[0]


def weapons_alone(env, params, battle, commands):
    """Runs only the weapons of all substeps."""
    scene, orders = env.simulation.scene(battle, params), heat_and_stability.parse_commands(commands, params)
    draws = jnp.full(len(env.simulation.team), 0.5)

    def advance(carry):
        mechs, flying, tally = carry
        return weapons.fire_weapons(
            scene, mechs, flying, battle.smoke, tally, orders, draws, env.simulation.original
        )

    return every_substep(env, advance, (battle.mechs, battle.projectiles, battle.tally))


def projectiles_alone(env, params, battle):
    """Runs only flight and impacts of all substeps."""
    size = len(env.simulation.team)
    scene, draws = env.simulation.scene(battle, params), jnp.full((size, 2), 0.5)

    def advance(carry):
        return projectiles.move_projectiles(scene, battle.mechs, *carry, draws)[:2]

    return every_substep(env, advance, (battle.projectiles, battle.smoke))


def movement_alone(env, params, battle, commands):
    """Runs only acceleration and collisions of all substeps."""
    simulation = env.simulation
    scene, orders = simulation.scene(battle, params), heat_and_stability.parse_commands(commands, params)
    ground = movement.ground_around(scene.terrain, battle.mechs.position, simulation.substeps)
    size = len(simulation.team)
    wet, draws = jnp.zeros(size, bool), jnp.arange(size, dtype=jnp.int32)

    def advance(mechs):
        mechs = movement.accelerate_mechs(mechs, scene.chassis, orders, wet, scene.gravity)
        return movement.move_mechs(
            mechs, scene.chassis, ground, draws, simulation.size[:2], simulation.original
        )

    return every_substep(env, advance, battle.mechs)


def observation_alone(env, params, state, senses):
    """Computes only the observations of all mechs, from given senses."""
    chassis = env.simulation.scene(state.battle, params).chassis
    place = place_of(env.bank, state.battle.map_index)
    return observe_mechs(env.layout, state, params, env.interface.sides(params), chassis, senses, place)


def measure_behaviour(console, name: str, envs: dict, number: int) -> None:
    """Prints episode statistics of two heuristic teams by environment, with standard errors."""
    table = Table(title=f"{number} episodes of heuristic teams, {SIZES[name][0]}", title_justify="left")
    table.add_column("mean (standard error)")
    rows = {}
    for label, env in envs.items():
        table.add_column(label, justify="right")
        for quantity, values in statistics(env, *play(env, number)).items():
            values = np.asarray(values, float)
            error = values.std(ddof=1) / np.sqrt(len(values))
            rows.setdefault(quantity, []).append(f"{values.mean():.3f} ({error:.3f})")
    for quantity, cells in rows.items():
        table.add_row(quantity, *cells)
    console.print(table)


def play(env, number: int):
    """Final states `[N]` of whole episodes of heuristic teams, and statistics per decision `[N, T]`."""
    params = env.default_params()
    memory, act = heuristic_teams(env)

    def episode(key):
        key_reset, key_run = jax.random.split(key)
        state, time_step = env.reset(key_reset, params)

        def advance(carry, key):
            state, memory, over = carry
            key_act, key_step = jax.random.split(key)
            memory, actions = act(key_act, memory, state, params)
            after, shown = env.step(key_step, state, actions, params)
            after = jax.tree.map(lambda new, old: jnp.where(over, old, new), after, state)
            return (after, memory, over | shown.over), observed(env, after, params, over)

        start = (state, memory, time_step.over)
        (state, _, _), seen = jax.lax.scan(advance, start, jax.random.split(key_run, env.spec.episode_limit))
        return state, seen

    run = jax.jit(lambda keys: jax.lax.map(episode, keys, batch_size=50))
    return jax.device_get(run(jax.random.split(jax.random.key(0), number)))


def observed(env, state, params, over):
    """Statistics of one decision; zeros after the end."""
    mechs, tally = state.battle.mechs, state.battle.tally
    # Line of sight rather than visibility: with full observation every living mech is visible.
    sight = env.interface.sense(state.battle, params).sight
    half = env.simulation.teams[0]
    enemies = sight[:half, half:] & mechs.alive[:half, None] & mechs.alive[None, half:]
    pairs = (mechs.alive[:half, None] & mechs.alive[None, half:]).sum()
    facts = {
        "kills": tally.kills.sum(),
        "damage": tally.dealt.sum(),
        "intercepted": tally.intercepted.sum(),
        "shots": tally.shots.sum(0),
        "in sight": enemies.sum() / jnp.maximum(pairs, 1),
        "decisions": 1,
    }
    return jax.tree.map(lambda x: jnp.where(over, 0, x), facts)


def statistics(env, final, seen) -> dict[str, np.ndarray]:
    """Per episode `[N]`: lengths, endings, outcomes and sums over decisions."""
    length = seen["decisions"].sum(1)
    result = {"decisions": length}
    for code, ending in enumerate(env.endings):
        result[f"ended by {ending}"] = final.ending == code
    for code, outcome in enumerate(env.spec.outcomes):
        result[outcome] = final.outcome == code
    for quantity in ("kills", "damage", "intercepted"):
        result[quantity] = seen[quantity].sum(1)
    shots = seen["shots"].sum(1)
    for weapon, name in enumerate(WEAPONS):
        result[f"shots: {name}"] = shots[:, weapon]
    result["intercepted per missile"] = result["intercepted"] / np.maximum(shots[:, MISSILE], 1)
    for team, name in enumerate(TEAMS):
        result[f"zone seconds: {name}"] = final.score[:, team]
    result["enemies in sight"] = seen["in sight"].sum(1) / np.maximum(length, 1)
    return result


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--behaviour", action="store_true", help="statistics of heuristic teams instead of speed"
    )
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--only", choices=list(SIZES), help="one of the two environments")
    arguments, overrides = parser.parse_known_args()
    # A CPU is one device by default; one device per core runs environments in parallel.
    if jax.config.jax_num_cpu_devices < 1:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    console = Console()
    console.print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, {jax.local_device_count()} device(s)"
    )
    console.print(f"this machine: {matmul_rate() / 1e9:,.0f} GFLOP/s, {gather_rate() / 1e6:,.0f} M gathers/s")
    for name in [arguments.only] if arguments.only else SIZES:
        env = environment(name, overrides)
        if arguments.behaviour:
            original = environment(name, [*overrides, "env.original=true"])
            envs = {"this project": env, "env.original=true": original}
            measure_behaviour(console, name, envs, arguments.episodes)
        else:
            sizes = (256,) if arguments.quick else (16, 64, 256, 1024)
            measure_speed(console, name, env, sizes)
            measure_parts(console, name, env, 256)


if __name__ == "__main__":
    main()
