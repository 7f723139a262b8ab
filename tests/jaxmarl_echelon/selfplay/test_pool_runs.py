"""Runs with a pool from the command line: what they leave behind, who exploits them, what is refused."""

import csv
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_runs import told

from jaxmarl_echelon import checkpoints, exploit, read_config
from jaxmarl_echelon.selfplay import pool
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.agents import load_frozen_policies, make_agents, make_pool_role
from jaxmarl_echelon.training.program.program import make_program

GAME = (
    "tuning=none",
    "algo=ppo",
    "algo.horizon=4",
    "algo.widths=[4]",
    "algo.num_minibatches=1",
    "algo.epochs=1",
    "num_envs=8",
    "eval_episodes=16",
    "tracking=quiet",
    "controllers.player=pool:player",
    "pool.groups=2",
    "pool.capacity=2",
    "pool.snapshot_every=1",
)
KUHN = ("env=textgames/kuhn", *GAME)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of three updates with commanders, with reward transforms and both kinds of names."""
    folder = tmp_path_factory.mktemp("pool")
    more = ("total_env_steps=192", "pool=echelon_league", "pool.promote_after=1", "transforms=original")
    more += ("pool.fixed=[random]", "pool.hold=1", "pool.acting=groups", "pool.groups=4", "pool.capacity=4")
    said = told(
        [*KUHN, *more, "tracking.names=doc", "run_name=run", f"output_dir={folder / 'out'}"], folder / "told"
    )
    assert said["status"] == 0, said["errors"]
    return next((folder / "out").rglob("run"))


def test_tables(run):
    entries, games = rows(run / "pool.csv"), rows(run / "games.csv")
    last = {row["entry"]: row for row in entries if row["step"] == entries[-1]["step"]}
    assert {row["kind"] for row in last.values()} == {"learner", "candidate", "commander", "fixed"}
    for row in entries:
        past = row["kind"] in ("candidate", "commander")
        met = int(row["wins"]) + int(row["losses"]) > 0
        assert row["parent"] == ("player" if past else "")
        assert not past or (row["kind"] == "commander") == met
    assert float(rows(run / "metrics.csv")[-1]["pool/commanders"]) > 0
    assert all(0 < float(row["expected"]) < 1 and 0 < float(row["quality"]) <= 1 for row in entries)
    assert len(games) == 8 * len({row["step"] for row in games})
    for row in games:
        moves, scores = row["moves"].split(), [float(x) for x in row["scores"].split()]
        assert 2 <= len(moves) <= 3 and set(moves) <= {"[k]", "[b]", "[c]", "[f]"}
        assert sum(scores) == 0 and row["seat"] in ("0", "1") and row["start"]
        folds = moves[-1] == "[f]"
        assert abs(scores[0]) == (2 if "[c]" in moves else 1) and folds == ("[f]" in moves)


def test_metrics_are_also_logged_under_unstable_baselines_names(run):
    columns = rows(run / "metrics.csv")[-1]
    for theirs, ours in (
        ("collection-kuhn/Game Length", "train/episode_length"),
        ("collection-kuhn/Win Rate", "train/win_rate"),
        ("collection-kuhn/Reward (pid=1)", "train/score/1"),
        ("evaluation-kuhn (random)/Reward", "eval_agg/avg_reward"),
        ("learner/entropy", "losses/entropy"),
    ):
        found = columns.get(theirs)
        table = columns if ours in columns else rows(run / "eval.csv")[-1]
        assert found and found == table[ours.removeprefix("eval_agg/") if table is not columns else ours]
    assert (run / "pool.png").exists()


@pytest.mark.thorough
def test_a_fresh_learner_exploits_a_run(run, tmp_path, monkeypatch):
    """It meets that run's policy alone, and is scored against it from both seats."""
    monkeypatch.setattr("sys.argv", ["exploit", str(run), "--games", "64", "--output", str(tmp_path)])
    exploit.main()
    (folder,) = (path.parent for path in tmp_path.rglob("exploit.json"))
    found = json.loads((folder / "exploit.json").read_text())
    assert 0 <= found["low"] <= found["score"] <= found["high"] <= 1 and found["role"] == "player"
    # Chips of single hands: 1 or 2, won or lost.
    assert found["payoff"] == pytest.approx(4 * found["score"] - 2) and 64 * found["payoff"] % 1 == 0
    assert found["wins"] + found["losses"] == 64
    names = {row["name"] for row in rows(folder / "pool.csv") if float(row["share"]) > 0}
    assert names == {f"frozen:{checkpoints.find_checkpoint(run, 'latest')}"}
    met = [row for row in rows(folder / "pool.csv") if row["kind"] == "fixed"][-1]
    assert sum(int(met[key]) for key in ("wins", "draws", "losses")) > 20
    assert {row["opponent"] for row in rows(folder / "episodes.csv")} == {"2"}


def test_an_exploiter_has_no_teacher(run):
    """Neither the run's, nor that of a role's own settings."""
    before = build.read_saved_config(checkpoints.read_metadata(checkpoints.find_checkpoint(run, "latest")))
    before.algo.sampling, before.algo.teacher = "sequential", "gone"
    before.algos = {"player": {"teacher": "gone", "gamma": 0.5}}
    after = exploit.exploit_config(before, build.build_run_config(before), run, None)
    assert after.algo.teacher is None and dict(after.algos) == {"player": {"teacher": None, "gamma": 0.5}}
    assert build.build_run_config(after).algos["player"].teacher is None and before.algo.teacher == "gone"


@pytest.mark.thorough
def test_a_frozen_policy_of_the_same_architecture_lies_in_the_bank(run):
    """Behind the slots, where no snapshot takes its place; others act for themselves."""
    folder = checkpoints.find_checkpoint(run, "best_eval")
    given = [*KUHN, f"pool.fixed=[random,frozen:{folder}]"]
    for more, pinned in (((), (1,)), (("algo.activation=relu",), ()), (("algo.widths=[5]",), ())):
        config = read_config(*given, *more)
        frozen = load_frozen_policies(config)
        seat = make_pool_role(config, make_agents(config), frozen)
        assert seat.pool.pinned == pinned
        assert seat.fixed == (None, None if pinned else "pool/1")
        if not pinned:
            continue
        program = make_program(config)

        @jax.jit
        def met(key, program=program, seat=seat):
            state = program.init(key)
            return state, pool.playable_policies(seat.pool, state.pool, jnp.array([1, 2, 4]), None)

        state, (bank, places) = met(jax.random.key(0))
        assert set(state.policies) == {"player"} and state.pool.pinned.tolist() == [0, 1, 0, 1, 1]
        theirs = jax.tree.leaves(frozen["pool/1"].state)
        assert places.tolist() == [0, 1, 2] and len(theirs) == len(jax.tree.leaves(bank))
        for held, own in zip(jax.tree.leaves(bank), theirs, strict=True):
            np.testing.assert_array_equal(held[2], own)


LEAGUE = "pool.league={{'main': 1, 'main_exploiter': 1, 'league_exploiter': 1}}"
REFUSED = [
    (
        (*KUHN, "pool=league", "controllers.player=learner"),
        f"{LEAGUE}: needs a role that a pool plays, by controllers.ROLE=pool:LEARNER",
    ),
    ((*KUHN, "pool=league", "shards=2"), f"{LEAGUE}: needs shards=1, not 2"),
    ((*KUHN, "pool=league", "pool.league.main=0"), "must have a main agent and another learner"),
    ((*KUHN, "pool.mode=best"), "pool.mode=best: unknown; allowed: mirror, fixed, lagged"),
    ((*KUHN, "pool.capacity=0"), "pool.capacity=0: must be a whole number of at least 1"),
    ((*KUHN, "num_envs=6"), "num_envs=6: must be a multiple of pool.groups=2 times 2 seats, such as 4 or 8"),
    ((*KUHN, "pool.fixed=[nobody]"), "pool.fixed=nobody: unknown script of player; allowed: frozen:PATH"),
    ((*KUHN, "controllers.player=pool:other"), "at least one role must be a learner"),
    ((*KUHN, "transforms.final=[Best]"), "transforms.final=Best: unknown transform; allowed: WinDrawLoss"),
    ((*KUHN, "tracking.names=theirs"), "tracking.names=theirs: must be ours or doc"),
    (
        ("env=textgames/kuhn", "algo=sac", "tuning=none", "tracking=quiet"),
        "algo=sac: needs continuous actions; these are discrete",
    ),
    (
        ("env=textgames/tictactoe", *GAME, "pool.fixed=[frozen:{run}]"),
        "pool.fixed=frozen:{run}: its observations ",
    ),
]


@pytest.mark.parametrize("given,message", REFUSED)
def test_invalid_pool_overrides_are_rejected(given, message, run, tmp_path):
    """One line, status 2, and nothing written."""
    said = told([one.format(run=run) for one in given], tmp_path / "empty")
    assert said["status"] == 2 and said["left"] == []
    (line,) = said["errors"].splitlines()
    assert message.format(run=run) in line
