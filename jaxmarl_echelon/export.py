"""`python -m jaxmarl_echelon.export RUN`: writes a trained policy as a folder that other programs can run.

The folder has a contract, golden vectors, and the policy for NumPy alone, as StableHLO, or as ONNX.
`--check FOLDER` replays the golden vectors. See docs/export.md.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from algos.nets.cores import CoreConfig
from algos.nets.networks import PRECISIONS
from algos.types import Agent, PyTree
from jaxmarl_echelon import command_line, policies, run_folders, run_loading
from jaxmarl_echelon.envs.base import Role
from jaxmarl_echelon.envs.spaces import Box
from jaxmarl_echelon.exporting import contract, exported_folder, golden
from jaxmarl_echelon.exporting.flat_program import ArrayLayout
from jaxmarl_echelon.exporting.formats import FORMATS, OPSET, ExportedFunction, require_format
from jaxmarl_echelon.training.acting.controllers import to_space
from jaxmarl_echelon.training.config.role_assignment import PER_AGENT
from jaxmarl_echelon.training.config.run_config import RunConfig
from jaxmarl_echelon.training.host.run_record import package_versions


def parse_export_arguments() -> argparse.Namespace:
    """Reads the command line."""
    program = command_line.invoked_command("jaxmarl_echelon.export", "jaxmarl-export")
    parser = command_line.Parser(prog=program, description=__doc__)
    parser.add_argument("path", nargs="?", help="a run folder, its checkpoints folder, or one checkpoint")
    parser.add_argument("--format", default="numpy", help=f"{', '.join(FORMATS)} (default: numpy)")
    parser.add_argument("--role", help="role of the policy (default: the first learner)")
    parser.add_argument("--agent", type=int, help="agent of a role whose agents differ")
    parser.add_argument(
        "--checkpoint", default="best_eval", help="checkpoint of a run folder (default: best_eval)"
    )
    parser.add_argument("--opset", type=int, default=OPSET, help=f"of ONNX (default: {OPSET})")
    parser.add_argument("--output", type=Path, help="folder to write (default: RUN/policy_ROLE_FORMAT)")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="replay the golden vectors of an export")
    arguments = parser.parse_args()
    if (arguments.path is None) == (arguments.check is None):
        raise command_line.UsageError(f"{program}: needs a run, or --check=FOLDER")
    return arguments


def main() -> None:
    """Exports a policy, or checks an exported one."""
    command_line.use_compilation_cache()
    arguments = parse_export_arguments()
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if arguments.check is not None:
        error = exported_folder.check_folder(arguments.check)
        console.print(f"{arguments.check}: golden vectors agree, largest error {error:.1e}")
        return
    folder = export_policy(
        arguments.path,
        arguments.output,
        format=arguments.format,
        role=arguments.role,
        agent=arguments.agent,
        checkpoint=arguments.checkpoint,
        opset=arguments.opset,
    )
    facts = exported_folder.read_contract(folder)
    console.print(f"{folder}: {facts['format']}, {facts['role']} of step {facts['run']['step']:,}")
    for line in describe_limits(facts):
        console.print(line)


def describe_limits(facts: Mapping[str, Any]) -> list[str]:
    """Returns lines on the limits that a contract states: precision, sampled actions, an expiry date."""
    lines, precision = [], facts["precision"]
    if precision["trained"] != precision["exported"]:
        lines.append(
            f"warning: trained in {precision['trained']}, exported in {precision['exported']}; actions of "
            f"the golden vectors differ by up to {precision['largest_difference']:.1e}"
        )
    if facts["sampled_in_evaluations"]:
        lines.append("warning: evaluations of the run sample actions; the export takes the likeliest ones")
    if "stablehlo" in facts:
        lines.append(f"warning: jax promises to read the file until {facts['stablehlo']['expires']}")
    return lines


def export_policy(
    path: str | Path,
    output: str | Path | None = None,
    *,
    format: str = "numpy",
    role: str | None = None,
    agent: int | None = None,
    checkpoint: str = "best_eval",
    opset: int = OPSET,
) -> Path:
    """Exports a policy of a run as a new folder; see docs/export.md.

    Args:
      path: a run's folder, its `checkpoints` folder, or one checkpoint.
      output: the folder to write; None for `policy_ROLE_FORMAT` in the run's folder.
      format: "numpy", "stablehlo" or "onnx".
      role: a role that learns or shares a learner's policy; None for the first learner.
      agent: number of the agent whose policy it is, where every agent of the role has its own or is an input
        of one (`algo.agent_ids`); else None.
      checkpoint: name of the checkpoint in a run's folder.
      opset: version of ONNX's operators.

    Returns:
      the folder.

    Raises:
      ValueError: one line, for a missing checkpoint, a policy that cannot be exported, an invalid option, a
        missing package, or a folder that exists.
    """
    require_format(format, opset)
    if output is not None:
        exported_folder.require_new(Path(output))
    found, facts, config, program, state = run_loading.load_run(str(path), checkpoint, policy_only=True)
    source = read_source(config, state.policies, role, agent)
    scored = policies.find_learner(config, source.role.name) == program.role
    run = run_folders.run_of(found)
    if output is None:
        number = "" if agent is None else f"_{agent}"
        output = (run or found.parent) / f"policy_{source.role.name}{number}_{format}"
        exported_folder.require_new(output)
    spec = config.env.spec
    function = make_exported_function(source.agent, source.state, source.role)
    blocks = tuple(config.env.blocks.get(source.role.name, ()))
    drawn = source.role, getattr(source.state, "observations", None), blocks
    vectors = golden.record_golden(function, *drawn)
    parts, units = config.env.parts.get(source.role.name), config.env.action_units.get(source.role.name)
    task = contract.describe_task(spec, source.role, blocks, parts or {}, units)
    task["environment"]["settings"] = facts["config"].get("env")
    described = task | {
        "agent": agent,
        "sampled_in_evaluations": spec.hidden and not source.agent.explores,
        "carry": describe_carry(source.agent),
        "precision": describe_precision(source, vectors, drawn),
        "algorithm": source.algorithm,
        "run": {
            "name": None if run is None else run.name,
            "checkpoint": found.name,
            "step": facts["step"],
            "environment": facts.get("environment"),
            "scores": describe_scores(facts) if scored else {},
        },
        "versions": {"trained": facts.get("versions"), "exported": package_versions()},
    }
    exported_folder.write_folder(Path(output), format, function, vectors, described, opset)
    return Path(output)


class PolicySource(NamedTuple):
    """Policy of a run, with the agent that computes it in an export.

    Attributes:
      role: the role it acts for.
      state: its parameters and frozen normaliser.
      agent: in float32, without parallel scans.
      trained: as trained.
      algorithm: name of the algorithm.
      precision: dtype of the hidden layers as trained.
    """

    role: Role
    state: PyTree
    agent: Agent
    trained: Agent
    algorithm: str
    precision: str


def read_source(
    config: RunConfig, states: Mapping[str, PyTree], role: str | None, agent: int | None
) -> PolicySource:
    """Finds the policy of a role, or of one agent of it.

    Args:
      config: the run.
      states: the policies' states by learner.
      role, agent: as for `export_policy`.

    Raises:
      ValueError: one line, for a role without a policy, a language policy, or another agent.
    """
    role = next(iter(config.algos)) if role is None else role
    learner = policies.find_learner(config, role)
    settings = config.algos[learner]
    if settings.reads_text:
        raise ValueError(
            f"--role={role}: a language policy cannot be exported; python -m jaxmarl_echelon.models export "
            "writes its adapters"
        )
    state, number = states[learner], config.policies(learner)
    spaces, sizes = config.learner_task(learner)
    if config.controllers[learner] == PER_AGENT:
        require_agent(agent, number, "every agent has its own policy")
        state = jax.tree.map(lambda leaf: leaf[agent], state)
        if settings.teams:
            sizes["member"] = 0
    elif getattr(settings, "agent_ids", False):
        require_agent(agent, sizes["team"], f"the policy of {role} reads for which agent it acts")
        sizes["member"] = agent
    elif agent is not None:
        raise ValueError(f"--agent={agent}: the agents of {role} share a policy; leave it out")
    several: tuple[Any, Any] = (settings, plain_settings(settings))
    trained, plain = (one.make(*spaces, updates=config.updates, **sizes) for one in several)
    return PolicySource(
        role=config.env.spec.role(role),
        state=plain.policy_state(state),
        agent=plain,
        trained=trained,
        algorithm=getattr(settings, "NAME", type(settings).__name__.removesuffix("Config").lower()),
        precision=np.dtype(PRECISIONS[getattr(settings, "compute_dtype", "float32")]).name,
    )


def require_agent(agent: int | None, number: int, why: str) -> None:
    """Checks that an agent is given, of this number; raises a one-line ValueError."""
    if agent is None or not 0 <= agent < number:
        raise ValueError(f"--agent={agent}: {why}; must be from 0 to {number - 1}")


def plain_settings(settings: Any) -> Any:
    """Returns a learner's settings for float32, and for one step at a time of recurrent cores.

    The parameters of networks are the same ones: they are float32 in every precision.
    """
    changes = {}
    if hasattr(settings, "compute_dtype"):
        changes["compute_dtype"] = "float32"
    core = getattr(settings, "core", None)
    if isinstance(core, CoreConfig):
        changes["core"] = replace(core, scan="sequential")
    return replace(settings, **changes) if changes else settings


def make_exported_function(agent: Agent, state: PyTree, role: Role) -> ExportedFunction:
    """Builds the function that is exported: deterministic, from raw observations to the environment's units.

    Args:
      agent: the learner's functions.
      state: parameters and the frozen normaliser.
      role: the role, whose spaces define shapes and units.
    """
    example = jax.eval_shape(lambda: agent.initial_carry((1,)))
    leaves, structure = jax.tree.flatten(example)
    carries = [
        ArrayLayout(f"carry_{i}", tuple(leaf.shape[1:]), leaf.dtype.name) for i, leaf in enumerate(leaves)
    ]
    observation, size = role.observation, role.action.mask_size
    inputs = [
        ArrayLayout("obs", tuple(observation.shape), np.dtype(observation.dtype).name),
        *carries,
        ArrayLayout("reset", (), "bool"),
        *([ArrayLayout("mask", (size,), "bool")] if size else []),
    ]
    action = ArrayLayout("action", tuple(role.action.shape), np.dtype(role.action.dtype).name)
    outputs = [action, *(one._replace(name=f"next_{one.name}") for one in carries)]

    def call(state, obs, *rest):
        carry = jax.tree.unflatten(structure, rest[: len(carries)])
        reset, mask = (*rest[len(carries) :], None)[:2]
        chosen, carry = agent.greedy(state, obs, carry, reset, mask)
        return to_space(role.action, chosen), *jax.tree.leaves(carry)

    return ExportedFunction(call, state, tuple(inputs), tuple(outputs))


def describe_carry(agent: Agent) -> list[dict[str, Any]]:
    """Describes the arrays of an agent's memory, which are 0 at the start of an episode."""
    example = jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda: agent.initial_carry((1,))))
    return [
        {
            "name": f"carry_{i}",
            "next": f"next_carry_{i}",
            "place": jax.tree_util.keystr(path, simple=True, separator="/"),
            "shape": ["B", *leaf.shape[1:]],
            "initial": 0.0,
        }
        for i, (path, leaf) in enumerate(example)
    ]


def describe_precision(
    source: PolicySource, vectors: Mapping[str, np.ndarray], drawn: tuple
) -> dict[str, Any]:
    """Describes the precision, and how far the actions of the golden vectors differ by the export's.

    Args:
      source: the policy.
      vectors: the golden vectors of the export.
      drawn: arguments of `record_golden` after the function, that drew them.

    Returns:
      plain data; the difference is a share of the range of the actions, or of the choices.
    """
    facts: dict[str, Any] = {"trained": source.precision, "exported": "float32"}
    if source.precision == "float32":
        return facts
    trained = make_exported_function(source.trained, source.state, source.role)
    own, other = vectors["action"], golden.record_golden(trained, *drawn)["action"]
    space = source.role.action
    if not isinstance(space, Box):
        return facts | {"largest_difference": float((own != other).mean())}
    low, high = space.bounds()
    span = np.where(high > low, high - low, 1.0)  # coordinates with equal bounds do not differ
    return facts | {"largest_difference": float((np.abs(own - other) / span).max())}


def describe_scores(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores that training gave a checkpoint's first learner on its own task, as plain data.

    Empty where the last evaluation was of an earlier policy, or of a variant on the task of another one.
    """
    own = facts.get("scored_at", facts["step"]) == facts["step"] and facts.get("scored_on") is None
    scores = facts.get("scores") if own else None
    return {name: _json_number(value) for name, value in (scores or {}).items()}


def _json_number(value: Any) -> Any:
    """Returns a value of a checkpoint's scores, None for one that is not finite."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


def script() -> None:
    """Runs the console script."""
    command_line.run_guarded(main)


if __name__ == "__main__":
    script()
