"""Builds the F110 environments from flat settings."""

from jaxmarl_echelon.envs.f110 import episode_settings, settings
from jaxmarl_echelon.envs.f110.env import F110, ON_TRACK
from jaxmarl_echelon.envs.f110.gap_parameters import read_ftg
from jaxmarl_echelon.envs.f110.observing.observe import ObservationScales, RacingScales
from jaxmarl_echelon.envs.f110.race import F110Race
from jaxmarl_echelon.envs.f110.starts.goals import F110Goals
from jaxmarl_echelon.envs.f110.starts.spawns import read_points, spawn_table
from jaxmarl_echelon.envs.f110.state import F110Params, RaceParams
from jaxmarl_echelon.envs.rewards import Reward
from jaxmarl_echelon.envs.settings import read_all, read_interval, read_number, unflatten_settings


def make(reward: Reward, **given) -> F110 | F110Goals:
    """Builds the adversarial environment; `given` are keys of `conf/env/f110.yaml`, which explains each.

    Raises:
      ValueError: one line, for a setting with a value that is not allowed.
    """
    chosen = unflatten_settings(settings.GaplockSettings, given)
    maps, lidar, driving = chosen.maps.load(), chosen.sensing.lidar, chosen.driving
    if paid := ", ".join(sorted(ON_TRACK & set(reward.names))):
        settings.require_lines(maps, f"the reward's {paid} needs")
    simulation = driving.simulation(maps, lidar, cars=2, shared_fate=True)
    vehicle, points = settings.read_car(driving.car), read_points(chosen.starts.spawn_points)
    ftg_params, ftg_options = read_ftg(chosen.players.ftg, lidar.fov)
    limits = episode_settings.F110Limits.of(vehicle, maps, points)
    params = F110Params(
        car=vehicle,
        gains=settings.read_gains(driving.gains),
        ftg=ftg_params,
        reward=reward.params(),
        **read_all(episode_settings.GAPLOCK, chosen, limits),
    )
    size = float(vehicle.length), float(vehicle.width)
    base_poses = settings.read_base_poses(chosen.starts.base_poses)
    settings.require_reversed_starts(maps, chosen.maps.reverse, base_poses)
    sensing, speed = chosen.sensing, limits.speed
    env = F110(
        simulation,
        maps,
        reward,
        spawn_table(maps, points, size, base_poses),
        limits,
        params,
        scales=ObservationScales(sensing.lidar_range, sensing.speed_scale, sensing.position_scale),
        observe_time=sensing.observe_time,
        observe_task=sensing.observe_task,
        observe_target=sensing.observe_target,
        finish_lines=settings.read_finish_lines(chosen.endings.finish_lines, maps),
        ftg_options=ftg_options,
        speed_limits=(read_interval("attacker_speed", driving.attacker_speed or speed, *speed), speed),
    )
    env.files = chosen.maps.files(maps)
    return env if chosen.players.goal is None else F110Goals(env, chosen.players.goal)


def make_race(reward: Reward, **given) -> F110Race:
    """Builds the racing environment; `given` are keys of `conf/env/f110_race.yaml`, which explains each.

    Raises:
      ValueError: one line, for a setting with a value that is not allowed.
    """
    chosen = unflatten_settings(settings.RaceSettings, given)
    maps, sensing, driving, rules = chosen.maps.load(), chosen.sensing, chosen.driving, chosen.rules
    settings.require_lines(maps, "racing needs", closed=True)
    vehicle = settings.read_car(driving.car)
    simulation = driving.simulation(maps, sensing.lidar, rules.cars, shared_fate=False)
    ftg_params, ftg_options = read_ftg(rules.ftg, sensing.lidar.fov)
    room = float(simulation.bank.centerline_length.min()) / rules.cars
    if room < float(vehicle.length):
        most = int(room * rules.cars / vehicle.length)
        raise ValueError(f"env.cars={rules.cars}: the shortest track has room for {most}")
    limits = episode_settings.F110Limits.of(vehicle, maps)._replace(grid=room)
    params = RaceParams(
        car=vehicle,
        gains=settings.read_gains(driving.gains),
        ftg=ftg_params,
        reward=reward.params(),
        **read_all(episode_settings.RACE, chosen, limits),
    )
    env = F110Race(
        simulation,
        maps,
        reward,
        limits,
        params,
        scales=RacingScales(
            lidar_range=sensing.lidar_range,
            speed_scale=sensing.speed_scale,
            steer_scale=float(vehicle.s_max),
            position_scale=sensing.position_scale,
        ),
        lookahead=[read_number("lookahead", metres) for metres in sensing.lookahead],
        neighbours=sensing.neighbours,
        ftg_options=ftg_options,
        speed_limits=read_interval("action_speed", driving.action_speed or limits.speed, *limits.speed),
    )
    env.files = chosen.maps.files(maps)
    return env
