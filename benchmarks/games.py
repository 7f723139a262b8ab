"""Turn games: how fast they are played, and what self-play learns in them.

    python benchmarks/games.py rates [--pgx PYTHON]
    python benchmarks/games.py kuhn [--game leduc] [--steps 2000000] [--seeds 3]
    python benchmarks/games.py play tictactoe connect4 [--seeds 3]

`rates`: games per second of random legal play, 1024 games side by side with automatic resets, beside those of
PGX (Koyamada et al. 2023) where PYTHON has it (`pip install pgx` in an environment of its own); only the
ratios mean something on another machine. `kuhn`: mirror self-play by PPO, and how exploitable, exactly, the
last policy and the average over the run are. `play`: mirror self-play by PPO, scored against every script.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

GAMES_SIDE_BY_SIDE, PLIES, ROUNDS = 1024, 200, 5
# Ours -> PGX's name of the same game.
PEERS = {
    "tictactoe": "tic_tac_toe",
    "connect4": "connect_four",
    "kuhn": "kuhn_poker",
    "leduc": "leduc_holdem",
    "othello": "othello",
}
ALL = (*PEERS, "nim", "liarsdice", "simpletak", "negotiation", "rps", "words")


def measured(advance, carry) -> dict[str, float]:
    """Median games and plies per second of `advance: (key, carry) -> (carry, games)`, compiled once."""
    run = jax.jit(advance)
    begin = time.perf_counter()
    carry, _ = jax.block_until_ready(run(jax.random.key(0), carry))
    first = time.perf_counter() - begin
    rates = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        carry, games = jax.block_until_ready(run(jax.random.key(number + 1), carry))
        rates.append((float(games), time.perf_counter() - begin))
    seconds = np.median([one[1] for one in rates])
    return {
        "games": float(np.mean([one[0] for one in rates]) / seconds),
        "plies": GAMES_SIDE_BY_SIDE * PLIES / seconds,
        "first_call": first,
    }


def own_rate(name: str) -> dict[str, float]:
    """Random legal play through `episodes.step`, with results and resets."""
    from jaxmarl_echelon import make
    from jaxmarl_echelon.envs import episodes
    from jaxmarl_echelon.envs.checks import random_actions
    from jaxmarl_echelon.envs.episodes import Drawn

    env = make(f"textgames/{name}")

    def draw(key):
        del key
        return Drawn(env.default_params())

    def ply(running, key):
        key_act, key_step = jax.random.split(key)
        keys = jax.random.split(key_act, GAMES_SIDE_BY_SIDE)
        actions = jax.vmap(partial(random_actions, env.spec))(keys, running.time)
        running, stepped = episodes.step(env, key_step, running, actions, draw)
        return running, jnp.sum(stepped.finished.mask)

    def advance(key, running):
        running, games = jax.lax.scan(ply, running, jax.random.split(key, PLIES))
        return running, jnp.sum(games)

    return measured(advance, episodes.start(env, jax.random.key(0), draw, GAMES_SIDE_BY_SIDE))


def peer_rate(name: str) -> dict[str, float]:
    """The same of PGX; runs in an environment that has it."""
    import pgx
    from pgx.experimental import auto_reset

    env = pgx.make(PEERS[name])
    init, step = jax.jit(jax.vmap(env.init)), jax.vmap(auto_reset(env.step, env.init))

    def ply(state, key):
        key_act, key_step = jax.random.split(key)
        logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
        action = jax.random.categorical(key_act, logits, axis=-1)
        state = step(state, action, jax.random.split(key_step, GAMES_SIDE_BY_SIDE))
        return state, jnp.sum(state.terminated)

    def advance(key, state):
        state, games = jax.lax.scan(ply, state, jax.random.split(key, PLIES))
        return state, jnp.sum(games)

    return measured(advance, init(jax.random.split(jax.random.key(0), GAMES_SIDE_BY_SIDE)))


def rates(python: str | None) -> None:
    """Prints games per second of every game, and PGX's where there are any."""
    for name in ALL:
        own = own_rate(name)
        line = f"{name:12s} {own['games']:12,.0f} games/s {own['plies']:13,.0f} plies/s"
        if python and name in PEERS:
            done = subprocess.run([python, __file__, "peer", name], capture_output=True, text=True)
            if done.returncode:
                line += f"   pgx: {done.stderr.strip().splitlines()[-1]}"
            else:
                peer = json.loads(done.stdout.splitlines()[-1])
                line += f"   pgx {peer['games']:12,.0f} games/s, ratio {own['games'] / peer['games']:.2f}"
        elif name in PEERS:
            line += "   pgx was not at hand"
        print(line, flush=True)


def updates(program, number: int):
    """A jitted function `(run) -> run` that does so many updates."""

    def update(run, _):
        return program.update(run)[0], None

    return jax.jit(lambda run: jax.lax.scan(update, run, None, number)[0])


def trainings(overrides: list[str], seeds: int):
    """Yields seed, number of updates, the program of PPO against itself, and its first state."""
    from jaxmarl_echelon import read_config
    from jaxmarl_echelon.training.program import make_program

    config = read_config(*overrides)
    program = make_program(config)
    begin = jax.jit(program.init)
    for seed in range(seeds):
        yield seed, config.updates, program, begin(jax.random.key(seed))


def kuhn(game: str, overrides: list[str], seeds: int, snapshots: int = 100) -> None:
    """Prints exact NashConv of the last policy, and of averages over all and the second half of the run."""
    from jaxmarl_echelon.envs.textgames import exploitability as ex

    step = None
    for seed, number, program, run in trainings([f"env=textgames/{game}", *overrides], seeds):
        every = max(1, number // snapshots)
        if step is None:
            tree, step = ex.tree(program.env.rules), updates(program, every)
            table = jax.jit(partial(ex.probabilities, tree, program.agents["player"]))
            print(f"{game}: uniform play NashConv {ex.nash_conv(tree, ex.uniform(tree)):.4f}")
        policies, begin = [], time.perf_counter()
        for _ in range(number // every):
            run = step(run)
            policies.append(ex.legal_probabilities(tree, table(run.policies["player"])))
        seconds = time.perf_counter() - begin
        half = np.stack(policies[len(policies) // 2 :])
        average = ex.mixture(tree, half)
        conv = {
            "last": policies[-1],
            "average": ex.mixture(tree, np.stack(policies)),
            "average of the second half": average,
        }
        shown = ", ".join(f"{name} {ex.nash_conv(tree, policy):.4f}" for name, policy in conv.items())
        each = [ex.nash_conv(tree, policy) for policy in half]
        print(
            f"{game} seed {seed}: NashConv {shown}; single policies of that half {min(each):.3f} to "
            f"{max(each):.3f}; value {ex.values(tree, average)[0]:+.4f}; {seconds:.0f} s",
            flush=True,
        )


def play(game: str, overrides: list[str], seeds: int, games: int = 1000) -> None:
    """Prints results of the trained policy against every script, in alternating seats."""
    from jaxmarl_echelon.training import controllers, evaluation

    train = None
    # Scripts take the other seats here, in place of the environment's own opponent.
    overrides = [f"env=textgames/{game}", "env.opponent=null", *overrides]
    for seed, number, program, run in trainings(overrides, seeds):
        env = program.env
        if train is None:
            train = updates(program, number)

            def against(name, run, env=env, program=program):
                def seats(env):
                    script = controllers.script(controllers.find_script(env, "player", name))
                    mine = program.controllers(env)["player"]
                    return {"player": controllers.against(mine, script, env.spec.turns)}

                key = jax.random.key(99)
                result = program.evaluate_as(seats, run.policies, run, key, episodes=games)
                return evaluation.summary(result, env.spec, "player")

            scored = {name: jax.jit(partial(against, name)) for name in env.scripts}
        begin = time.perf_counter()
        run = jax.block_until_ready(train(run))
        seconds, parts = time.perf_counter() - begin, []
        for name, score in scored.items():
            found = score(run)
            shares = (f"{100 * found[f'eval_agg/{one}_rate']:.1f}" for one in ("win", "loss", "draw"))
            parts.append(f"{name} {' / '.join(shares)}")
        print(
            f"{game} seed {seed}: win / loss / draw % against {'; '.join(parts)}; {seconds:.0f} s", flush=True
        )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rates", "kuhn", "play", "peer"))
    parser.add_argument("names", nargs="*", help="games of `play`, overrides KEY=VALUE")
    parser.add_argument("--pgx", help="a Python that has PGX")
    parser.add_argument("--game", default="kuhn", help="kuhn, leduc or liarsdice, for `kuhn`")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_intermixed_args()
    overrides = [name for name in given.names if "=" in name]
    games = [name for name in given.names if "=" not in name]
    if given.what == "peer":
        print(json.dumps(peer_rate(*games)))
    elif given.what == "rates":
        rates(given.pgx)
    elif given.what == "kuhn":
        kuhn(given.game, overrides, given.seeds)
    else:
        for game in games:
            play(game, overrides, given.seeds)


if __name__ == "__main__":
    sys.exit(main())
