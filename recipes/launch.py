"""`accelerate launch` that passes signals and exit codes on.

    python recipes/launch.py --config_file accelerate_configs/ddp.yaml recipes/pretrain.py

Takes what `accelerate launch` takes, and starts the same processes. What differs: a run that SIGTERM or Ctrl-C has stopped in
good order ends with 143 or 130, as it does without a launcher, so that a scheduler knows that it may be started again; the
launcher of Accelerate ends with 1 and a traceback of its own. A run of one process is not started by a second one that would
die of the signal alone.
"""

import os
import sys

from bert_recipes.errors import run_cli
from bert_recipes.launching import SHUTDOWN_SECONDS, SHUTDOWN_VARIABLE, exit_code_of, starts_one_process


def main() -> None:
    """Start the processes, and end as they do."""
    from accelerate.commands.launch import launch_command, launch_command_parser, prepare_simple_launcher_cmd_env

    parser = launch_command_parser()
    args = parser.parse_args()
    args.quiet = True
    if starts_one_process(args):
        command, environment = prepare_simple_launcher_cmd_env(args)
        os.execvpe(command[0], command, environment)
    os.environ.setdefault(SHUTDOWN_VARIABLE, str(SHUTDOWN_SECONDS))
    try:
        launch_command(args)
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        sys.exit(code)


if __name__ == "__main__":
    run_cli(main)
