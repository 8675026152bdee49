"""BertTrainer: exact evaluation, and stock arguments, data sets and collators."""

import math
import os
import re
import shutil
import signal
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from cpu_kernels import need_cpu_kernels
from safetensors.torch import load_file
from small_run import small_run
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from bert_recipes.data.collator import DataCollatorForPreTraining, count_characters
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError, Interrupted
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.models.sampled_softmax import SampledSoftmax
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.arguments import PhasePlan, PreTrainingArguments
from bert_recipes.training.bert_trainer import (
    BertTrainer,
    EvaluationSampler,
    PreTrainingSums,
    TrainingPhase,
    epoched,
    unigram_log_probs,
)
from bert_recipes.training.callbacks import DrawPieces
from bert_recipes.training.console import LogPrinter
from bert_recipes.training.electra import ElectraTrainer
from bert_recipes.training.optimization import Muon
from bert_recipes.training.speed import BatchStats


def accuracy(logits, targets):
    return (logits.argmax(-1) == targets).float().mean().item()


def test_the_passes_that_are_printed_are_those_of_the_log(small_store, tmp_path):
    settings = {"store": str(small_store), "output_dir": str(tmp_path / "run")}
    result = small_run(**settings, per_device_train_batch_size=16)
    trainer = result["trainer"]
    printers = [c for c in trainer.callback_handler.callbacks if isinstance(c, LogPrinter)]
    epochs = {line["step"]: line["epoch"] for line in result["history"] if "loss" in line}
    assert epochs[3] == 3 * 16 / trainer.train_dataset.num_pairs(0)
    assert [printer.trainer.epochs_at(3) for printer in printers] == [epochs[3]]


def test_a_run_in_float32_leaves_the_scaler_of_float16_alone(small_store, tmp_path):
    """With `allow_changes`: a job of an old GPU goes on upon a newer one."""
    settings = {"store": str(small_store), "output_dir": str(tmp_path / "run")}
    settings |= {"save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 16}
    small_run(**settings, max_steps=1)
    checkpoint = tmp_path / "run" / "checkpoint-1"
    torch.save({"scale": 65536.0}, checkpoint / "scaler.pt")
    result = small_run(**settings, max_steps=2, resume_from=str(checkpoint))
    assert result["trainer"].state.global_step == 2


class Pairs:
    def __init__(self, number):
        self.number = number

    def num_pairs(self, epoch):
        return self.number


@pytest.mark.parametrize(
    ("pairs", "limit", "batch", "world"),
    [(100, 75, 8, 2), (10, 99, 4, 3), (3, 3, 2, 4), (8, 8, 8, 1), (9, 99, 4, 2)],
)
def test_each_held_out_pair_is_counted_once_and_processes_have_equally_many_batches(
    pairs, limit, batch, world
):
    samplers = [EvaluationSampler(Pairs(pairs), limit, batch, rank, world) for rank in range(world)]
    pairs_of_first = math.ceil(min(pairs, limit) / world)
    assert {len(sampler) for sampler in samplers} == {math.ceil(pairs_of_first / batch)}
    counted = []
    for sampler in samplers:
        for keys, is_padding_batch in zip(sampler, sampler.is_padding_batch, strict=True):
            assert 1 <= len(keys) <= batch
            if not is_padding_batch:
                counted += keys
    assert len(counted) == len(set(counted)) == min(pairs, limit)


def test_metrics_are_those_of_all_pairs_together_whatever_the_batches(small_store):
    """Against one plain computation with full logits over all rows."""
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset.from_store(store, "validation", max_seq_length=32)
    collator = DataCollatorForPreTraining(tokenizer)
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).eval()
    features = [dataset[index] for index in range(23)]
    special_ids = tokenizer.all_special_ids
    vocabulary = tokenizer.get_vocab()
    lengths = torch.from_numpy(count_characters(vocabulary, len(tokenizer), special_ids))
    unigram = unigram_log_probs(store.train.unigram_counts)
    sums = PreTrainingSums(torch.device("cpu"), unigram, lengths)
    with torch.no_grad():
        for start in range(0, 23, 5):
            batch = collator(features[start : start + 5])
            sums.add(model(**batch, return_full_logits=False), batch)
        batch = collator(features)
        full = model(**batch)
    is_masked = batch["labels"] != -100
    targets = batch["labels"][is_masked]
    counts = store.train.unigram_counts
    unigram_log_probs_of_targets = np.log((counts[targets] + 1) / (counts.sum() + len(counts)))
    labels = batch["next_sentence_label"]
    share = labels.float().mean().item()
    pieces = tokenizer.convert_ids_to_tokens(targets.tolist())
    num_characters = sum(len(piece.replace("##", "")) for piece in pieces)
    expected = {
        "mlm_loss": full.mlm_loss.item(),
        "mlm_bits_per_character": full.mlm_loss.item() * len(targets) / num_characters / np.log(2),
        "nsp_loss": full.nsp_loss.item(),
        "loss": full.loss.item(),
        "perplexity": math.exp(full.mlm_loss.item()),
        "mlm_accuracy": accuracy(full.prediction_logits[is_masked], targets),
        "nsp_accuracy": accuracy(full.seq_relationship_logits, labels),
        "majority_accuracy": max(share, 1 - share),
        "unigram_loss": -unigram_log_probs_of_targets.mean(),
        "unigram_accuracy": (targets == counts.argmax()).float().mean().item(),
        "pairs": 23,
        "masked_tokens": len(targets),
    }
    metrics = sums.metrics(prefix="x")
    assert metrics == pytest.approx({f"x_{name}": value for name, value in expected.items()}, 1e-4)


def test_an_evaluation_leaves_its_losses_without_one_batch_after_the_other(tmp_path):
    """Five batches of three pairs, each left out once: the losses are those of an evaluation over
    the other pairs.
    """

    def evaluate(pairs, size):
        settings = {"per_device_eval_batch_size": size}
        return stock_trainer(tmp_path, pairs, two_columns, **settings).measure_all()

    held_out = rows(15)
    results = evaluate(held_out, 3)
    expected = defaultdict(list)
    for keys in EvaluationSampler(epoched(held_out), None, 3, 0, 1):
        pairs = [row for index, row in enumerate(held_out) if (0, index) not in keys]
        for name, value in evaluate(pairs, 12).items():
            expected[name].append(value)
    assert {*results["jackknife"]} == {"loss", "mlm_loss", "nsp_loss"}
    for name, values in results["jackknife"].items():
        assert sorted(values) == pytest.approx(sorted(expected[f"eval_{name}"]), abs=1e-5)
        assert min(values) < results[f"eval_{name}"] < max(values)


def test_the_loss_of_the_sentence_task_is_a_mean_over_labelled_rows_whatever_the_batches():
    """Batches with 5, 1, 0 and 4 labelled rows of 5 count by those, as in one computation over all
    rows.
    """
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=64)).eval()
    model.cls.seq_relationship.weight.data *= 40  # so that rows have different losses
    pairs = rows(20)
    for index in (6, 7, 8, 9, 10, 11, 12, 13, 14, 17):
        pairs[index]["next_sentence_label"] = -100
    sums = PreTrainingSums(torch.device("cpu"))
    with torch.no_grad():
        for start in range(0, 20, 5):
            batch = two_columns(pairs[start : start + 5])
            sums.add(model(**batch, return_full_logits=False), batch)
        labelled = two_columns([row for row in pairs if row["next_sentence_label"] >= 0])
        logits = model(labelled["input_ids"]).seq_relationship_logits
    labels = labelled["next_sentence_label"]
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert losses.std() > 0.05
    metrics = sums.metrics("eval", "sop")
    assert metrics["eval_pairs"] == 10
    assert metrics["eval_sop_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert metrics["eval_sop_accuracy"] == pytest.approx(accuracy(logits, labels))
    share = labels.float().mean().item()
    assert metrics["eval_majority_accuracy"] == pytest.approx(max(share, 1 - share))


def test_without_labels_of_pairs_only_the_masked_part_is_reported():
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=64)).eval()
    batch = two_columns(rows(4))
    del batch["next_sentence_label"]
    sums = PreTrainingSums(torch.device("cpu"))
    sums.add(model(**batch, return_full_logits=False), batch)
    metrics = sums.metrics()
    assert not metrics.keys() & {"eval_nsp_loss", "eval_pairs", "eval_unigram_loss"}
    assert metrics["eval_loss"] == metrics["eval_mlm_loss"]


def test_checkpoints_after_given_passes_stay_whatever_the_limit_and_a_resume(small_store, tmp_path):
    """The passes are over the pairs of the first epoch, in steps of 8."""
    num_pairs = PreTrainingDataset.from_store(
        open_store(small_store), "train", max_seq_length=48
    ).num_pairs(0)
    settings = {
        "store": str(small_store),
        "output_dir": str(tmp_path),
        "max_steps": 12,
        "per_device_train_batch_size": 8,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 1,
        # After the third, fifth and tenth step.
        "save_at_epochs": [20 / num_pairs, 40 / num_pairs, 79 / num_pairs],
    }

    def steps():
        return sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))

    small_run(**settings)
    assert steps() == [3, 5, 10, 12]
    shutil.rmtree(tmp_path / "checkpoint-10")
    shutil.rmtree(tmp_path / "checkpoint-12")
    small_run(**settings, resume_from=str(tmp_path / "checkpoint-5"))
    assert steps() == [3, 5, 10, 12]


def test_a_checkpoint_after_whole_passes_is_that_of_the_last_step(small_store, tmp_path, caplog):
    """The steps of the passes are rounded down."""
    result = small_run(
        store=str(small_store),
        output_dir=str(tmp_path),
        max_steps=-1,
        num_train_epochs=1.0,
        per_device_train_batch_size=7,
        save_strategy="no",
        save_at_epochs=[1.0, 2.5],
    )
    trainer = result["trainer"]
    assert trainer.kept_steps == [trainer.state.max_steps]
    assert trainer.epochs_at(trainer.state.max_steps) < 1.0
    (warning,) = [text for text in caplog.messages if text.startswith("save_at_epochs")]
    assert re.search(r"ended after 0\.9\d* passes; no checkpoint at 2\.5$", warning)


def test_a_model_has_the_sampled_softmax_while_its_trainer_trains(small_store, tmp_path):
    need_cpu_kernels()
    seen = []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen.append(model.sampled_softmax)

    settings = {"store": str(small_store), "output_dir": str(tmp_path), "sampled_softmax": True}
    trainer = small_run(**settings, max_steps=1, callbacks=[Look()])["trainer"]
    (softmax,) = seen
    assert isinstance(softmax, SampledSoftmax)
    assert trainer.model.sampled_softmax is None

    work = BatchStats(tokens=100, squares=1000, sequences=4, masked=15)
    flops = trainer.flops_of(work)
    trainer.model.sampled_softmax = softmax
    num_left_out = trainer.model.config.vocab_size - len(softmax.pieces)
    hidden_size = trainer.model.config.hidden_size
    assert flops - trainer.flops_of(work) == 6 * 15 * hidden_size * num_left_out


def test_a_stock_model_has_no_sampled_softmax(tmp_path, caplog):
    caplog.set_level("INFO")
    args = PreTrainingArguments(output_dir=str(tmp_path), sampled_softmax=True, use_cpu=True)
    model = BertForMaskedLM(pretraining_config("tiny", vocab_size=60))
    trainer = BertTrainer(
        model, args, train_dataset=rows(), unigram_counts=np.ones(60, dtype=np.int64)
    )
    assert "the loss is over all pieces" in caplog.text
    assert not any(isinstance(each, DrawPieces) for each in trainer.callback_handler.callbacks)


# With nothing of ours but the model and the Trainer


def rows(number=24):
    """Masked pairs as anybody may have them: plain lists, one column that the model does not
    know.
    """
    rng = np.random.default_rng(5)
    pairs = []
    for index in range(number):
        ids = rng.integers(5, 60, 12).tolist()
        labels = [-100] * 12
        labels[3], ids[3] = ids[3], 4
        pairs.append(
            {
                "input_ids": ids,
                "labels": labels,
                "attention_mask": [1] * 12,
                "token_type_ids": [0] * 6 + [1] * 6,
                "next_sentence_label": index % 2,
                "source_line": index,
            }
        )
    return pairs


class TorchRows(Dataset):
    def __len__(self):
        return len(rows())

    def __getitem__(self, index):
        return rows()[index]


def as_datasets():
    return pytest.importorskip("datasets").Dataset.from_list(rows())


def two_columns(features):
    names = ("input_ids", "labels", "next_sentence_label")
    return {name: torch.tensor([feature[name] for feature in features]) for name in names}


def stock_trainer(folder, dataset, collator=None, given=None, **settings):
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=60, dropout=0.0))
    defaults = {
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 3,
    }
    args = TrainingArguments(output_dir=str(folder), **(defaults | settings))
    return BertTrainer(
        model,
        args,
        train_dataset=dataset,
        eval_dataset=dataset,
        data_collator=collator,
        **(given or {}),
    )


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    trainer = stock_trainer(tmp_path_factory.mktemp("straight"), rows(), default_data_collator)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("make", "collator"),
    [(rows, None), (TorchRows, None), (as_datasets, default_data_collator)],
)
def test_stock_arguments_any_data_set_and_any_collator_train_alike(
    straight, tmp_path, make, collator
):
    trainer = stock_trainer(tmp_path, make(), collator)
    trainer.train()
    assert losses(trainer) == losses(straight)
    assert len(losses(trainer)) == 6
    names = {"mlm_loss", "nsp_loss", "tokens_per_second", "learning_rate"}
    assert trainer.state.log_history[1].keys() >= names
    metrics = trainer.evaluate()
    assert metrics["eval_pairs"] == metrics["eval_masked_tokens"] == 24
    stock_loss = trainer.predict(make()).metrics["test_loss"]
    assert metrics["eval_loss"] == pytest.approx(stock_loss, rel=1e-5)


def test_a_collator_without_masks_and_types_is_enough_and_metrics_may_be_ones_own(tmp_path):
    settings = {"remove_unused_columns": False, "max_steps": 2}
    trainer = stock_trainer(tmp_path, rows(), two_columns, **settings)
    trainer.train()
    assert all(math.isfinite(loss) for loss in losses(trainer))
    assert trainer.evaluate()["eval_pairs"] == 24
    # As stock does it.
    trainer.compute_metrics = lambda prediction: {"rows": len(prediction.label_ids[0])}
    assert trainer.evaluate()["eval_rows"] == 24


def test_a_run_with_stock_arguments_is_resumed_bit_for_bit(straight, tmp_path, monkeypatch):
    load_results = []
    monkeypatch.setattr(
        Trainer, "_issue_warnings_after_load", lambda trainer, result: load_results.append(result)
    )
    saving = {"save_strategy": "steps", "save_steps": 4}
    stock_trainer(tmp_path, rows(), **saving).train()
    resumed = stock_trainer(tmp_path, rows(), **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(resumed) == losses(straight)
    torch.testing.assert_close(
        resumed.model.state_dict(), straight.model.state_dict(), rtol=0, atol=0
    )
    resumed.train(resume_from_checkpoint=True)  # the newest one, of step 6
    assert resumed.num_resumed_steps == 6
    # The second name of a tied weight is no missing one, and is not saved where an engine gives it.
    assert [result.missing_keys for result in load_results] == [[], []]
    weights = {name: weight.clone() for name, weight in resumed.model.state_dict().items()}
    resumed._save(str(tmp_path / "engine"), weights)
    names = load_file(tmp_path / "engine" / "model.safetensors").keys()
    assert weights.keys() - names == {*resumed.model.all_tied_weights_keys}


@pytest.mark.parametrize(("diverging_step", "counted_lines"), [(1, slice(1, 3)), (6, slice(0, 2))])
def test_the_mean_loss_is_that_of_the_lines_that_are_finite(
    tmp_path, diverging_step, counted_lines
):
    """Also of a run that is resumed behind such a line, and where it is none any more."""

    def diverge(model, inputs, output):
        if trainer.state.global_step + 1 == diverging_step:
            output.loss = output.loss * math.nan

    settings = {"logging_steps": 2, "save_strategy": "steps", "save_steps": 4}
    settings["logging_nan_inf_filter"] = False  # as in `RunArguments`
    for checkpoint in (None, str(tmp_path / "checkpoint-4")):
        trainer = stock_trainer(tmp_path, rows(), **settings)
        trainer.model.register_forward_hook(diverge)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.skipped_steps == 1
        expected = np.mean(losses(trainer)[counted_lines])
        assert trainer.mean_loss == pytest.approx(expected)
        assert trainer.state.log_history[-1]["train_loss"] == trainer.mean_loss
    assert math.isnan(losses(trainer)[(diverging_step - 1) // 2])


def test_the_mean_loss_of_lost_lines_alone_is_not_a_number(tmp_path):
    trainer = stock_trainer(tmp_path, rows(), logging_steps=50, logging_nan_inf_filter=False)

    def diverge(model, inputs, output):
        output.loss = output.loss * math.nan

    trainer.model.register_forward_hook(diverge)
    output = trainer.train()
    assert math.isnan(trainer.mean_loss)
    assert math.isnan(output.training_loss)


def test_a_line_that_somebody_else_logs_takes_nothing_from_the_mean_loss(tmp_path):
    settings = {"logging_steps": 4, "logging_nan_inf_filter": False}
    expected = stock_trainer(tmp_path, rows(), **settings)
    expected.train()

    class Talkative(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            trainer.log({"loss": 1.0})

    trainer = stock_trainer(tmp_path, rows(), **settings)
    trainer.add_callback(Talkative())
    trainer.train()
    assert trainer.mean_loss == expected.mean_loss


def test_pairs_of_before_are_measured_whenever_those_of_the_run_are(tmp_path):
    """Given to the Trainer, for one phase or two, or to a phase."""
    held_out = rows(15)
    old = rows(6)
    plan = PhasePlan(0, 6, 8, 8, 12, None)
    phase = TrainingPhase(plan, held_out, held_out, default_data_collator)
    for settings in (
        {"old_dataset": old},
        {"phases": [phase], "old_dataset": old},
        {"phases": [replace(phase, old_dataset=old)], "old_dataset": held_out},
    ):
        trainer = stock_trainer(tmp_path, held_out, default_data_collator, given=settings)
        metrics = trainer.measure_all()
        assert (metrics["eval_pairs"], metrics["eval_old_pairs"]) == (15, 6)
        sums, after_batches = trainer.held_out_sums
        assert torch.equal(sums.values, after_batches[-1])
        assert "eval_old_pairs" not in trainer.evaluate(old)


def test_an_evaluation_leaves_torchs_generator_as_it_was(tmp_path):
    """Dropout does not depend on how often a run evaluates, nor on a signal in an evaluation."""
    given = {"old_dataset": rows(6)}
    trainer = stock_trainer(tmp_path, rows(15), default_data_collator, given=given)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), state)
    trainer.stop_request.signal = signal.SIGTERM
    with pytest.raises(Interrupted):
        trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), state)


class Watch(TrainerCallback):
    """Keeps the epochs that it sees, and sends a signal at a step."""

    def __init__(self, signal_at=None):
        self.epochs = []
        self.signal_at = signal_at

    def on_step_end(self, args, state, control, **kwargs):
        self.epochs.append(state.epoch)
        if state.global_step == self.signal_at:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)


def test_callbacks_of_a_users_own_see_the_epochs(tmp_path):
    watch = Watch()
    trainer = stock_trainer(tmp_path, rows(), default_data_collator, {"callbacks": [watch]})
    trainer.train()
    assert watch.epochs == [step / 3 for step in range(1, 7)]


def test_a_training_that_is_stopped_goes_on_in_the_same_process(tmp_path, straight):
    """In a notebook: Ctrl-C, then the next cells; with stock arguments."""
    watch = Watch(signal_at=3)
    trainer = stock_trainer(tmp_path, rows(), default_data_collator, {"callbacks": [watch]})
    message = r"after step [34] of 6; train\(resume_from_checkpoint=True\) resumes the training"
    with pytest.raises(Interrupted, match=message):
        trainer.train()
    assert trainer.evaluate()["eval_pairs"] == 24
    watch.signal_at = None
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6
    assert losses(trainer) == losses(straight)


def test_the_arguments_of_a_script_stay_as_they_are(tmp_path):
    """The next Trainer gets them, with more rows."""
    settings = {"max_steps": -1, "num_train_epochs": 1, "eval_strategy": "epoch"}
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, use_cpu=True, report_to="none", **settings
    )
    given = {name: getattr(args, name) for name in (*settings, "eval_steps")}
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=60))
    for number in (16, 24):
        data = {"train_dataset": rows(number), "eval_dataset": rows(8)}
        trainer = BertTrainer(model, args, default_data_collator, **data)
        trainer.train()
        assert trainer.state.global_step == number // 8
    assert {name: getattr(args, name) for name in given} == given


def test_the_tokenizer_of_a_collator_is_saved(tmp_path, tiny_checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    collator = DataCollatorForLanguageModeling(tokenizer)
    trainer = stock_trainer(tmp_path, rows(), collator)
    trainer.save_model(str(tmp_path / "model"))
    assert AutoTokenizer.from_pretrained(tmp_path / "model").get_vocab() == tokenizer.get_vocab()


def test_metrics_of_rows_without_pairs_are_computed(tmp_path):
    without_pairs = []
    for row in rows():
        del row["next_sentence_label"]
        without_pairs.append(row)
    given = {"compute_metrics": lambda prediction: {"rows": len(prediction.label_ids)}}
    trainer = stock_trainer(tmp_path, without_pairs, default_data_collator, given)
    metrics = trainer.evaluate()
    assert metrics["eval_rows"] == 24
    assert metrics["eval_loss"] > 0


def test_epochs_of_a_plain_data_set_are_counted_in_its_rows_and_pushing_is_left_to_the_user(
    tmp_path, caplog
):
    trainer = stock_trainer(tmp_path, rows(), max_steps=-1, num_train_epochs=2, push_to_hub=True)
    trainer.train()
    assert "nothing is pushed before you call trainer.push_to_hub()" in caplog.text
    assert (trainer.state.global_step, trainer.state.epoch) == (6, 2.0)


def test_strategies_by_epochs_act_at_the_end_of_each(tmp_path):
    """The loader is one pass over the whole run, which stock takes for one epoch."""
    by_epochs = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "load_best_model_at_end": True,
    }
    settings = {"max_steps": -1, "num_train_epochs": 3, **by_epochs}
    trainer = stock_trainer(tmp_path, rows(26), **settings)  # 78 rows are 9 batches of 8
    trainer.train()
    history = trainer.state.log_history
    assert [line["step"] for line in history if "eval_loss" in line] == [3, 6, 9]
    assert [line["step"] for line in history if "mlm_loss" in line] == [3, 6, 9]
    folders = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert folders == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"save_only_model": True}, "save_only_model is True; leave it out: no run could be"),
        ({"ignore_data_skip": True}, "leave it out: a resumed run continues where it stopped"),
        ({"bf16_full_eval": True}, "evaluations have the precision of the training"),
        ({"label_smoothing_factor": 0.1}, "the loss is the model's own, over the global batch"),
    ],
)
def test_stock_settings_that_would_do_something_else_are_refused(tmp_path, setting, reason):
    with pytest.raises(InputError, match=reason):
        stock_trainer(tmp_path, rows(), **setting)


def test_electra_is_for_its_own_trainer(tmp_path):
    """Its losses are means over different tokens, and its generator has a folder of its own."""
    config = pretraining_config("2/32", vocab_size=60, model_type="electra")
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1)
    with pytest.raises(InputError, match="give it to ElectraTrainer"):
        BertTrainer(MEMBERS["electra"](config), args)
    model = MEMBERS["electra"](config)
    with pytest.raises(InputError, match="ElectraTrainer needs a DataCollatorForPreTraining"):
        ElectraTrainer(model, args, train_dataset=rows(), data_collator=default_data_collator)


@pytest.mark.parametrize("is_shifted", [True, False])
def test_labels_that_stock_would_shift_are_refused(tmp_path, is_shifted):
    """The model would learn to repeat what it has read."""
    config = pretraining_config("2/32", vocab_size=60)
    config.is_decoder = True
    dataset = []
    for row in rows(8):
        ids = row["input_ids"]
        labels = [*ids[1:], -100] if is_shifted else ids
        dataset.append({"input_ids": ids, "labels": labels})
    args = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, max_steps=1, save_strategy="no"
    )
    trainer = BertTrainer(MEMBERS["bert_ltr"](config), args, train_dataset=dataset)
    if is_shifted:
        trainer.train()
        return
    with pytest.raises(InputError, match="the label of each position is the next token"):
        trainer.train()


def test_another_loss_function_is_refused(tmp_path):
    given = {"compute_loss_func": lambda *arguments: None}
    with pytest.raises(InputError, match="or override micro_batch_loss"):
        stock_trainer(tmp_path, rows(), given=given)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=60))
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1)
    with pytest.raises(InputError, match="or override micro_batch_loss"):
        BertTrainer(model, args, **given)


def with_given_optimizer(folder, phases=None):
    """A Trainer with an optimizer of its user's, whose second group is ten times slower."""
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=60, dropout=0.0))
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others, "lr": 3e-5}]
    args = PreTrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=8,
        precision="fp32",
        use_cpu=True,
    )
    return BertTrainer(
        model,
        args,
        two_columns,
        train_dataset=rows(),
        phases=phases,
        optimizers=(torch.optim.AdamW(groups, lr=3e-4), None),
    )


def peaks_of(trainer):
    return [group["initial_lr"] for group in trainer.optimizer.param_groups]


def test_a_given_optimizer_has_its_own_rates_after_a_resume_too(tmp_path):
    straight = with_given_optimizer(tmp_path / "a")
    straight.train()
    resumed = with_given_optimizer(tmp_path / "b")
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert peaks_of(straight) == peaks_of(resumed) == [3e-4, 3e-5]
    weights = straight.model.state_dict()
    torch.testing.assert_close(resumed.model.state_dict(), weights, rtol=0, atol=0)


def test_groups_of_different_rates_keep_their_ratio_in_a_phase_with_its_own_rate(tmp_path):
    """The run has a rate of 1e-4, its second phase five times as much."""
    plan = PhasePlan(0, 2, 8, 8, 12, None)
    own_plan = PhasePlan(2, 4, 8, 8, 12, None, own_schedule=(0.0, 5e-4))
    phases = [TrainingPhase(each, rows(), None, two_columns) for each in (plan, own_plan)]
    trainer = with_given_optimizer(tmp_path, phases)
    trainer.train()
    assert trainer.state.global_step == 4
    assert peaks_of(trainer) == pytest.approx([1.5e-3, 1.5e-4])


class TwoWeights(torch.optim.SGD):
    """Trains other weights than those that are measured, as a schedule-free optimizer does."""

    is_training = False

    def train(self):
        self._scale(2.0, is_training=True)

    def eval(self):
        self._scale(0.5, is_training=False)

    def _scale(self, factor, *, is_training):
        if self.is_training != is_training:
            self.is_training = is_training
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.data.mul_(factor)

    def step(self, closure=None):
        assert self.is_training
        return super().step(closure)


def test_a_schedule_free_optimizer_is_measured_and_saved_with_its_means(tmp_path, monkeypatch):
    steps = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    trainer = stock_trainer(tmp_path, rows(), two_columns, max_steps=3, **steps)
    trainer.optimizer = optimizer = TwoWeights(trainer.model.parameters(), lr=1e-3)
    weights = {}
    measure = BertTrainer.measure

    def measure_means(self, batch):
        assert not optimizer.is_training
        word_vectors = self.model.bert.embeddings.word_embeddings.weight
        weights[self.state.global_step] = word_vectors.detach().clone()
        return measure(self, batch)

    monkeypatch.setattr(BertTrainer, "measure", measure_means)
    trainer.train()
    assert len(weights) == 3
    for step in (2, 3):
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        assert torch.equal(saved["bert.embeddings.word_embeddings.weight"], weights[step])
    # A model that is saved without a measurement.
    optimizer.train()
    trainer.save_model(str(tmp_path / "model"))
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(saved["bert.embeddings.word_embeddings.weight"], weights[3])


@pytest.mark.parametrize(
    ("workers", "estimates", "built"), [(1, False, [1]), (0, False, []), (1, True, [])]
)
def test_where_there_are_data_workers_the_next_epoch_is_built_ahead(
    small_store, tmp_path, monkeypatch, workers, estimates, built
):
    epochs = []
    monkeypatch.setattr(PreTrainingDataset, "build_ahead", lambda _, epoch: epochs.append(epoch))
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    config = pretraining_config("tiny", vocab_size=len(tokenizer))
    args = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, max_steps=1000, dataloader_num_workers=workers
    )
    args.estimate = estimates
    trainer = BertTrainer(
        BertForPreTraining(config),
        args,
        DataCollatorForPreTraining(tokenizer),
        train_dataset=PreTrainingDataset.from_store(store, max_seq_length=32),
    )

    next(iter(trainer.get_train_dataloader()))

    assert epochs == built


@pytest.mark.parametrize("selection", ["count", "bernoulli", "fairseq", "ngrams", "spans"])
def test_robertas_random_words_are_no_pads(small_store, tmp_path, selection):
    """It numbers the ids that are no pads: one in a text would shift the positions behind it, in
    stock as well.
    """
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset.from_store(store, pair_label="none", max_seq_length=64)
    settings = {"mlm_probability": 0.5, "mask_rate": 0.0, "keep_rate": 0.0, "random_rate": 1.0}
    collator = DataCollatorForPreTraining(tokenizer, selection=selection, **settings)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1)

    def draws_pad(member, model_type, collator_name):
        config = pretraining_config("tiny", vocab_size=len(tokenizer), model_type=model_type)
        model = MEMBERS[member](config)
        trainer = BertTrainer(
            model, args, train_dataset=dataset, eval_dataset=dataset, data_collator=collator
        )
        batch = getattr(trainer, collator_name)([dataset[index] for index in range(150)])
        words = batch["input_ids"][batch["labels"] != -100].tolist()
        assert len(set(words)) > 0.9 * len(tokenizer)
        return tokenizer.pad_token_id in words

    assert not draws_pad("roberta", "roberta", "data_collator")
    assert not draws_pad("roberta", "roberta", "eval_collator")
    # Google's rule draws from the whole vocabulary; fairseq and SpanBERT leave their first four ids
    # out.
    assert draws_pad("bert_mlm", "bert", "data_collator") == (selection not in ("fairseq", "spans"))


STOCK_SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}
NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}
STOCK_MODELS = {
    "BertForMaskedLM": transformers.BertConfig(**STOCK_SIZES, **NO_DROPOUT),
    "BertForPreTraining": transformers.BertConfig(**STOCK_SIZES, **NO_DROPOUT),
    "AlbertForPreTraining": transformers.AlbertConfig(
        **STOCK_SIZES, **NO_DROPOUT, embedding_size=16
    ),
    # Its loss takes the Trainer's count of the whole step, which those above do not.
    "ModernBertForMaskedLM": transformers.ModernBertConfig(**STOCK_SIZES, pad_token_id=0),
}


def uneven_rows(name):
    """None to five predicted tokens a row; pairs have the label that the stock class reads."""
    pairs = rows(16)
    for index, row in enumerate(pairs):
        num_predicted = index % 6
        row["labels"] = row["input_ids"][:num_predicted] + [-100] * (12 - num_predicted)
        del row["source_line"]
        if name == "AlbertForPreTraining":
            row["sentence_order_label"] = row.pop("next_sentence_label")
        elif name == "ModernBertForMaskedLM":
            del row["token_type_ids"]
    return pairs


def trainer_of_stock(folder, name, batch=16, accumulation=1, kind=None, **settings):
    torch.manual_seed(0)
    model = (kind or getattr(transformers, name))(STOCK_MODELS[name])
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        **{
            "max_steps": 1,
            "logging_steps": 1,
            "use_cpu": True,
            "save_strategy": "no",
            "seed": 3,
            "max_grad_norm": 0.0,
        },
        **settings,
    )
    data = uneven_rows(name)
    return BertTrainer(
        model, args, train_dataset=data, eval_dataset=data, data_collator=default_data_collator
    )


@pytest.mark.parametrize("name", STOCK_MODELS)
def test_a_stock_models_loss_is_that_of_the_global_batch_however_it_is_cut(tmp_path, name):
    logs = []
    for batch, accumulation in ((16, 1), (4, 4), (1, 16)):  # at last some without predictions
        trainer = trainer_of_stock(tmp_path, name, batch, accumulation)
        trainer.train()
        line = trainer.state.log_history[0]
        logs.append((line["loss"], line["grad_norm"]))
    # Stock gives pairs and words as one mean: pairs of rows with few predicted tokens count for
    # less.
    tolerance = 0.02 if name.endswith("PreTraining") else 1e-5
    assert logs[1] == pytest.approx(logs[0], rel=tolerance)
    assert logs[2] == pytest.approx(logs[0], rel=2 * tolerance)


@pytest.mark.parametrize(
    ("name", "member"), [("BertForPreTraining", "bert"), ("AlbertForPreTraining", "albert")]
)
def test_a_stock_model_is_measured_as_ours_is(tmp_path, name, member):
    """With the pairs under the name that the stock class has for their label."""
    stock = trainer_of_stock(tmp_path, name, remove_unused_columns=False)
    ours = trainer_of_stock(tmp_path, name, kind=MEMBERS[member], remove_unused_columns=False)
    ours.model.load_state_dict(stock.model.state_dict())
    metrics, expected = stock.evaluate(), ours.evaluate()
    for task in ("mlm", "nsp"):
        for name in (f"eval_{task}_loss", f"eval_{task}_accuracy"):
            assert metrics[name] == pytest.approx(expected[name], rel=1e-5), name
    assert metrics["eval_pairs"] == expected["eval_pairs"]


class NoGradient(TrainerCallback):
    """Keeps the names of the parameters without a gradient."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.names = [name for name, weight in model.named_parameters() if weight.grad is None]


@pytest.mark.parametrize(
    ("name", "member"), [("BertForPreTraining", "bert"), ("AlbertForPreTraining", "albert")]
)
def test_without_labels_of_pairs_every_parameter_has_a_gradient(tmp_path, name, member):
    """DDP waits for all of them."""
    trainer = trainer_of_stock(tmp_path, name, kind=MEMBERS[member])
    for row in trainer.train_dataset:
        row.pop("next_sentence_label", None)
        row.pop("sentence_order_label", None)
    no_gradient = NoGradient()
    trainer.add_callback(no_gradient)
    trainer.train()
    assert not no_gradient.names


def test_a_stock_model_without_all_its_labels_is_refused_in_one_line(tmp_path):
    trainer = trainer_of_stock(tmp_path, "BertForPreTraining")
    for row in trainer.train_dataset:
        del row["next_sentence_label"]
    with pytest.raises(
        InputError,
        match="gives no loss for these batches; it wants all of labels, next_sentence_label",
    ):
        trainer.train()


def test_the_page_masks_a_table_of_datasets_anew_in_every_epoch(
    repository, small_store, tmp_path, monkeypatch
):
    code = code_of_page(repository, "## From a table of `datasets`")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_tokenizer").symlink_to(small_store / "tokenizer")
    variables: dict = {}
    exec(code.replace("max_steps=20", "max_steps=6, use_cpu=True"), variables)
    trainer = variables["trainer"]
    assert trainer.state.global_step == 6

    # An epoch is one batch of both rows.
    epochs = [predicted_of_rows(batch) for batch in trainer.get_train_dataloader()]
    assert [predicted_of_rows(batch) for batch in trainer.get_train_dataloader()] == epochs
    assert len({str(epoch) for epoch in epochs}) > 1


def predicted_of_rows(batch):
    """The predicted positions and the label of each row, in an order that no shuffle changes."""
    rows = zip(batch["labels"] != -100, batch["next_sentence_label"].tolist(), strict=True)
    return sorted((label, mask.nonzero().flatten().tolist()) for mask, label in rows)


def test_the_page_gives_a_stock_trainer_muon_which_resumes(repository, tmp_path, monkeypatch):
    code = code_of_page(repository, "## Muon in a stock Trainer")
    monkeypatch.chdir(tmp_path)
    variables: dict = {}
    exec(code.replace("max_steps=20", "max_steps=2, save_steps=1, use_cpu=True"), variables)
    trainer = variables["trainer"]
    optimizer = trainer.optimizer.optimizer
    *adam_groups, matrices = optimizer.param_groups
    assert type(optimizer) is Muon
    assert [group["initial_lr"] for group in adam_groups] == [2e-3, 2e-3]
    # Six of each layer, and that of the masked-LM head.
    assert (matrices["initial_lr"], len(matrices["params"])) == (0.01, 13)

    trained = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train(resume_from_checkpoint="runs/mine/checkpoint-1")
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(tensor, trained[name]), name


def test_what_cannot_be_shuffled_and_a_checkpoint_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        stock_trainer(tmp_path, rows()).train(resume_from_checkpoint=True)

    class Stream(IterableDataset):
        def __iter__(self):
            yield from rows()

    with pytest.raises(InputError, match="Stream has no length"):
        stock_trainer(tmp_path, Stream()).train()


def test_the_page_about_the_trainer_goes_from_a_store_to_a_measured_model(
    repository, small_store, tmp_path, monkeypatch
):
    code = code_of_page(repository, "## From a store")
    code = code.replace("max_steps=2000", "max_steps=2, use_cpu=True")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_store").symlink_to(small_store)
    variables: dict = {}
    exec(code.replace("batch_size=64", "batch_size=4"), variables)
    assert type(variables["args"]) is TrainingArguments
    state = variables["trainer"].state
    assert state.global_step == 2
    assert {"eval_mlm_loss", "eval_nsp_accuracy"} <= state.log_history[-1].keys()


def code_of_page(repository, heading):
    text = (repository / "docs" / "trainer.md").read_text(encoding="utf-8")
    code = text.split(heading, 1)[1].split("```python\n")[1].split("```")[0]
    assert len(code.split("\n")) <= 35
    return code


def test_the_page_about_the_trainer_shows_what_runs(repository, tmp_path, monkeypatch):
    code = code_of_page(repository, "# ")
    monkeypatch.chdir(tmp_path)
    variables: dict = {}
    exec(code.replace("max_steps=20", "max_steps=2"), variables)
    trainer = variables["trainer"]
    assert trainer.state.global_step == 2
    # Stock arguments say nothing of a CPU where there is no GPU; the layers are those that recipes
    # have.
    assert variables["model"].bert.fast_kernels == load_kernels("auto", trainer.args.device)
