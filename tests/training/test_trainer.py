"""What the base of both Trainers refuses, and how it counts a step; what it does is in
tests/invariants.
"""

import pytest
import torch
from accelerate.utils import DeepSpeedPlugin
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    StateDictType,
)

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.training import trainer as base_trainer
from bert_recipes.training.arguments import PreTrainingArguments
from bert_recipes.training.engines import complete_engine
from bert_recipes.training.speed import BatchStats
from bert_recipes.training.trainer import RecipeTrainer


@pytest.fixture
def open_trainer(tmp_path, monkeypatch):
    """A Trainer as an engine's launch makes it. Args of what it returns: settings of the launcher,
    the class, and settings of the run.
    """

    def open_it(environment, trainer_class=RecipeTrainer, **settings):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        args = PreTrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, max_steps=1, precision="fp32"
        )
        for name, value in settings.items():
            setattr(args, name, value)
        return trainer_class(BertForPreTraining(pretraining_config("tiny", vocab_size=50)), args)

    return open_it


def test_fsdp1_and_half_precision_are_refused(open_trainer):
    with pytest.raises(InputError, match=r"^fsdp_version is 1; allowed: 2"):
        open_trainer({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"})
    with pytest.raises(
        InputError, match=r"^precision is 'fp16'; allowed under DeepSpeed and FSDP: bf16, fp32"
    ):
        open_trainer({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, fp16=True)


@pytest.mark.parametrize("section", ["optimizer", "scheduler"])
def test_deepspeed_with_an_optimizer_or_a_schedule_of_its_own_is_refused(open_trainer, section):
    pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    plugin = DeepSpeedPlugin(
        hf_ds_config={"zero_optimization": {"stage": 2}, section: {"type": "AdamW"}}
    )
    with pytest.raises(
        InputError, match=rf"section '{section}'; take it out: --optimizer and --schedule decide"
    ):
        open_trainer({}, deepspeed_plugin=plugin)


def test_weights_are_written_whole_whatever_the_launcher_says(open_trainer):
    """With Accelerate's own defaults a finished run would have no model."""
    environment = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    environment["FSDP_STATE_DICT_TYPE"] = "SHARDED_STATE_DICT"
    plugin = open_trainer(environment).accelerator.state.fsdp_plugin
    assert plugin.state_dict_type == StateDictType.FULL_STATE_DICT
    assert isinstance(plugin.state_dict_config, FullStateDictConfig)
    # What a resume asks for.
    assert isinstance(plugin.optim_state_dict_config, FullOptimStateDictConfig)
    assert plugin.optim_state_dict_config.rank0_only


def test_weights_of_zero_3_are_gathered_whatever_its_file_says(tmp_path):
    pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    plugin = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 3}})
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, precision="fp32")
    complete_engine(args, {"deepspeed_plugin": plugin})
    zero = plugin.deepspeed_config["zero_optimization"]
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True


def test_each_training_by_the_clock_begins_at_0(open_trainer):
    """A step has the fraction of the step before; the first one of a training has its own."""
    trainer = open_trainer({})
    counts = torch.ones(3, dtype=torch.float64)
    fractions = []
    for elapsed in (0.25, 1.0, None, 0.125):
        if elapsed is None:
            trainer._start_from(None)
            continue
        _, fraction = trainer._share_counts(counts, elapsed, torch.device("cpu"))
        fractions.append(fraction)
    assert fractions == [0.25, 0.25, 0.125]


def test_the_tokens_of_a_step_are_counted_by_one_thread(open_trainer):
    num_threads = []

    class CountingTrainer(RecipeTrainer):
        def num_items(self, batch):
            num_threads.append(torch.get_num_threads())
            return batch["input_ids"].new_tensor([5])

    trainer = open_trainer({}, trainer_class=CountingTrainer)
    num_threads_before = torch.get_num_threads()
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.int64)}
    _, items = trainer.get_batch_samples(iter([batch, batch]), 2, torch.device("cpu"))
    assert items.tolist() == [10.0]
    assert num_threads == [1, 1]
    assert torch.get_num_threads() == num_threads_before


def test_batches_that_stay_on_the_cpu_are_not_pinned(open_trainer):
    loader = open_trainer({}).train_loader(lambda *_: [], num_samples=8, dataset=[])
    assert not loader.pin_memory


def test_a_machine_that_was_busy_while_it_was_measured_is_measured_again(open_trainer, monkeypatch):
    measured = iter([10.0, 100.0])
    monkeypatch.setattr(base_trainer, "best_rate", lambda *_: next(measured))

    class TimedTrainer(RecipeTrainer):
        def flops_of(self, work):
            return work.tokens

    trainer = open_trainer({}, trainer_class=TimedTrainer)
    mfus = []
    for flops_per_second in (5, 20, 30):
        trainer.meter.interval = BatchStats(flops_per_second, 0, 1), 1.0, 1
        mfus.append(trainer.mfu_and_hours_left()["mfu"])
    assert mfus == [0.5, 0.2, 0.3]
