"""`rlhf-ray evaluate`: measure a run's saved policy on the true reward, and its reward model on held-out comparisons."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.studies import print_section, writable
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.metrics import plain
from rlhf_ray.settings.checks import Count, check_values

if TYPE_CHECKING:
    from rlhf_ray.runs.distances import RewardDistances
    from rlhf_ray.runs.folder import RunFolder


@dataclass(frozen=True)
class Evaluate:
    """Measure the true return of a run's saved policy, and score its reward model.

    The policy takes its most probable action, or with --sample-actions draws each action, as in training.

    The reward model's scores are on the comparisons that its fits held out: accuracy, log-likelihood, Brier score and calibration
    error, also by annotator, and its correlation with the true reward where that is known.
    """

    run: tyro.conf.Positional[Path]
    """The run folder, or one of its checkpoints."""
    episodes: Count = 20
    """Number of episodes."""
    sample_actions: bool = False
    """Draw actions from the policy, as in training. Its most probable ones can be stuck where drawn ones are not."""
    distances: bool = False
    """Also measure the EPIC, DARD and STARC distances of the learned from the true reward on new steps, for the report too."""
    video: Path | None = None
    """File for a video of episodes of the policy: .webp (plays in browsers), .gif or .png (animated). The report shows
    a .webp that is in the run folder."""
    video_episodes: Count = 1
    """Number of episodes in the video."""
    json: bool = False
    """Print one JSON object instead of text."""

    def __post_init__(self) -> None:
        check_values(self, "--")


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Evaluate, "rlhf-ray evaluate", words, None)
    from rlhf_ray.agents.true_return import episodes_of, evaluate, success_of
    from rlhf_ray.measure.error_rates import newest_rates
    from rlhf_ray.reward.predictor import reward_of_steps
    from rlhf_ray.runs.folder import RunFolder
    from rlhf_ray.runs.policies import newest_policy
    from rlhf_ray.runs.reward_scores import scores_of_run
    from rlhf_ray.runs.video import check_video, write_video

    folder = RunFolder.of_policy(command.run)
    if not folder.config.exists() and (command.run.is_file() or (command.run / "agent.json").exists()):
        raise SettingError(
            f"{command.run} is no run; of an agent without a run, `rlhf-ray interpret agent {command.run} --environment NAME "
            "--steps recording` tells the true return."
        )
    experiment = folder.is_there().experiment()
    if command.video is not None:
        writable(command.video.parent, "--video")
        check_video(command.video, experiment.environment)
    policy, iteration = newest_policy(folder)
    act = policy.drawn(experiment.seed) if command.sample_actions else policy.best
    reward, scores = scores_of_run(folder) or (None, None)
    learned = None if reward is None else reward_of_steps(reward)
    returns = evaluate(experiment.environment, act, episodes=command.episodes, seed=experiment.seed, reward=learned)
    distances = _distances(folder, reward) if command.distances else None
    if command.video is not None:
        write_video(command.video, experiment.environment, policy, command.video_episodes, experiment.seed)
        if command.video.absolute().parent == folder.path:
            _report(folder)
    metrics, unknown = folder.metrics_at(iteration), 0 if iteration == 0 else None
    amounts = {name: metrics.get(name, unknown) for name in ("env_steps", "comparisons")}
    if amounts["env_steps"] is None:
        print(
            f"rlhf-ray: {folder.metrics} has no entry for the policy's iteration {iteration}, so its environment steps and "
            "comparisons are unknown.",
            file=sys.stderr,
        )
    if command.json:
        values = dataclasses.asdict(returns) | amounts | {"seed": experiment.seed}
        values["reward_model"] = None if scores is None else dataclasses.asdict(scores)
        values |= {} if distances is None else {"distances": dataclasses.asdict(distances)}
        values |= {} if command.video is None else {"video": str(command.video)}
        print(json.dumps(plain(values)))
        return
    names = {"env_steps": "environment steps", "comparisons": "comparisons"}
    taken = " and ".join(f"{count} {names[name]}" for name, count in amounts.items() if count is not None)
    success = success_of(returns.success_rate)
    print(
        f"{experiment.environment}: true return {returns.true_return_mean:.1f} ± {returns.true_return_std:.1f} over "
        f"{episodes_of(returns)} episodes"
        + (f", {success} of them succeeded" if success else "")
        + (f", after {taken}" if taken else "")
    )
    if scores is not None or distances is not None:
        from rlhf_ray.runs.report.steps.scores import score_section

        print_section(score_section(scores, distances))
    if reward is not None and (wrong := newest_rates(folder.rows())[0]) is not None:
        print(f"by the reward model, {wrong.sentence()}")
    if command.video is not None:
        print(f"video: {command.video}")


def _distances(folder: Any, reward: Any) -> RewardDistances:
    """Measure the distances, and write them and the report into the run's folder."""
    if reward is None:
        raise SettingError(
            f"--distances compares a learned reward with the true one, and {folder.path} has none of its own."
        )
    from rlhf_ray.data.atomic import write_text
    from rlhf_ray.runs.distances import distances_to_truth
    from rlhf_ray.runs.interpret import steps_of_run
    from rlhf_ray.runs.metrics_files import carry_on

    of = folder.experiment()
    steps = steps_of_run(folder, of.seed)
    found = distances_to_truth(reward, of.environment, steps, of.agent_settings.gamma, of.seed)
    with carry_on("distances"):  # the folder may be read-only
        write_text(folder.distances, json.dumps(plain(dataclasses.asdict(found)), indent=2) + "\n")
        _report(folder)
    return found


def _report(folder: RunFolder) -> None:
    """Write the run's report anew."""
    from rlhf_ray.runs.report.run_report import write_report

    write_report(folder.path)
