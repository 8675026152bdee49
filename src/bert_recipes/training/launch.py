"""The processes of a launch: checks, GPUs, log, group, answers of the main process."""

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import transformers
from accelerate.utils import broadcast_object_list, gather_object
from transformers.training_args import ParallelMode, TrainingArguments

from bert_recipes.errors import InputError, describe_os_error
from bert_recipes.shipped import command_hint


logger = logging.getLogger(__name__)


# The machine


def check_gpus() -> None:
    """Refuse more processes on this machine than it has GPUs."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.accelerator.device_count()
    if 0 < gpus < processes:
        raise InputError(
            f"{processes} processes were started on this machine, one a GPU, and it has {gpus} "
            "GPU(s): set num_processes, of all machines together, in the configuration of the "
            "launch, or give `accelerate launch` --num_processes"
        )


def take_one_gpu(args: TrainingArguments, *, trains: bool) -> None:
    """Refuse to train in one process that sees several GPUs; what only measures takes the first.

    Stock would split the batches of one process by `nn.DataParallel`.
    """
    if args.n_gpu <= 1:
        return
    if trains:
        launch = command_hint(
            checkout=(
                "LAUNCH=ddp with make, or accelerate launch --config_file "
                f"accelerate_configs/ddp.yaml --num_processes {args.n_gpu} recipes/..., or "
                "--launch ddp of a sweep"
            ),
            wheel="accelerate launch --multi_gpu -m bert_recipes",
        )
        raise InputError(
            f"one process sees {args.n_gpu} GPUs; to use all, with a process for each: {launch}; "
            "to use one: CUDA_VISIBLE_DEVICES=0"
        )
    logger.info("one of %d GPUs is used", args.n_gpu)
    args._n_gpu = 1


# The launch, and the log

# Variables in which a scheduler gives the number of tasks that it started.
_TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def asks_for_fsdp(args: TrainingArguments) -> bool:
    """Return whether the launcher or a setting asks for FSDP."""
    by_launcher = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
    return by_launcher or args.fsdp_plugin_args is not None


def check_launch(args: TrainingArguments, *, trains: bool = True) -> None:
    """Refuse a launch that would train something else than it seems to.

    Args:
        args: Of the run.
        trains: The script trains; another one takes the first GPU of several.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    is_alone = args.world_size != processes or args.parallel_mode != ParallelMode.DISTRIBUTED
    if processes > 1 and is_alone:
        raise InputError(
            f"{processes} processes were started but this one trains alone (world size "
            f"{args.world_size}): all would write to the same output_dir; on CPUs give --use_cpu "
            "true or use accelerate_configs/ddp_cpu.yaml, and leave ddp_backend to the default"
        )
    tasks = max(int(os.environ.get(name, "1")) for name in _TASK_COUNTS)
    if processes == 1 and args.world_size == 1 and tasks > 1:
        raise InputError(
            f"{tasks} tasks were started (srun, mpirun) and each would train alone, in the same "
            "output_dir; start one launcher a machine, as recipes/cluster/pretrain.slurm does, or "
            "one task"
        )
    has_engine = asks_for_fsdp(args) or "ACCELERATE_USE_DEEPSPEED" in os.environ
    if has_engine and not trains:
        raise InputError(
            "FSDP and DeepSpeed are for training; measure and predict in one process, with python, "
            "or in several with accelerate_configs/ddp.yaml"
        )
    take_one_gpu(args, trains=trains)
    if args.device.type == "cpu":
        _check_cpu(args, processes)
    _end_with_launcher()


def _end_with_launcher() -> None:
    """Let Linux send SIGTERM when the launcher dies.

    Accelerate's passes no signal to a process that it starts alone; torch's may be killed.
    """
    has_launcher = "ACCELERATE_DYNAMO_BACKEND" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    if has_launcher and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG


def _check_cpu(args: TrainingArguments, processes: int) -> None:
    """Refuse an engine, which is for GPUs; warn of a run on CPUs that did not ask for them."""
    has_fsdp = asks_for_fsdp(args)
    has_deepspeed = "ACCELERATE_USE_DEEPSPEED" in os.environ
    if has_fsdp and torch.accelerator.is_available():
        raise InputError(
            "FSDP takes the GPUs of this machine, --use_cpu true asks for the CPU: LAUNCH=ddp_cpu "
            "is for that"
        )
    # ddp_cpu.yaml hides the GPUs (-1); DS_ACCELERATOR asks DeepSpeed for CPUs.
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    is_deepspeed_on_cpu = has_deepspeed and os.environ.get("DS_ACCELERATOR") == "cpu"
    is_chosen = getattr(args, "cpu_is_chosen", args.use_cpu)
    # make sets it, also by itself where it finds no nvidia-smi.
    is_launched_on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true"
    if is_launched_on_cpu and torch.cuda.is_available() and processes == 1:
        logger.warning(
            "on the CPU, as the launch asks; torch sees a GPU, which LAUNCH=single_gpu takes"
        )
    if is_chosen or first_gpu in ("", "-1") or is_deepspeed_on_cpu:
        return
    if has_deepspeed or has_fsdp:
        raise InputError(
            f"{'DeepSpeed' if has_deepspeed else 'FSDP'} is for GPUs, and torch can use none here; "
            "on CPUs: LAUNCH=ddp_cpu, or give --use_cpu true"
        )
    if args.process_index == 0:
        threads = torch.get_num_threads()
        cores = (os.cpu_count() or 1) // processes
        logger.warning(
            "no GPU that torch can use: %d process(es) compute on the CPU, in %d thread(s) each "
            "(OMP_NUM_THREADS)",
            processes,
            threads,
        )
        if threads < cores:
            logger.warning("OMP_NUM_THREADS=%d lets each process use %d cores", cores, cores)


def start_logging(args: TrainingArguments) -> None:
    """Log to stderr: everything from the main process, warnings from the others."""
    level = logging.INFO if args.process_index == 0 else logging.WARNING
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S", level=level)
    if args.process_index > 0:
        # What these packages say of files and models is the same in every process.
        for package in ("finetuning", "tasks", "tokenization"):
            logging.getLogger(f"bert_recipes.{package}").setLevel(logging.ERROR)
    for library in ("accelerate", "filelock", "fsspec", "httpx", "httpx2", "matplotlib", "torch"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if args.disable_tqdm or not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()


# Processes together


def join_processes_on_cpus(timeout: timedelta) -> None:
    """Form the group of several processes on CPUs, with a time limit for a frozen process.

    Stock would ignore `ddp_timeout` on CPUs and wait for torch's 30 minutes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=timeout)


def check_processes_agree(args: TrainingArguments, name: str, value: str, advice: str) -> None:
    """Refuse to train where processes chose different values: their gradients are summed."""
    if args.world_size == 1:
        return
    values = gather_object([value])
    if len(set(values)) > 1:
        raise InputError(
            f"the processes have other values of {name}: {', '.join(values)}; their machines are "
            f"not alike: give {advice}"
        )


Result = TypeVar("Result")


def run_on_main_process(args: TrainingArguments, function: Callable[[], Result]) -> Result:
    """Call a function in the main process alone, and return its result in all processes.

    An `InputError` of the function is raised in every process; so is an `OSError`, as one.
    """
    result_and_error: list[Any] = [None, None]
    if args.process_index == 0:
        try:
            result_and_error[0] = function()
        except InputError as error:
            result_and_error[1] = error
        except OSError as error:
            result_and_error[1] = InputError(describe_os_error(error))
    if args.world_size > 1:
        broadcast_object_list(result_and_error)
    result, error_of_main = result_and_error
    if error_of_main is not None:
        raise error_of_main
    return result
