"""Fine-tune with the stock Trainer of transformers, from the same weights on the same inputs as recipes/finetune.py.

    python benchmarks/finetune_stock.py --config recipes/configs/finetune/glue.yaml --task mrpc --model_name_or_path M \
        --data_dir DATA --output_dir runs/mrpc_stock

The yardstick of benchmarks/compare_with_stock.py. Flags as for recipes/finetune.py; the model is measured and not saved.
"""

import logging
import time
from pathlib import Path

from stock.plan import StockArguments

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import run_cli, saving
from bert_recipes.finetuning.arguments import (
    TASK_FILE,
    FineTuningArguments,
    TaskArguments,
    check_access,
    load_task,
    write_task_file,
)
from bert_recipes.training.speed import describe_machine, peak_memory_mb


def main() -> None:
    """Prepare the run as ours, then train and measure it with stock classes."""
    settings, args, own = parse_arguments(TaskArguments, FineTuningArguments, StockArguments, check_first=check_access)
    # Imported only now, for it takes seconds.
    from stock.stock_trainer import (
        evaluate_stock,
        make_stock_trainer,
        predict_stock,
        train_stock,
    )

    from bert_recipes.finetuning.run import describe_data, prepare_run
    from bert_recipes.reports.page import finetuning_table
    from bert_recipes.training.resume import CONFIG_FILE, RESULTS_FILE, prepare_output_dir
    from bert_recipes.training.run import check_launch, results_text, start_logging

    start_logging(args)
    check_launch(args)
    if not args.has_output_dir:
        args.output_dir = f"runs/{load_task(settings).name}_stock"

    # 1. Task, data, checkpoint and head as for recipes/finetune.py
    max_steps = args.max_steps
    run = prepare_run(settings, args)
    args.resume = "no"  # stock checkpoints are not ours to go on from
    prepare_output_dir(args, (settings, args, own))
    trainer = make_stock_trainer(run, args, max_steps=max_steps, same_batches=own.same_batches)
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    save_config(folder / CONFIG_FILE, settings, args, own)

    # 2. Training and figures
    seconds, steps = train_stock(trainer)
    results = {**describe_data(run), "train_steps": steps, "train_seconds": seconds}
    results |= evaluate_stock(run, trainer)
    results |= {"peak_memory_mb": round(peak_memory_mb(), 1), "machine": describe_machine()}
    results["date"] = time.strftime("%Y-%m-%d")
    with saving(folder):
        for name, encoded in run.test_splits.items():  # --do_predict
            run.trainer.kind.write(folder, name, encoded.split.examples, predict_stock(run, trainer, encoded))
        trainer.save_state()
        (folder / RESULTS_FILE).write_text(results_text(results), encoding="utf-8")
        write_task_file(folder / TASK_FILE, run.task)
    print(finetuning_table(results))
    logging.getLogger("finetune_stock").info("%s: %s", RESULTS_FILE, folder)


if __name__ == "__main__":
    run_cli(main)
