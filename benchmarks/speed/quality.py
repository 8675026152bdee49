"""Time to a quality: from raw text, ours and stock for the same minutes, measured on the same held-out pairs."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertTokenizer, DataCollatorForLanguageModeling, TrainerCallback, set_seed
from transformers.trainer_pt_utils import LengthGroupedSampler

from bert_recipes.config import parse_arguments
from bert_recipes.data.corpus import find_files
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.prepare import CorpusArguments, prepare_store
from bert_recipes.data.quickstart_corpus import choose_held_out, find_sources, read_documents, write_corpus
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.tokenization.training import train_wordpiece
from bert_recipes.training.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.training.bert_trainer import EVALUATION_SEED, EvaluationSampler, PreTrainingSums
from bert_recipes.training.pretraining import PreTrainingData, load_data, load_model, make_collator, make_trainer
from speed.data_suite import paragraphs
from speed.pretraining_sides import StaticPairs, stock_config
from speed.spec import OURS, SampleSpec
from speed.stock_switches import StaticDataset, StockTrainer, stock_arguments, stock_defaults


# Of the quickstart (tokenizer/configs/quickstart.yaml): enough for the documentation's text.
VOCAB_SIZE = 8000
# More steps than any machine makes in an hour: the time ends the run, not the number.
MAX_STEPS = 10_000_000
EVAL_PAIRS, EVAL_BATCH = 500, 50
EVERY_SECONDS = 60.0
# Of the whole time: the learning rate's warm-up.
WARMUP_SHARE = 0.05


class TimedRun(TrainerCallback):
    """Measures every minute, ends the run when its time is over, and lets the learning rate follow the clock.

    The rate rises for `WARMUP_SHARE` of the time and then falls linearly to 0 at its end: neither side knows how many
    steps it will make. The clock starts with the raw text and stands still while held-out pairs are measured.

    Args:
        begin: When the side started, of `time.perf_counter`.
        seconds: Length of the run.
        peak: Highest learning rate.
        evaluate: Gives the held-out figures of the model as it is.
    """

    def __init__(self, begin: float, seconds: float, peak: float, evaluate: Any) -> None:
        self.seconds, self.peak, self.evaluate = seconds, peak, evaluate
        self.points: list[dict[str, float]] = []
        self._begin, self._paused, self._last = begin, 0.0, 0.0
        self._every = min(EVERY_SECONDS, seconds / 4)

    @property
    def elapsed(self) -> float:
        """Seconds since the raw text, without those of measuring."""
        return time.perf_counter() - self._begin - self._paused

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Set the learning rate."""
        share = min(self.elapsed / self.seconds, 1.0)
        factor = min(share / WARMUP_SHARE, 1.0) * (1 - share)
        for group in optimizer.param_groups:
            group["lr"] = self.peak * factor

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure when a minute is over; stop at the end."""
        elapsed = self.elapsed
        is_over = elapsed >= self.seconds
        if is_over or elapsed - self._last >= self._every:
            self._last = elapsed
            start = time.perf_counter()
            self.points.append({"seconds": round(elapsed, 1), "steps": state.global_step, **self.evaluate()})
            self._paused += time.perf_counter() - start
        control.should_training_stop = control.should_training_stop or is_over


def raw_text(spec: SampleSpec) -> tuple[list[Path], list[Path]]:
    """Files to train on and to hold out: the user's, one file in twenty held out, or installed documentation."""
    if spec.files:
        files = find_files(list(spec.files))
        held_out = files[:: max(20, 1)][: max(1, len(files) // 20)] if len(files) > 1 else []
        return [path for path in files if path not in held_out], held_out
    folder = Path(spec.work_dir) / "documentation"
    train, validation = folder / "train" / "documents.txt", folder / "validation" / "documents.txt"
    if not train.is_file():
        counts: Counter[str] = Counter()
        sources, _ = find_sources(Path(__file__).parents[2] / "pyproject.toml", counts)
        documents = read_documents(sources, 20, os.cpu_count() or 1, counts)
        write_corpus(folder, documents, choose_held_out(documents, 0.04), counts)
    return [train], [validation]


def prepare_tokenizer(spec: SampleSpec, files: list[Path]) -> float:
    """Train the vocabulary that both sides use, once; its seconds count for neither."""
    folder = Path(spec.work_dir) / "quality-tokenizer"
    start = time.perf_counter()
    if not (folder / "vocab.txt").is_file():
        train_wordpiece(paragraphs(files), vocab_size=min(VOCAB_SIZE, spec.vocab_size)).save_pretrained(folder)
    return time.perf_counter() - start


def prepare(spec: SampleSpec, train: list[Path], held_out: list[Path]) -> Path:
    """Raw text -> store."""
    folder = Path(spec.work_dir) / "quality-tokenizer"
    output = Path(spec.work_dir) / f"quality-store-{spec.side}"
    arguments = CorpusArguments(
        tokenizer=str(folder),
        output_dir=str(output),
        files=[str(path) for path in train],
        validation_files=[str(path) for path in held_out] or None,
        validation_fraction=0.0 if held_out else 0.05,
        overwrite=True,
    )
    prepare_store(arguments, load_tokenizer(folder))
    return output


def our_settings(spec: SampleSpec, store: Path) -> tuple[ModelArguments, DataArguments, PreTrainingArguments]:
    """The quickstart's settings on this store, ended by the clock."""
    on_cpu = spec.use_cpu or not torch.cuda.is_available()
    flags = {"store": store, "output_dir": f"{spec.work_dir}/quality-ours", "size": spec.size, "max_steps": MAX_STEPS}
    flags |= {"eval_strategy": "no", "save_strategy": "no", "disable_tqdm": "true", "use_cpu": str(on_cpu).lower()}
    argv = ["--config", spec.config, *(str(part) for name, value in flags.items() for part in (f"--{name}", value))]
    model, data, args = parse_arguments(ModelArguments, DataArguments, PreTrainingArguments, argv=argv)
    return model, data, args


class HeldOut:
    """The same held-out pairs and masks for any model with stock names.

    Args:
        data: Gives them.
        settings: Masking.
    """

    def __init__(self, data: PreTrainingData, settings: DataArguments) -> None:
        assert data.validation is not None
        collator = make_collator(settings, data.tokenizer, EVALUATION_SEED)
        sampler = EvaluationSampler(data.validation, EVAL_PAIRS, EVAL_BATCH, 0, 1)
        self._batches = [collator([data.validation[key] for key in keys]) for keys in sampler]

    @torch.no_grad()
    def measure(self, model: Any) -> dict[str, float]:
        """mlm_loss (nats), nsp_accuracy (0 to 1), in full precision."""
        device = model.device
        judge = BertForPreTraining(model.config)
        judge.load_state_dict(model.state_dict())
        judge.to(device).eval()
        sums = PreTrainingSums(device)
        for batch in self._batches:
            moved = {name: value.to(device) for name, value in batch.items()}
            sums.add(judge(**moved, return_full_logits=False), moved)
        figures = sums.metrics("eval")
        return {"mlm_loss": figures["eval_mlm_loss"], "nsp_accuracy": figures["eval_nsp_accuracy"]}


def measure(spec: SampleSpec) -> dict[str, Any]:
    """Train one side for its minutes; points of (seconds, steps, held-out figures)."""
    train, held_out = raw_text(spec)
    tokenizer_seconds = prepare_tokenizer(spec, train)
    begin = time.perf_counter()
    store = prepare(spec, train, held_out)
    model_args, data_args, args = our_settings(spec, store)
    data = load_data(data_args, args.seed)
    model = load_model(model_args, data.tokenizer, data.max_seq_length, args.seed)
    # Held-out pairs are collated for measuring alone: their time counts for neither side.
    start = time.perf_counter()
    judge = HeldOut(data, data_args)
    begin += time.perf_counter() - start
    if spec.side == OURS:
        trainer: Any = make_trainer(model, args, data, data_args.max_eval_pairs)
    else:
        trainer = _stock(spec, args, data)
    prepared = time.perf_counter() - begin
    clock = TimedRun(begin, spec.minutes * 60, args.learning_rate, lambda: judge.measure(trainer.model))
    trainer.add_callback(clock)
    trainer.train()
    last = clock.points[-1]
    return {
        "points": clock.points,
        "prepared_seconds": round(prepared, 2),
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


def _stock(spec: SampleSpec, args: PreTrainingArguments, data: PreTrainingData) -> Any:
    """Stock on static pairs, with the same batch, and dropout and learning rate of the same configuration."""
    assert isinstance(data.train, PreTrainingDataset)
    pairs = StaticPairs(data.train, args.seed)
    tokenizer = BertTokenizer(vocab=str(Path(spec.work_dir) / "quality-tokenizer" / "vocab.txt"))
    set_seed(args.seed)
    config = stock_config(spec.size, len(tokenizer))
    # Equal hyperparameters: the configuration's dropout and deviation of new weights.
    ours = load_model_settings(spec)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = ours.dropout
    config.initializer_range = ours.initializer_range
    model = transformers.BertForPreTraining(config)
    switches = stock_defaults() | dict(spec.switches)
    model.set_attn_implementation(switches["attn"])
    stock_args = stock_arguments(spec, switches, args.per_device_train_batch_size)
    stock_args.max_steps = MAX_STEPS
    stock_args.train_sampling_strategy = switches["order"]
    stock_args.adam_epsilon, stock_args.weight_decay = args.adam_epsilon, args.weight_decay
    multiple = data.max_seq_length if switches["padding"] == "max" else None
    return StockRun(
        pairs.lengths.tolist(),
        model=model,
        args=stock_args,
        data_collator=DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=multiple),
        train_dataset=StaticDataset(pairs),
    )


def load_model_settings(spec: SampleSpec) -> ModelArguments:
    """The model settings of the configuration."""
    settings, _, _ = our_settings(spec, Path("unused"))
    return settings
