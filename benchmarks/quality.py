"""Time to a quality: from raw text, both sides for the same minutes, on the same held-out pairs."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from sample import BUDGET, Result, Sample
from sides import (
    StaticPairs,
    StockTrainer,
    command_line,
    stock_arguments,
    stock_collator,
    stock_config,
)
from transformers import BertTokenizer, TrainerCallback, set_seed
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import find_files, iter_paragraphs
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.quickstart_corpus import (
    choose_held_out,
    find_sources,
    read_documents,
    write_corpus,
)
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.training import train_wordpiece
from bert_recipes.training.arguments import (
    DataArguments,
    DistillationArguments,
    ModelArguments,
    PreTrainingArguments,
)
from bert_recipes.training.bert_trainer import (
    EVALUATION_SEED,
    BertTrainer,
    EvaluationSampler,
    PreTrainingSums,
)
from bert_recipes.training.pretraining import (
    PreTrainingData,
    build_model,
    load_data,
    make_collator,
    make_trainer,
)


# Of the quickstart (tokenizer/configs/quickstart.yaml): enough for the documentation's text.
VOCAB_SIZE = 8000
# More steps than any machine makes in an hour: the time ends the run, not the number.
MAX_STEPS = 10_000_000
EVAL_PAIRS, EVAL_BATCH = 500, 50
EVERY_SECONDS = 60.0
# Of the tokens: what all sides are measured with, and all but the budget trained with.
PAPERS_RATE = 0.15
# Of the whole time: the learning rate's warm-up.
WARMUP_SHARE = 0.05
# Of all sides but the budget, in place of what the quickstart has for few minutes; Adam learns more
# of small batches.
PAPERS_ADAM = {
    "optimizer": "bert_adam",
    "weight_init": "truncated_normal",
    "word_vectors": "false",
    "sampled_softmax": "false",
    "mlm_probability": PAPERS_RATE,
    "learning_rate": 1e-3,
    "warmup_steps": WARMUP_SHARE,
    "flat_until": 0.0,
    "adam_beta2": 0.999,
    "global_train_batch_size": 16,
    "per_device_train_batch_size": 16,
}


class TimedRun(TrainerCallback):
    """Measures every minute, and ends the run when its time is over.

    The clock starts with the raw text and stands still while held-out pairs are measured.
    """

    def __init__(self, begin: float, seconds: float, evaluate: Any) -> None:
        self.seconds = seconds
        self.evaluate = evaluate
        self.points: list[dict[str, float]] = []
        self._begin = begin
        self._last_point = 0.0

    def share(self) -> float:
        """Return the fraction of the time that is over."""
        return min((time.perf_counter() - self._begin) / self.seconds, 1.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure when a minute is over; stop at the end."""
        is_over = self.share() >= 1.0
        elapsed = time.perf_counter() - self._begin
        if is_over or elapsed - self._last_point >= min(EVERY_SECONDS, self.seconds / 4):
            # A GPU may still be at steps that were given to it: their time is the training's.
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            elapsed = now - self._begin
            self._last_point = elapsed
            point = {"seconds": round(elapsed, 1), "steps": state.global_step}
            self.points.append(point | self.evaluate())
            self._begin += time.perf_counter() - now
        if is_over:
            control.should_training_stop = True


class LinearRate(TrainerCallback):
    """Sets stock's learning rate by the clock, as stock does not know how many steps it will make.

    It rises for `WARMUP_SHARE` of the time and then falls linearly to 0 at its end.
    """

    def __init__(self, clock: TimedRun) -> None:
        self.clock = clock

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Set the learning rate."""
        share = self.clock.share()
        factor = min(share / WARMUP_SHARE, 1.0) * (1 - share)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor


class TimedTrainer(BertTrainer):
    """Ours with `max_minutes` by the clock of all sides."""

    timed_run: TimedRun

    def _elapsed_fraction(self) -> float:
        return self.timed_run.share()


def raw_text(sample: Sample) -> tuple[list[Path], list[Path]]:
    """Return files to train on and to hold out.

    Those of the user, one file in twenty held out, or installed documentation.
    """
    if sample.files:
        files = find_files(list(sample.files))
        if len(files) < 2:
            return files, []
        held_out = files[::20][: max(1, len(files) // 20)]
        return [path for path in files if path not in held_out], held_out
    folder = Path(sample.work_dir) / "documentation"
    train = folder / "train" / "documents.txt"
    if not train.is_file():
        counts: Counter[str] = Counter()
        sources, _ = find_sources(Path(__file__).parents[1] / "pyproject.toml", counts)
        documents = read_documents(
            sources,
            20,
            os.cpu_count() or 1,
            counts,
        )
        write_corpus(folder, documents, choose_held_out(documents, 0.04), counts)

    return [train], [folder / "validation" / "documents.txt"]


def prepare(sample: Sample, tokenizer: Path, train: list[Path], held_out: list[Path]) -> Path:
    """Make raw text a store."""
    output = Path(sample.work_dir) / f"quality-store-{sample.side}"
    arguments = CorpusArguments(
        tokenizer=str(tokenizer),
        output_dir=str(output),
        files=[str(path) for path in train],
        validation_files=[str(path) for path in held_out] or None,
        validation_fraction=0.0 if held_out else 0.05,
        overwrite=True,
    )
    prepare_store(arguments, load_tokenizer(tokenizer))
    return output


def quickstart_settings(
    sample: Sample, store: Path
) -> tuple[ModelArguments, DataArguments, PreTrainingArguments]:
    """Read the quickstart's settings for this store, ended by the clock."""
    flags: dict[str, Any] = {
        "store": store,
        "output_dir": f"{sample.work_dir}/quality-ours",
        "size": sample.size,
        "max_minutes": sample.minutes,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": "true",
        "use_cpu": str(sample.on_cpu).lower(),
    }

    if sample.side != BUDGET:
        flags.update(PAPERS_ADAM)
    classes = (ModelArguments, DataArguments, PreTrainingArguments)
    model, data, args = parse_arguments(*classes, argv=command_line(sample.config, flags))
    return model, data, args


class HeldOut:
    """The same held-out pairs and masks for any model with stock names."""

    def __init__(self, data: PreTrainingData, settings: DataArguments) -> None:
        assert data.validation is not None
        settings = replace(
            settings,
            mlm_probability=PAPERS_RATE,
            mlm_probability_end=None,
            max_predictions_per_seq=None,
        )
        collator = make_collator(settings, data.tokenizer, EVALUATION_SEED)
        self._batches = []
        for keys in EvaluationSampler(data.validation, EVAL_PAIRS, EVAL_BATCH, 0, 1):
            self._batches.append(collator([data.validation[key] for key in keys]))

    @torch.no_grad()
    def measure(self, model: Any) -> dict[str, float]:
        """Return mlm_loss (nats) and nsp_accuracy (0 to 1), in full precision."""
        device = model.device
        judge = BertForPreTraining(model.config)
        judge.load_state_dict(model.state_dict())
        judge.to(device).eval()
        sums = PreTrainingSums(device)
        for batch in self._batches:
            inputs = {name: values.to(device) for name, values in batch.items()}
            sums.add(judge(**inputs, return_full_logits=False), inputs)
        figures = sums.metrics("eval")
        return {"mlm_loss": figures["eval_mlm_loss"], "nsp_accuracy": figures["eval_nsp_accuracy"]}


def measure(sample: Sample) -> Result:
    """Train one side for its minutes; points of (seconds, steps, held-out figures)."""
    train, held_out = raw_text(sample)
    tokenizer = Path(sample.work_dir) / "quality-tokenizer"
    start = time.perf_counter()
    # Trained once for all sides; its seconds count for none.
    if not (tokenizer / "vocab.txt").is_file():
        vocab_size = min(VOCAB_SIZE, sample.vocab_size)
        trained = train_wordpiece(iter_paragraphs(train), vocab_size=vocab_size)
        trained.save_pretrained(tokenizer)
    begin = time.perf_counter()
    tokenizer_seconds = begin - start

    store = prepare(sample, tokenizer, train, held_out)
    model_args, data_args, args = quickstart_settings(sample, store)
    data = load_data(data_args, args.seed)
    # Held-out pairs are collated for measuring alone: their time counts for neither side.
    start = time.perf_counter()
    judge = HeldOut(data, data_args)
    begin += time.perf_counter() - start
    if sample.is_ours:
        model = build_model(
            model_args,
            DistillationArguments(),
            data,
            None,
            args.seed,
        )
        trainer: Any = make_trainer(
            model,
            args,
            data,
            data_args.max_eval_pairs,
            TimedTrainer,
        )
    else:
        trainer = stock_run(sample, tokenizer / "vocab.txt", model_args, args, data)
    prepared_seconds = time.perf_counter() - begin
    clock = TimedRun(
        begin,
        sample.minutes * 60,
        lambda: judge.measure(trainer.model),
    )
    trainer.add_callback(clock)
    if sample.is_ours:
        trainer.timed_run = clock
    else:
        trainer.add_callback(LinearRate(clock))
    trainer.train()
    last = clock.points[-1]
    return {
        "points": clock.points,
        "prepared_seconds": round(prepared_seconds, 2),
        "tokenizer_seconds": round(tokenizer_seconds, 2),
        "text_bytes": sum(path.stat().st_size for path in train),
        "mlm_loss": last["mlm_loss"],
        "nsp_accuracy": last["nsp_accuracy"],
    }


class StockRun(StockTrainer):
    """Stock for many epochs: its own samplers, which draw another order in each."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        return LengthGroupedSampler(self.args.train_batch_size, lengths=self.lengths)


def stock_run(
    sample: Sample,
    vocabulary: Path,
    settings: ModelArguments,
    args: PreTrainingArguments,
    data: PreTrainingData,
) -> StockRun:
    """Make stock on static pairs.

    Batch, dropout, deviation of new weights and rates are those of the same configuration.
    """
    assert isinstance(data.train, PreTrainingDataset)
    tokenizer = BertTokenizer(vocab=str(vocabulary))
    set_seed(args.seed)
    config = stock_config(sample.size, len(tokenizer))
    config.hidden_dropout_prob = settings.dropout
    config.attention_probs_dropout_prob = settings.dropout
    config.initializer_range = settings.initializer_range
    model = transformers.BertForPreTraining(config)
    model.set_attn_implementation(sample.switches.get("attention", "sdpa"))
    stock_args = stock_arguments(
        sample,
        args.per_device_train_batch_size,
        max_steps=MAX_STEPS,
        learning_rate=args.learning_rate,
        adam_epsilon=args.adam_epsilon,
        weight_decay=args.weight_decay,
        train_sampling_strategy=sample.switches.get("train_sampling_strategy", "random"),
    )

    pairs = StaticPairs(data.train, args.seed)
    return StockRun(
        pairs.lengths,
        model=model,
        args=stock_args,
        data_collator=stock_collator(sample, tokenizer, data.max_seq_length),
        train_dataset=pairs,
    )
