"""Runs of language policies as a whole: what they leave behind, resumed, in groups, read again by others."""

import csv
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharded_runs import told

from jaxmarl_echelon import checkpoints, command_line, models, run_loading
from jaxmarl_echelon.envs.textgames.analysis import exploitability
from jaxmarl_echelon.tournament import load_entrants
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program import program as program_lib
from jaxmarl_echelon.training.program import round_robin
from jaxmarl_echelon.training.program.agents import load_frozen_policies, make_agents, make_pool_role

SMALL = (
    "algo.fresh={width: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, mlp_width: 16}",
    "algo.lora={rank: 2, alpha: 4}",
    "algo.horizon=2",
    "num_envs=8",
    "eval_every=1",
    "eval_episodes=8",
    "checkpoint_every=1",
    "tuning=none",
    "tracking=quiet",
)
POOL = (
    "controllers.player=pool:player",
    "pool.groups=2",
    "pool.capacity=2",
    "pool.snapshot_every=1",
    "pool.hold=1",
    "pool.fixed=[random]",
)
KUHN = ("+algo=reinforce_lm", "env=textgames/kuhn", *SMALL, *POOL)
UPDATES = ("total_env_steps=96",)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def arrays(run: Path, name="latest"):
    """All arrays of a checkpoint by path."""
    folder = checkpoints.find_checkpoint(run, name)
    _, _, _config, program, _ = run_loading.load_run(str(run), name, ())
    like = jax.eval_shape(program.init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(checkpoints.restore_state(folder, like))
    plain = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    return {
        path: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for path, x in plain.items()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of three updates against its past."""
    folder = tmp_path_factory.mktemp("language")
    said = told([*KUHN, *UPDATES, "run_name=run", f"output_dir={folder / 'out'}"], folder / "told")
    assert said["status"] == 0, said["errors"]
    return next((folder / "out").rglob("run"))


def test_a_run_shows_what_its_policy_read_and_said(run):
    games = rows(run / "games.csv")
    assert games
    for row in games:
        prompts, answers = json.loads(row["prompts"]), json.loads(row["answers"])
        said = row["moves"].split()[int(row["seat"]) :: 2]
        assert answers == said and len(prompts) == len(answers)
        assert all(prompt.startswith(f"K{row['seat']}:") and len(prompt) == 7 for prompt in prompts)
    updates = [row for row in rows(run / "metrics.csv") if row["train/episodes"]]
    assert len(updates) == 3
    for row in updates:
        assert float(row["train/format_rate"]) == 1 and float(row["train/invalid_rate"]) == 0
        assert 0 < float(row["train/answer_tokens"]) <= 1 and float(row["train/prompt_tokens"]) == 7
        assert float(row["time/tokens_per_second"]) > 0 and float(row["losses/sampler_gap_max"]) < 1e-4


def test_a_checkpoint_holds_no_base(run):
    folder = checkpoints.find_checkpoint(run, "latest")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 4e6
    found = arrays(run)
    vocabulary = 128
    assert not any(vocabulary in x.shape for x in found.values())
    assert any("bank" in path for path in found)
    base = json.loads((run / "base" / "config.json").read_text())
    assert base["vocab_size"] == vocabulary and (run / "base" / "model.safetensors").is_file()


@pytest.mark.thorough
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run, tmp_path):
    """Continued from its first checkpoint, with its base read from the run's folder."""
    first = checkpoints.find_checkpoint(run, "best_eval")
    assert checkpoints.read_metadata(first)["step"] < 96
    said = told([f"resume={first}", "as=again"], tmp_path / "told")
    assert said["status"] == 0, said["errors"]
    again = next(run.parent.rglob("again"))
    before, after = arrays(run), arrays(again)
    assert before.keys() == after.keys()
    for path, expected in before.items():
        np.testing.assert_array_equal(after[path], expected, err_msg=path)


@pytest.mark.thorough
def test_seeds_of_a_group_are_single_runs(run, tmp_path):
    said = told(
        [*KUHN, *UPDATES, "seeds=2", "run_name=both", f"output_dir={tmp_path / 'out'}"], tmp_path / "told"
    )
    assert said["status"] == 0, said["errors"]
    member = next((tmp_path / "out").rglob("seed_0"))
    alone = {path: x for path, x in arrays(run).items() if "params" in path and "policies" in path}
    grouped = arrays(member)
    assert alone
    for path, expected in alone.items():
        np.testing.assert_allclose(grouped[path], expected, atol=1e-5, err_msg=path)


def test_another_base_is_refused_in_one_line(run, tmp_path):
    moved = tmp_path / "run"
    shutil.copytree(run, moved)
    path = moved / "checkpoints" / (moved / "checkpoints" / "latest").read_text().strip() / "metadata.json"
    facts = json.loads(path.read_text())
    assert len(facts["worlds"]["player"]) == 64
    facts["worlds"]["player"] = "0" * 64
    path.write_text(json.dumps(facts))
    with pytest.raises(checkpoints.CheckpointError, match="trained on a base model with the digest 000000"):
        run_loading.load_run(str(moved), "latest", ())


@pytest.mark.thorough
def test_a_small_base_travels_with_its_run(run, tmp_path):
    """The folder that a run has started from may go."""
    model = tmp_path / "model"
    shutil.copytree(run / "base", model)
    out = f"output_dir={tmp_path / 'out'}"
    said = told([*KUHN, f"algo.base={model}", "env.template=terse", *UPDATES, out], tmp_path / "told")
    assert said["status"] == 0, said["errors"]
    shutil.rmtree(model)
    (path,) = (tmp_path / "out").rglob("config.yaml")
    _, facts, config, program, _ = run_loading.load_run(str(path.parent), "latest", ())
    assert config.algo.base == str(path.parent / "base") == facts["config"]["env"]["tokenizer"]
    assert (
        program.agents["player"].digest
        == run_loading.load_run(str(run), "latest", ())[3].agents["player"].digest
    )
    assert str(model) not in json.dumps(facts)


def test_a_frozen_run_shares_the_base_and_lies_in_the_bank(run, tmp_path):
    folder = checkpoints.find_checkpoint(run, "latest")
    facts = checkpoints.read_metadata(folder)
    config = build.read_saved_config(facts)
    config.pool.fixed = [f"frozen:{folder}"]
    built = build.build_run_config(config)
    agents, frozen = make_agents(built), load_frozen_policies(built)
    (policy,) = frozen.values()
    assert policy.agent.digest == agents["player"].digest
    assert make_pool_role(built, agents, frozen).pool.pinned == (0,)


@pytest.mark.thorough
def test_snapshots_and_scripts_play_a_tournament(run):
    entries, program, sides, _ = load_entrants(str(run), "latest", 1)
    assert len(entries) == 2
    policies = jax.tree.map(lambda *x: jnp.stack(x), *entries.values())
    scores = jax.jit(
        lambda policies, key, world: round_robin.play_round_robin(
            program, sides, policies, key, 8, world, ["random"]
        )
    )(policies, jax.random.key(0), program.world)
    assert scores.shape == (3, 3, 8) and np.all(np.isfinite(scores))
    assert np.all((scores >= 0) & (scores <= 1)) and len(np.unique(scores)) > 1


@pytest.mark.parametrize("snapshot", [(), ("--snapshot", "0")], ids=["policy", "snapshot"])
def test_adapters_go_out_and_come_in(run, snapshot, tmp_path, monkeypatch):
    """An exported adapter starts another run with the probabilities that it had."""
    given = ["models", "export", str(run), str(tmp_path / "adapter"), "--checkpoint", "latest", *snapshot]
    monkeypatch.setattr("sys.argv", given)
    models.main()
    facts = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert facts["r"] == 2 and facts["lora_alpha"] == 4
    config = build.read_saved_config(checkpoints.read_metadata(checkpoints.find_checkpoint(run, "latest")))
    config.algo.adapter = str(tmp_path / "adapter")
    built = build.build_run_config(config)
    agent = make_agents(built)["player"]
    began = agent.init(jax.random.key(3))
    _, _, _, _, state = run_loading.load_run(str(run), "latest", ())
    both = began.params.adapters, state.policies["player"].params.adapters
    same = [np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, both), strict=True)]
    assert all(same) != bool(snapshot)
    with pytest.raises(command_line.UsageError, match="adapter: exists already"):
        models.main()


def test_exact_probabilities_are_those_with_which_it_acts(run):
    _, _, config, program, state = run_loading.load_run(str(run), "latest", ())
    agent, policy = program.agents["player"], state.policies["player"]
    game = exploitability.build_tree(config.env.rules, config.env.observe)
    assert len(game.seat) == 12
    exact = exploitability.learner_probabilities(game, agent, policy)
    np.testing.assert_allclose(exact.sum(1), 1.0, atol=1e-5)
    assert np.all(np.asarray(exact)[~game.legal] == 0)
    number = 4096
    obs, legal = (jnp.repeat(jnp.asarray(x), number, axis=0) for x in (game.obs, game.legal))
    action, _, told_ = jax.jit(agent.act)(policy, jax.random.key(1), obs, (), None, legal)
    counts = np.stack([np.bincount(one, minlength=4) for one in np.asarray(action[:, 0]).reshape(12, number)])
    np.testing.assert_allclose(counts / number, exact, atol=0.035)
    chosen = np.take_along_axis(np.repeat(np.asarray(exact), number, 0), np.asarray(action), axis=1)[:, 0]
    np.testing.assert_allclose(np.exp(told_["log_prob"].sum(-1)), chosen, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("algo=ppo", "env=textgames/kuhn", "env.face=text"), "env.face=text: PPOConfig reads numbers"),
        (("+algo=reinforce_lm", "env=f110"), "has no prompts; needs a text game with env.face=text"),
        ((*KUHN, "algo.transforms=null"), "a language learner without critic needs reward transforms"),
        ((*KUHN, "algo.base=nowhere"), "env.tokenizer=nowhere: must be ascii or a folder"),
        ((*KUHN, "algo.micro_batch=7"), "micro_batch=7: must divide the"),
        ((*KUHN, "algo.answer=any"), "answer=any: unknown; allowed: legal, grammar, free"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(arguments, line, tmp_path):
    said = told([*arguments, *UPDATES], tmp_path / "told")
    assert said["status"] == 2 and line in said["errors"] and said["errors"].count("\n") == 1
    assert said["left"] == []


KINDS = {
    "three seats": ("+algo=reinforce_lm", "env=textgames/liarsdice", "env.seats=3"),
    "critic": ("+algo=ppo_lm", "env=textgames/nim", "algo.micro_batch=16"),
    "buffer, two shards": (
        "+algo=reinforce_lm_paper",
        "env=textgames/kuhn",
        "shards=2",
        "algo.buffer={capacity: 32, batch: 16, wait: 1.0}",
        "algo.micro_batch=8",
        "algo.transforms.sampling=[]",
    ),
    "thoughts": (
        "+algo=reinforce_lm",
        "env=textgames/kuhn",
        "algo.base=warm",
        "algo.warm={steps: 2, batch: 4}",
        "algo.think=2",
    ),
    "league": (
        "+algo=reinforce_lm",
        "env=textgames/kuhn",
        *POOL[:1],
        "pool=league",
        "pool.capacity=2",
        "pool.groups=2",
    ),
    "free": (
        "+algo=reinforce_lm",
        "env=textgames/kuhn",
        "algo.answer=free",
        "algo.max_tokens=4",
        "transforms=original",
        "transforms.filter_opponent_invalid=true",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_other_ways_to_play_and_to_learn(kind, tmp_path):
    said = told([*KINDS[kind], *SMALL, "total_env_steps=48", f"output_dir={tmp_path}"], tmp_path / "told")
    assert said["status"] == 0, said["errors"]
    (path,) = tmp_path.rglob("metrics.csv")
    row = [row for row in rows(path) if row["train/episodes"]][-1]
    formed, invalid = float(row["train/format_rate"]), float(row["train/invalid_rate"])
    if kind == "free":
        # Random weights say almost nothing in brackets.
        assert formed < 0.5 and invalid > 0.9
        games = [row for table in tmp_path.rglob("games.csv") for row in rows(table)]
        assert any("[?]" in row["moves"] for row in games)
    else:
        assert formed == 1 and invalid == 0
        assert float(row["losses/sampler_gap_max"]) < 1e-3 or "buffer" in kind


def test_a_large_base_must_be_passed_to_a_run_in_python(run, monkeypatch):
    config = build.build_run_config(
        build.read_saved_config(checkpoints.read_metadata(checkpoints.find_checkpoint(run, "latest")))
    )
    monkeypatch.setattr(program_lib, "LARGE_WORLD", 1000)
    train = program_lib.make_train_function(config)
    with pytest.raises(
        ValueError, match=r"make_train: the base model has 0 MB; pass it as train\(key, train.world\)"
    ):
        jax.eval_shape(train, jax.random.key(0))
    state, _ = jax.eval_shape(train, jax.random.key(0), train.world)
    assert state.updates.shape == ()
