"""Trackers of a run: the callbacks that transformers makes of `report_to`, offline unless asked."""

import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub import get_token
from transformers.integrations import get_reporting_integration_callbacks

from bert_recipes.errors import InputError
from bert_recipes.hub_access import can_connect, why_unreachable
from bert_recipes.training.resume import run_name


# Keep trackers away from their servers, unless the user's environment says otherwise. By default
# wandb lets a finished run wait for ever for a server that does not answer: its limits are seconds.
_ENVIRONMENT = {
    "wandb": {
        "WANDB_MODE": "offline",
        "WANDB_INIT_TIMEOUT": "30",
        "WANDB_FINISH_TIMEOUT": "120",
    },
    "comet_ml": {"COMET_START_ONLINE": "0"},
    "swanlab": {"SWANLAB_MODE": "local"},
}


def prepare_trackers(args: Any) -> None:
    """Keep trackers offline by default, and refuse one that could not record the run.

    Called in all processes; the main one asks for logins.
    """
    for name in args.report_to:
        for variable, value in _ENVIRONMENT.get(name, {}).items():
            os.environ.setdefault(variable, value)
        try:
            get_reporting_integration_callbacks([name])[0]()
        except (RuntimeError, ImportError, ValueError) as error:
            raise InputError(f"report_to: {name} cannot be used: {error}") from error
    if "trackio" in args.report_to and not args.trackio_static_space_id:
        # Without a name stock creates a new Space at the end of each phase.
        args.trackio_static_space_id = False
        args.unsaved_fields = {*getattr(args, "unsaved_fields", ()), "trackio_static_space_id"}
    if args.process_index != 0:
        return
    if "wandb" in args.report_to and os.environ["WANDB_MODE"] == "online":
        _check_wandb()
    space = args.trackio_space_id or os.environ.get("TRACKIO_SPACE_ID")
    if "trackio" in args.report_to and space:
        _check_space(space)


def _check_wandb() -> None:
    """Refuse to go online without a login or a server; wandb would ask for a key, or wait."""
    import wandb

    obstacle = None
    url = wandb.setup().settings.base_url
    if not wandb.login(prompt=False, verify=False):
        obstacle = "there is no login (`wandb login`, or WANDB_API_KEY)"
    elif not can_connect(url):
        obstacle = f"{url} cannot be reached"
    if obstacle is not None:
        raise InputError(
            f"report_to: wandb cannot go online: {obstacle}; WANDB_MODE=offline records the run "
            "in its folder, and `wandb sync` uploads it later"
        )


def _check_space(space: str) -> None:
    """Refuse a Space that cannot be reached, or written to."""
    obstacle = why_unreachable()
    if obstacle is None and get_token() is None:
        obstacle = "there is no token (`hf auth login`, or HF_TOKEN)"
    if obstacle is not None:
        raise InputError(
            f"report_to: trackio cannot use the Space {space}: {obstacle}; without a Space the run "
            "is recorded on this machine, and `trackio sync` uploads it later"
        )


def name_run(args: Any, run_id: str) -> dict[str, str]:
    """Name a run to its trackers, so that it goes on in the same run of theirs when it resumes.

    Returns:
        Variables that the environment is to have while the run trains; those that are set stay.
    """
    folder = Path(args.output_dir)
    title = f"{run_name(folder)}-{run_id[:8]}"
    name = re.sub(r"[^\w.-]", "-", title)
    args.run_name = args.run_name or name  # by which Trackio finds it again
    variables = {
        "WANDB_RUN_ID": name,
        "WANDB_RESUME": "allow",
        "WANDB_DIR": str(folder.absolute()),
    }
    return {key: value for key, value in variables.items() if key not in os.environ}
