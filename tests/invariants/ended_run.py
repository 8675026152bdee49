"""The run that the tests of kills, signals and faults end before its time."""

import time
from pathlib import Path


HERE = Path(__file__).parent
STEPS = 160
# Across the end of an epoch, with accumulation, evaluation, dropout, the end of phase one.
FLAGS = f"""
--size tiny --max_seq_length 48 --global_train_batch_size 8 --per_device_train_batch_size 4
--max_steps {STEPS} --warmup_steps 10 --learning_rate 1e-3 --logging_steps 3
--save_steps 2 --save_total_limit 2 --eval_strategy steps --eval_steps 50 --max_eval_pairs 8
--use_cpu true --disable_tqdm true --dropout 0.1
--phase2_steps 60 --phase2_max_seq_length 64 --phase2_per_device_train_batch_size 4
""".split()


def flags_for(store: Path, folder: Path) -> list[str]:
    config = HERE.parents[1] / "recipes" / "configs" / "pretrain" / "bert_tiny.yaml"
    return ["--config", str(config), "--store", str(store), "--output_dir", str(folder), *FLAGS]


def wait_for(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False
