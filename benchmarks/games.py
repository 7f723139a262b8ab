"""Turn games: speed of play, and results of self-play.

    python benchmarks/games.py rates [GAME ...] [--pgx PYTHON]
    python benchmarks/games.py hidden kuhn leduc [--seeds 3] [KEY=VALUE ...]
    python benchmarks/games.py play tictactoe connect4 [--seeds 3] [--games 1000] [KEY=VALUE ...]
    python benchmarks/games.py score RUN ... [--games 1000]

`rates`: games per second of random legal play, 1024 parallel games with automatic resets, compared with PGX
(Koyamada et al. 2023) if PYTHON has it (`pip install pgx` in a separate environment); only the ratios carry
over to another machine. `hidden`: PPO with the game's tuning, by default against itself, and the exact
exploitability of its last policy and of averages over the run. `play`: the same training, scored against each
script, and exactly against perfect play in small games; `score` does that for finished runs.
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

GAMES_SIDE_BY_SIDE, PLIES, ROUNDS = 1024, 200, 9
# Ours -> PGX's name of the same game.
PEERS = {
    "tictactoe": "tic_tac_toe",
    "connect4": "connect_four",
    "kuhn": "kuhn_poker",
    "leduc": "leduc_holdem",
    "othello": "othello",
}
EXACT = ("tictactoe", "nim")
ALL = (*PEERS, "nim", "liarsdice", "simpletak", "negotiation", "rps", "words")


def measured(advance, carry) -> dict[str, float]:
    """Measures games and plies per second of `advance: (key, carry) -> (carry, games)`, compiled once.

    The fastest round counts, because other load of the machine only slows it down.
    """
    run = jax.jit(advance)
    begin = time.perf_counter()
    carry, _ = jax.block_until_ready(run(jax.random.key(0), carry))
    first = time.perf_counter() - begin
    rates = []
    for number in range(ROUNDS):
        begin = time.perf_counter()
        carry, games = jax.block_until_ready(run(jax.random.key(number + 1), carry))
        rates.append((float(games), time.perf_counter() - begin))
    games, seconds = np.mean([one[0] for one in rates]), min(one[1] for one in rates)
    return {
        "games": float(games / seconds),
        "plies": GAMES_SIDE_BY_SIDE * PLIES / seconds,
        "first_call": first,
    }


def own_rate(name: str) -> dict[str, float]:
    """Measures random legal play through `step_episodes`, with results and resets; one action per ply."""
    from jaxmarl_echelon import make
    from jaxmarl_echelon.envs import episodes
    from jaxmarl_echelon.envs.episodes import EpisodeTask
    from jaxmarl_echelon.envs.spaces import Discrete

    env = make(f"textgames/{name}")
    space, seats = env.spec.roles[0].action, env.spec.turns

    def legal_action(key, time):
        due = time.alive["player"]
        mask = jnp.any(due[..., None] & time.action_mask["player"], axis=1)
        if isinstance(space, Discrete):
            chosen = jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf), axis=-1)
        else:
            chosen = jax.vmap(space.sample)(jax.random.split(key, GAMES_SIDE_BY_SIDE), mask)
        everyone = jnp.broadcast_to(chosen[:, None], (GAMES_SIDE_BY_SIDE, seats, *space.shape))
        return {"player": everyone}

    def draw(key):
        del key
        return EpisodeTask(env.default_params())

    def ply(running, key):
        key_act, key_step = jax.random.split(key)
        running, stepped = episodes.step_episodes(
            env, key_step, running, legal_action(key_act, running.time), draw
        )
        return running, jnp.sum(stepped.finished.mask)

    def advance(key, running):
        running, games = jax.lax.scan(ply, running, jax.random.split(key, PLIES))
        return running, jnp.sum(games)

    return measured(advance, episodes.start_episodes(env, jax.random.key(0), draw, GAMES_SIDE_BY_SIDE))


def peer_rate(name: str) -> dict[str, float]:
    """Measures random legal play of PGX; runs in an environment that has it."""
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


def rates(names: list[str], python: str | None) -> None:
    """Prints games per second of the games, and those of PGX if it has the game."""
    for name in names:
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
    """Returns a jitted function `(run) -> run` that makes a number of updates."""

    def update(run, _):
        return program.update(run)[0], None

    return jax.jit(lambda run: jax.lax.scan(update, run, None, number)[0])


def trainings(overrides: list[str], seeds: int):
    """Yields seed, number of updates, the program of a training, and its first state."""
    from jaxmarl_echelon import read_config
    from jaxmarl_echelon.training.program.program import make_program

    config = read_config(*overrides)
    program = make_program(config)
    begin = jax.jit(program.init)
    for seed in range(seeds):
        yield seed, config.updates, program, begin(jax.random.key(seed))


def hidden(game: str, overrides: list[str], seeds: int, snapshots: int = 100) -> None:
    """Prints exact NashConv of the last policy, and of averages over all and late parts of the run."""
    from jaxmarl_echelon.envs.textgames.analysis import exploitability as ex

    step = None
    for seed, number, program, run in trainings([f"env=textgames/{game}", *overrides], seeds):
        every = max(1, number // snapshots)
        if step is None:
            tree, step = ex.build_tree(program.env.rules), updates(program, every)
            table = jax.jit(partial(ex.learner_probabilities, tree, program.agents["player"]))
            print(f"{game}: uniform play NashConv {ex.nash_conv(tree, ex.uniform_policy(tree)):.4f}")
        policies, begin = [], time.perf_counter()
        for _ in range(number // every):
            run = step(run)
            policies.append(ex.renormalise_legal(tree, table(run.policies["player"])))
        seconds = time.perf_counter() - begin
        policies = np.stack(policies)
        each = np.array([ex.nash_conv(tree, policy) for policy in policies])
        parts = {"all": 0, "second half": len(each) // 2, "last quarter": 3 * len(each) // 4}
        averages = {name: ex.mix_policies(tree, policies[first:]) for name, first in parts.items()}
        shown = ", ".join(f"{name} {ex.nash_conv(tree, policy):.4f}" for name, policy in averages.items())
        late = each[parts["second half"] :]
        value = ex.policy_values(tree, averages["second half"])[0]
        print(
            f"{game} seed {seed}: NashConv last {each[-1]:.4f}; averages {shown}; single policies of the "
            f"second half {late.min():.3f} to {late.max():.3f}; value {value:+.4f}; {seconds:.0f} s",
            flush=True,
        )
        tenths = (f"{part.mean():.2f}" for part in np.array_split(each, 10))
        print(f"  single policies by tenths of the run: {' '.join(tenths)}", flush=True)


def losing(env, agent):
    """Returns `(policy state) -> text` with the results of greedy moves against all perfect play.

    Perfect play is any move that keeps the position's value. The text counts, by the policy's seat, the lines
    of play that the policy loses and the probability of a loss if perfect moves are drawn evenly; last, the
    lines that it loses against any legal moves.
    """
    from jaxmarl_echelon.envs.textgames.analysis import positions

    found = list(positions.enumerate_levels(env.rules))
    keeps = positions.optimal_moves(found, positions.optimal_values(found))
    obs, legal = (
        np.concatenate(x) for x in zip(*((seen(env.rules, x), x.legal) for x in found), strict=True)
    )
    legal |= ~legal.any(1, keepdims=True)
    carry, reset = agent.initial_carry((len(obs), 1)), jnp.zeros(len(obs), bool)
    choose = jax.jit(lambda state: agent.greedy(state, obs[:, None], carry, reset, legal[:, None])[0])
    bounds = np.cumsum([len(level.turn) for level in found])[:-1]

    def tell(state):
        own = np.split(np.eye(legal.shape[1])[np.asarray(choose(state)).reshape(-1)], bounds)
        parts = []
        for seat, lost in ((0, 2), (1, 0)):
            even = [keep / np.maximum(keep.sum(1, keepdims=True), 1) for keep in keeps]
            lines, chance, any_line = (
                positions.count_endings(
                    found,
                    [
                        np.where((level.turn == seat)[:, None], mine, other)
                        for level, mine, other in zip(found, own, others, strict=True)
                    ],
                )[lost]
                for others in (keeps, even, [level.legal for level in found])
            )
            parts.append(f"seat {seat} {lines:.0f} lines ({100 * chance:.2f} %), {any_line:.0f} of any")
        return "lost to perfect play: " + "; ".join(parts)

    return tell


def seen(rules, level) -> np.ndarray:
    """Computes the observations `[M, F]` of the seats that are due."""
    return np.asarray(jax.jit(jax.vmap(rules.observe))(level.state, level.turn))


def scorers(program, games: int):
    """Returns `(run state) -> text` with wins, losses and draws against each script, in alternating seats."""
    from jaxmarl_echelon.training.acting import controllers
    from jaxmarl_echelon.training.program import evaluation

    def against(name, run):
        def seats(parts):
            script = controllers.make_script_controller(controllers.find_script(parts.env, "player", name))
            mine = program.controllers(parts)["player"]
            return {"player": controllers.play_one_seat_against(mine, script, parts.env.spec.turns)}

        result = program.evaluate_with_controllers(
            seats, run.policies, run, jax.random.key(99), episodes=games
        )
        return evaluation.summarize_evaluation(result, program.env.spec, "player")

    scored = {name: jax.jit(partial(against, name)) for name in program.env.scripts}
    told = losing(program.env, program.agents["player"]) if program.env.rules.name in EXACT else None

    def tell(run):
        parts = []
        for name, score in scored.items():
            found = score(run)
            shares = (f"{100 * found[f'eval_agg/{one}_rate']:.1f}" for one in ("win", "loss", "draw"))
            parts.append(f"{name} {' / '.join(shares)}")
        if told:
            parts.append(told(run.policies["player"]))
        return f"win / loss / draw % against {'; '.join(parts)}"

    return tell


def play(game: str, overrides: list[str], seeds: int, games: int) -> None:
    """Trains, and prints results against each script, and exact results in small games."""
    train = None
    # Scripts take the other seats here, in place of the environment's own opponent.
    overrides = [f"env=textgames/{game}", "env.opponent=null", *overrides]
    for seed, number, program, run in trainings(overrides, seeds):
        if train is None:
            train, tell = updates(program, number), scorers(program, games)
        begin = time.perf_counter()
        run = jax.block_until_ready(train(run))
        seconds = time.perf_counter() - begin
        print(f"{game} seed {seed}: {tell(run)}; {seconds:.0f} s", flush=True)


def score_finished(paths: list[str], games: int) -> None:
    """Prints the results of `play` for the last policies of finished runs of one game and network."""
    from jaxmarl_echelon import run_loading

    tell = None
    for path in paths:
        *_, program, run = run_loading.load_run(path, "latest", ["env.opponent=null"])
        tell = tell or scorers(program, games)
        print(f"{path}: {tell(run)}", flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("rates", "hidden", "play", "score", "peer"))
    parser.add_argument("names", nargs="*", help="games or runs, overrides KEY=VALUE")
    parser.add_argument("--pgx", help="a Python that has PGX")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--games", type=int, default=1000, help="against each script")
    given = parser.parse_intermixed_args()
    overrides = [name for name in given.names if "=" in name]
    games = [name for name in given.names if "=" not in name]
    if given.what == "peer":
        print(json.dumps(peer_rate(*games)))
    elif given.what == "rates":
        rates(games or list(ALL), given.pgx)
    elif given.what == "score":
        score_finished(games, given.games)
    else:
        for game in games:
            if given.what == "hidden":
                hidden(game, overrides, given.seeds)
            else:
                play(game, overrides, given.seeds, given.games)


if __name__ == "__main__":
    sys.exit(main())
