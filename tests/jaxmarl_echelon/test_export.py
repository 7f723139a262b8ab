"""Exported folders: the command, the contract, checks, and the NumPy form in a Python of its own."""

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import export_cases
import jax
import numpy as np
import probes
import pytest
from commands import write_environments

import jaxmarl_echelon as je
from jaxmarl_echelon import checkpoints, command_line, export
from jaxmarl_echelon.envs.base import EnvSpec, ObservationPart, Role
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.exporting import contract, exported_folder, golden
from jaxmarl_echelon.training.acting.controllers import action_spec
from jaxmarl_echelon.training.acting.state import RunState
from jaxmarl_echelon.training.config import build
from jaxmarl_echelon.training.program.program import make_program

ENVIRONMENTS = {
    "target": "_target_: probes.ContinuousTarget\n",
    "memory": "_target_: probes.Memory\nhorizon: 3\n",
    "masked": "_target_: probes.MaskOnly\n",
    "opposites": "_target_: probes.Opposites\n",
    "rivals": "_target_: probes.Rivals\n",
}
FORMATS = [
    "numpy",
    pytest.param("stablehlo", marks=pytest.mark.needs("flatbuffers")),
    pytest.param("onnx", marks=pytest.mark.needs("jax2onnx")),
]


def save_run(folder, settings, *overrides):
    """Saves a checkpoint of an untrained run whose policy has random numbers; returns the run's folder."""
    sources = command_line.Sources(settings)
    typed = command_line.normalize_overrides(("num_envs=4", "algo.widths=[8]", *overrides), sources)
    config, choices = command_line.compose_config(typed, sources)
    program = make_program(build.build_run_config(config))
    shapes = jax.eval_shape(lambda key: program.policy(program.init(key)), jax.random.key(0))
    states = {name: export_cases.random_numbers(one) for name, one in shapes.policies.items()}
    rest = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes.replace(policies={}))
    facts = {
        "step": 640,
        "scores": {"eval_agg/success": 0.25, "eval_agg/empty": float("nan")},
        "config": {**command_line.OmegaConf.to_container(config), "choices": choices},
    }
    state = rest.replace(policies=states)
    assert isinstance(state, RunState)
    checkpoints.save_checkpoint(folder / "checkpoints", ("best_eval",), state, facts, "policy")
    return folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A folder of configurations of the user's own: small environments."""
    return write_environments(tmp_path_factory.mktemp("settings"), ENVIRONMENTS)


@pytest.fixture(scope="module")
def recurrent(settings, tmp_path_factory):
    """The folder of a run of a recurrent policy."""
    core = ("algo.core={kind: gru, width: 6}", "algo.num_minibatches=2")
    return save_run(tmp_path_factory.mktemp("run"), settings, "env=memory", "algo=ppo_rnn", *core)


@pytest.fixture(scope="module")
def exported(recurrent, tmp_path_factory):
    """Its export for NumPy."""
    return je.export_policy(recurrent, tmp_path_factory.mktemp("exported") / "policy")


def call(monkeypatch, capsys, *typed):
    """Runs the command; returns its exit status, output and errors."""
    monkeypatch.setattr(sys, "argv", ["export", *map(str, typed)])
    status = 0
    try:
        export.script()
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_command_writes_a_folder_that_it_can_check(monkeypatch, capsys, recurrent):
    status, out, _ = call(monkeypatch, capsys, recurrent)
    folder = recurrent / "policy_player_numpy"
    assert status == 0 and out == f"{folder}: numpy, player of step 640\n"
    names = {"contract.json", "golden.npz", "policy.json", "policy.npz", "run_policy.py"}
    assert {path.name for path in folder.iterdir()} == names
    status, out, _ = call(monkeypatch, capsys, "--check", folder)
    assert status == 0 and out.startswith(f"{folder}: golden vectors agree, largest error ")
    status, _, err = call(monkeypatch, capsys, recurrent)
    assert (status, err) == (2, f"error: --output={folder}: exists already\n")


def test_the_contract_says_what_a_reader_has_to_know(exported, recurrent):
    facts = exported_folder.read_contract(exported)
    assert facts["environment"].pop("settings")["horizon"] == 3
    assert facts["environment"] == {"name": "Memory", "version": 1} and facts["role"] == probes.ROLE
    assert facts["action"]["kind"] == "choices" and facts["mask"] == {"size": 2, "choices": [2]}
    assert [one["name"] for one in facts["inputs"]] == ["obs", "carry_0", "reset", "mask"]
    assert [one["name"] for one in facts["outputs"]] == ["action", "next_carry_0"]
    assert facts["carry"][0]["shape"] == ["B", 6] and facts["algorithm"] == "ppo"
    assert facts["run"]["name"] == recurrent.name and facts["run"]["step"] == 640
    assert facts["run"]["scores"] == {"eval_agg/success": 0.25, "eval_agg/empty": None}
    assert facts["versions"]["exported"]["jax"] == jax.__version__
    for name, digest in facts["files"].items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == digest
    with np.load(exported / "golden.npz") as arrays:
        assert arrays["obs"].shape[:2] == (golden.STEPS, golden.ROWS) and golden.STEPS * golden.ROWS == 64
        assert arrays["reset"].any() and not arrays["reset"].all()


@pytest.mark.parametrize("told", [{"scored_at": 320}, {"scored_on": "baseline"}], ids=["earlier", "variant"])
def test_the_contract_has_no_scores_of_another_policy_or_task(recurrent, tmp_path, told):
    run = copied(recurrent, tmp_path)
    (facts,) = run.glob("checkpoints/*/metadata.json")
    facts.write_text(json.dumps(json.loads(facts.read_text()) | told))
    assert exported_folder.read_contract(je.export_policy(run, tmp_path / "policy"))["run"]["scores"] == {}


def test_the_contract_has_scores_of_the_learner_that_training_scored(settings, tmp_path):
    run = save_run(tmp_path / "run", settings, "env=rivals", "algo=ppo")
    folders = {role: je.export_policy(run, tmp_path / role, role=role) for role in probes.Rivals.ROLES}
    scores = {role: exported_folder.read_contract(at)["run"]["scores"] for role, at in folders.items()}
    assert scores["hunter"]["eval_agg/success"] == 0.25 and scores["prey"] == {}


@pytest.mark.parametrize(
    "facts",
    [
        {"path": "maps [ new ]/x"},
        {"paths": ["maps[ 1 ].yaml", 'a "quoted [ 2 ]"', "b\\"], "nested": [[1, 2], []]},
        {"one": "x[ ", "other": " ]y"},
    ],
)
def test_texts_of_a_contract_keep_their_brackets(facts):
    text = contract.format_contract(facts)
    assert json.loads(text) == facts
    assert text.count("\n") == len(facts) + 2 + 3 * ("nested" in facts)


def test_blocks_and_parts_become_named_slices():
    role = Role("player", 1, export_cases.PARTS, export_cases.CONTINUOUS)
    spec = EnvSpec("parts", 3, (role,), 0.02, 10)
    task = contract.describe_task(spec, role, export_cases.BLOCKS, {})
    second = task["observation"]["slices"][1]
    assert second.pop("fields") == ["ahead", "left"] and task["decision_period"] == 0.02
    assert second == {"name": "others", "start": 2, "stop": 8, "shape": [3, 2], "kind": "set"}
    assert task["observation"]["low"][0] is None  # JSON has no infinity
    assert task["action"]["low"] == [-1.0, 0.0] and task["action"]["high"] == [3.0, 0.5]
    text = contract.format_contract(task)
    assert json.loads(text) == json.loads(json.dumps(task)) and '"shape": [3, 2],' in text
    parts = {"lidar": ObservationPart(slice(0, 4), ("m",), (12.0,))}
    (named,) = contract.describe_task(spec, role, (), parts)["observation"]["slices"]
    assert named == {"name": "lidar", "start": 0, "stop": 4, "units": ["m"], "scales": [12.0]}


def folder_facts(role, agent):
    """What a contract has beside what is written with the folder, as short as it can be."""
    return {
        "role": role.name,
        "carry": export.describe_carry(agent),
        "action": contract.describe_action(role.action),
        "observation": {"shape": list(role.observation.shape)},
        "versions": {"exported": {"jax": "1.2.3"}},
    }


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["ppo deepset", "lstm"])
def test_every_format_acts_as_jax_does(tmp_path, name, case):
    """Writing replays the golden vectors, all rows and one; seventeen rows are as eight."""
    role, agent, state, blocks = export_cases.make_case(case)
    function = export.make_exported_function(agent, state, role)
    vectors = golden.record_golden(function, role, state.observations, blocks)
    error = exported_folder.write_folder(
        tmp_path / "policy", name, function, vectors, folder_facts(role, agent), 17
    )
    assert error <= 1e-5
    policy = je.load_policy(tmp_path / "policy")
    many = {key: np.resize(array[0], (17, *array.shape[2:])) for key, array in vectors.items()}
    memory = policy.initial_memory((17,))
    action, memory = policy(many["obs"], memory, many["reset"], many.get("mask"))
    np.testing.assert_allclose(action, many["action"], atol=1e-5, rtol=1e-5)
    for i, array in enumerate(memory):
        np.testing.assert_allclose(array, many[f"next_carry_{i}"], atol=1e-5, rtol=1e-5)


def test_an_exported_folder_is_loaded_like_a_run(exported, recurrent):
    ours, theirs = je.load_policy(exported), je.load_policy(recurrent)
    obs = np.random.default_rng(0).standard_normal((3, 2, 1)).astype(np.float32)
    memory, kept = ours.initial_memory((3, 2)), theirs.initial_memory((3, 2))
    for reset in (True, False, False):
        action, memory = ours(obs, memory, np.full((3, 2), reset))
        expected, kept = theirs(obs, kept, np.full((3, 2), reset))
        np.testing.assert_array_equal(action, expected)
        for a, b in zip(jax.tree.leaves(memory), jax.tree.leaves(kept), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    with pytest.raises(ValueError, match="role=prey: not the role of .*; allowed: player"):
        je.load_policy(exported, role="prey")
    with pytest.raises(ValueError, match=r"obs of shape \(3, 2\): must end with \(1,\)"):
        ours(obs[..., 0], memory)


def test_numpy_alone_runs_the_policy(exported, tmp_path):
    """In a Python without this environment's packages, but NumPy; other files of it are not found either."""
    folder, numpy = tmp_path / "packages", Path(np.__file__).parent
    folder.mkdir()
    for package in numpy.parent.glob("numpy*"):
        if package.name in ("numpy", "numpy.libs"):
            (folder / package.name).symlink_to(package)
    program = (
        "import importlib.util, runpy, sys; sys.path[:0] = sys.argv[1:2]; folder = sys.argv[2]\n"
        "for name in ('jax', 'flax', 'jaxmarl_echelon'): assert importlib.util.find_spec(name) is None\n"
        "sys.argv = [folder]; sys.path.insert(0, folder)\n"
        "from run_policy import open_policy, main; import numpy as np\n"
        "policy = open_policy(folder); memory = policy.initial_memory(2)\n"
        "action, memory = policy(np.ones((2, 1), np.float32), memory)\n"
        "print(action.dtype, action.shape, len(memory)); main()\n"
    )
    asked = [sys.executable, "-I", "-S", "-c", program, folder, exported]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "int32 (2,) 1" and second.startswith("policy: largest error ")
    assert second.endswith(", 0 different choices")


def test_what_runs_on_robots_needs_no_later_python(repository):
    allowed = {"json", "sys", "math", "functools", "pathlib", "typing", "numpy"}
    for path in ("jaxmarl_echelon/exporting/run_policy.py", "examples/ros2_f1tenth/driver.py"):
        tree = ast.parse((repository / path).read_text(), feature_version=(3, 10))
        names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert names <= allowed


def change_weights(folder):
    """Changes every weight of a folder a little."""
    with np.load(folder / "policy.npz") as arrays:
        weights = {key: array * np.float32(1.01) for key, array in arrays.items()}
    np.savez(folder / "policy.npz", **weights)


def change_digest(folder, name):
    """Makes a contract agree with a changed file."""
    facts = json.loads((folder / "contract.json").read_text())
    facts["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "contract.json").write_text(json.dumps(facts))


def test_a_changed_weight_is_found(monkeypatch, capsys, exported, tmp_path):
    folder = copied(exported, tmp_path)
    change_weights(folder)
    status, out, err = call(monkeypatch, capsys, "--check", folder)
    assert status == 2 and not out and err.count("\n") == 1
    assert err.startswith(f"error: {folder / 'policy.npz'}: changed since the export, SHA-256 ")
    # And by what it does, where the digest was changed as well.
    change_digest(folder, "policy.npz")
    status, out, err = call(monkeypatch, capsys, "--check", folder)
    assert status == 2 and not out and err.count("\n") == 1
    assert err.startswith(f"error: {folder}: golden vectors differ, by ")
    done = subprocess.run(
        [sys.executable, folder / "run_policy.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2


def test_damaged_folders_are_refused(monkeypatch, capsys, exported, tmp_path):
    status, _, err = call(monkeypatch, capsys, "--check", tmp_path)
    assert (status, err) == (2, f"error: {tmp_path}: no exported policy, as it has no contract.json\n")
    folder = copied(exported, tmp_path)
    (folder / "golden.npz").unlink()
    status, _, err = call(monkeypatch, capsys, "--check", folder)
    assert (status, err) == (2, f"error: {folder / 'golden.npz'}: missing, but the contract lists it\n")
    text = (folder / "contract.json").read_text()
    (folder / "contract.json").write_text(text.replace('"contract_version": 1', '"contract_version": 9'))
    status, _, err = call(monkeypatch, capsys, "--check", folder)
    assert status == 2 and "version 9 and format numpy; allowed: 1 and numpy, stablehlo, onnx" in err
    (folder / "contract.json").write_text(text.replace('"carry"', '"carries"'))
    status, _, err = call(monkeypatch, capsys, "--check", folder)
    assert status == 2 and err == f"error: {folder / 'contract.json'}: damaged ('carry')\n"
    (folder / "contract.json").write_text("{")
    status, _, err = call(monkeypatch, capsys, "--check", folder)
    assert status == 2 and err.startswith(f"error: {folder / 'contract.json'}: damaged (")


@pytest.mark.parametrize("name", FORMATS)
def test_files_that_cannot_be_read_are_one_line(monkeypatch, capsys, tmp_path, name):
    """Such as those of other versions, whose digests are right."""
    role, agent, state, _ = export_cases.make_case("ppo")
    function = export.make_exported_function(agent, state, role)
    vectors = golden.record_golden(function, role, state.observations, ())
    exported_folder.write_folder(tmp_path / "policy", name, function, vectors, folder_facts(role, agent), 17)
    folder, file = (
        tmp_path / "policy",
        tmp_path / "policy" / ("policy.npz" if name == "numpy" else f"policy.{name}"),
    )
    file.write_bytes(file.read_bytes()[:-200] + 200 * b"x")
    change_digest(folder, file.name)
    status, out, err = call(monkeypatch, capsys, "--check", folder)
    assert status == 2 and not out and err.count("\n") == 1
    assert err.startswith(f"error: {folder}: exported with jax 1.2.3, not readable with {jax.__version__} (")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--role=referee"], "role=referee: has no learnt policy in this run; allowed: player"),
        (["--format=torch"], "--format=torch: must be one of numpy, stablehlo, onnx"),
        (["--opset=9"], "--opset=9: must be from 17 to 24"),
        (["--agent=0"], "--agent=0: the agents of player share a policy; leave it out"),
        (["--checkpoint=best"], "has no checkpoint named 'best'"),
        (["--check=policy"], "needs a run, or --check=FOLDER"),
    ],
)
def test_invalid_options_are_one_line_and_write_nothing(
    monkeypatch, capsys, recurrent, tmp_path, typed, words
):
    status, out, err = call(monkeypatch, capsys, recurrent, f"--output={tmp_path / 'new'}", *typed)
    assert status == 2 and not out and words in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["file/below", 300 * "a"])
def test_a_folder_that_cannot_be_made_is_one_line(monkeypatch, capsys, recurrent, tmp_path, place):
    (tmp_path / "file").touch()
    status, out, err = call(monkeypatch, capsys, recurrent, f"--output={tmp_path / place}")
    assert status == 2 and not out and err.count("\n") == 1
    assert err.startswith(f"error: --output: cannot create {tmp_path}/")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("stablehlo", "flatbuffers", "export"), ("onnx", "jax2onnx", "onnx")]
)
def test_a_missing_package_is_one_line_and_writes_nothing(
    monkeypatch, capsys, recurrent, tmp_path, name, package, extra
):
    monkeypatch.setitem(sys.modules, package, None)
    status, _, err = call(monkeypatch, capsys, recurrent, f"--output={tmp_path / 'new'}", f"--format={name}")
    line = f"needs the package {package}; install it with pip install 'jaxmarl_echelon[{extra}]'"
    assert (status, err) == (2, f"error: --format={name}: {line}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_nothing(exported, tmp_path):
    role, agent, state, blocks = export_cases.make_case("ppo")
    function = export.make_exported_function(agent, state, role)
    vectors = golden.record_golden(function, role, state.observations, blocks)
    wrong = vectors | {"action": vectors["action"] + 0.01}
    with pytest.raises(
        ValueError, match=f"{tmp_path / 'policy'}: golden vectors differ, by .*allowed: 1e-05"
    ):
        exported_folder.write_folder(
            tmp_path / "policy", "numpy", function, wrong, folder_facts(role, agent), 17
        )
    assert list(tmp_path.iterdir()) == []


def test_language_policies_are_refused():
    config = je.read_config("+algo=reinforce_lm", "env=textgames/kuhn")
    with pytest.raises(
        ValueError, match="--role=player: a language policy cannot be exported; .*models export"
    ):
        export.read_source(config, {}, None, None)


def test_one_agent_of_many(monkeypatch, capsys, settings, tmp_path):
    run = save_run(
        tmp_path / "run", settings, "env=opposites", "algo=ppo", "controllers.player=learner:per_agent"
    )
    status, _, err = call(monkeypatch, capsys, run)
    assert status == 2 and "--agent=None: every agent has its own policy; must be from 0 to 1" in err
    policies = [je.load_policy(je.export_policy(run, tmp_path / str(i), agent=i)) for i in range(2)]
    together = je.load_policy(run)
    obs = np.linspace(-2, 2, 64, dtype=np.float32).reshape(32, 2, 1)
    expected, _ = together(obs, together.initial_memory((32, 2)))
    ours = np.stack([policy(obs[:, i])[0] for i, policy in enumerate(policies)], 1)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("algo", ["vdn", "pqn_vdn"])
def test_one_agent_of_a_team_whose_places_are_inputs(monkeypatch, capsys, settings, tmp_path, algo):
    run = save_run(tmp_path / "run", settings, "env=opposites", f"algo={algo}", "algo.layer_norm=false")
    status, _, err = call(monkeypatch, capsys, run, "--agent=2")
    assert status == 2 and "--agent=2: the policy of player reads for which agent it acts; must be" in err
    folders = [je.export_policy(run, tmp_path / str(i), agent=i) for i in range(2)]
    facts = exported_folder.read_contract(folders[1])
    assert (facts["agent"], facts["algorithm"]) == (1, algo)
    policies, together = [je.load_policy(folder) for folder in folders], je.load_policy(run)
    obs = np.linspace(-40, 40, 4000, dtype=np.float32).reshape(2000, 2, 1)
    expected, _ = together(obs, together.initial_memory((2000, 2)))
    ours = np.stack([policy(obs[:, i])[0] for i, policy in enumerate(policies)], 1)
    np.testing.assert_array_equal(ours, expected)
    other, _ = policies[0](obs[:, 1])
    assert (other != ours[:, 1]).any()  # what the other agent would do


def test_reduced_precision_is_measured(settings, tmp_path):
    run = save_run(tmp_path / "run", settings, "env=target", "algo=ppo", "precision=bf16")
    facts = exported_folder.read_contract(je.export_policy(run))
    precision = facts["precision"]
    assert (precision["trained"], precision["exported"]) == ("bfloat16", "float32")
    assert 1e-5 < precision["largest_difference"] < 0.05
    (line,) = export.describe_limits(facts)
    assert line.startswith("warning: trained in bfloat16, exported in float32; actions of the golden vectors")


def test_reduced_precision_is_measured_beside_numbers_that_cannot_vary():
    """An action may have coordinates whose bounds are equal, on which no share of a range is defined."""
    settings, observation, _, _ = export_cases.CASES["bf16"]
    role = Role("player", 1, observation, Box((2,), (-1.0, 0.5), (3.0, 0.5)))
    trained, plain = (
        one.make(observation.shape, action_spec(role.action), samples=4, updates=1)
        for one in (settings, export.plain_settings(settings))
    )
    state = export_cases.random_state(plain)
    source = export.PolicySource(role, state, plain, trained, "ppo", "bfloat16")
    drawn = role, state.observations, ()
    vectors = golden.record_golden(export.make_exported_function(plain, state, role), *drawn)
    assert 1e-5 < export.describe_precision(source, vectors, drawn)["largest_difference"] < 0.05
