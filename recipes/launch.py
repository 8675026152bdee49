"""`accelerate launch` that passes signals and exit codes on.

    python recipes/launch.py --config_file accelerate_configs/ddp.yaml recipes/pretrain.py

Takes what `accelerate launch` takes, and starts the same processes. What differs: a run that
SIGTERM or Ctrl-C has stopped in good order ends with 143 or 130, as it does without a launcher, so
that a scheduler knows that it may be started again; the launcher of Accelerate ends with 1 and a
traceback of its own. A run of one process is not started by a second one that would die of the
signal alone. A configuration for more GPUs than there are is refused; without any GPU one process
trains on the CPU.
"""

import os
import sys

from accelerate.commands import launch

from bert_recipes.errors import run_cli
from bert_recipes.training.launch import (
    LAUNCHER_ERRORS,
    SHUTDOWN_SECONDS,
    SHUTDOWN_VARIABLE,
    become,
    checked,
    exit_code_of,
)


def main() -> None:
    """Start the processes, and end as they do."""
    args = launch.launch_command_parser().parse_args()
    args.quiet = True
    # Called where there is one process, and neither torch's launcher nor DeepSpeed's.
    launch.simple_launcher = checked(become)
    launch.multi_gpu_launcher = checked(launch.multi_gpu_launcher)
    launch.deepspeed_launcher = checked(launch.deepspeed_launcher)
    os.environ.setdefault(SHUTDOWN_VARIABLE, str(SHUTDOWN_SECONDS))
    try:
        launch.launch_command(args)
    except LAUNCHER_ERRORS as error:
        sys.exit(exit_code_of(error))


if __name__ == "__main__":
    run_cli(main)
