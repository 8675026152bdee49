"""Pre-train a BERT: masked LM + next sentence prediction over a token-id store.

    accelerate launch --quiet --config_file accelerate_configs/cpu.yaml recipes/pretrain.py \
        --config recipes/configs/pretrain/quickstart.yaml [--field value ...]

Without --config it runs the quickstart's configuration. Fields: those of transformers.TrainingArguments and of
src/bert_recipes/arguments.py; `--help` lists them.
"""

import logging
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from bert_recipes.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.config import parse_arguments
from bert_recipes.errors import run_cli
from bert_recipes.inspection import fill_masks, judge_next_sentences, knows_words
from bert_recipes.monitoring import describe_progress
from bert_recipes.phases import PhaseArguments, plan_phases
from bert_recipes.pretraining import load_model, load_phases, make_trainer
from bert_recipes.reporting import describe_run, format_guesses, write_report
from bert_recipes.run_folder import claim_output_dir
from bert_recipes.training import check_launch, run_training, start_logging


QUICKSTART = Path(__file__).parent / "configs" / "pretrain" / "quickstart.yaml"
logger = logging.getLogger("pretrain")

SENTENCES = (
    "Return the [MASK] of the list.",
    "The function returns a [MASK] of strings.",
    "If the file does not [MASK], an error is raised.",
    "He opened the [MASK] and went into the room.",
)
PAIRS = (
    ("Return the number of items in the list.", "If the list is empty, zero is returned."),
    ("Return the number of items in the list.", "The socket is closed when the connection is lost."),
)


def known_examples(tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[tuple[str, str]]]:
    """Those of SENTENCES and PAIRS in whose words the tokenizer was trained."""
    sentences = [text for text in SENTENCES if knows_words(tokenizer, text)]
    pairs = [pair for pair in PAIRS if knows_words(tokenizer, " ".join(pair))]
    skipped = len(SENTENCES) + len(PAIRS) - len(sentences) - len(pairs)
    if skipped:
        logger.info("%d of the English examples are left out: the tokenizer does not know their words", skipped)
    return sentences, pairs


def main() -> None:
    """Parse, check, train, report."""
    model_args, data_args, args, phase_args = parse_arguments(
        ModelArguments, DataArguments, PreTrainingArguments, PhaseArguments, default_config=QUICKSTART
    )
    start_logging(args)
    check_launch(args)
    phases = plan_phases(args, data_args, phase_args)
    parts = load_phases(data_args, args.seed, phases)
    data, longest = parts[0], max(part.max_seq_length for part in parts)
    model = load_model(model_args, data.tokenizer, longest, args.seed)
    trainer = make_trainer(model, args, parts, data_args.max_eval_pairs, phases)
    configs = (model_args, data_args, args, phase_args)
    resume_from = claim_output_dir(args, configs)
    description = describe_run(trainer, data)
    logger.info("run: %s", description)

    results = run_training(trainer, configs, resume_from)

    # In all processes: where they share the weights out, none can compute alone.
    sentences, pairs = known_examples(data.tokenizer)
    masks = fill_masks(model, data.tokenizer, sentences)
    verdicts = judge_next_sentences(model, data.tokenizer, pairs)
    if trainer.is_world_process_zero():
        steps = trainer.state.max_steps
        remark = describe_progress(results, steps, steps, 0)
        report = write_report(
            Path(args.output_dir),
            results=results,
            description=description,
            history=trainer.state.log_history,
            masks=masks,
            verdicts=verdicts,
            remark=remark,
        )
        for mask in masks:
            print(f"{mask.text}  ->  {format_guesses(mask)}")
        for verdict in verdicts:
            print(f"P(next) = {verdict.is_next:.2f}  {verdict.first} | {verdict.second}")
        print(report.read_text(encoding="utf-8").split("![")[0])
        print(f"model, report and plot: {args.output_dir}")


if __name__ == "__main__":
    run_cli(main)
