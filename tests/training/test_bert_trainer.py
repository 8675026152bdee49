"""BertTrainer: exact evaluation, and stock arguments, data sets and collators."""

import math

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import Dataset, IterableDataset
from transformers import TrainingArguments, default_data_collator

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.kernels.loading import load_kernels
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization.loading import load_tokenizer
from bert_recipes.training.bert_trainer import (
    BertTrainer,
    EvaluationSampler,
    PreTrainingSums,
    epoched,
    unigram_log_probs,
)


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
    most = -(-min(pairs, limit) // world)  # of one process
    assert [len(sampler) for sampler in samplers] == [-(-most // batch)] * world
    assert all(len(list(sampler)) == len(sampler) for sampler in samplers)
    counted = []
    for sampler in samplers:
        for keys, is_padding_batch in zip(sampler, sampler.is_padding_batch, strict=True):
            assert 1 <= len(keys) <= batch
            counted += [] if is_padding_batch else [index for _, index in keys]
    assert len(counted) == len(set(counted)) == min(pairs, limit)


def test_metrics_are_those_of_all_pairs_together_whatever_the_batches(small_store):
    """Against one plain computation with full logits over all rows."""
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(
        store.validation, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint, max_seq_length=32
    )
    collator = DataCollatorForPreTraining(tokenizer)
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).eval()
    features = [dataset[index] for index in range(23)]
    sums = PreTrainingSums(torch.device("cpu"), unigram_log_probs(store.train.unigram_counts))
    with torch.no_grad():
        for start in range(0, 23, 5):
            batch = collator(features[start : start + 5])
            sums.add(model(**batch, return_full_logits=False), batch)
        batch = collator(features)
        full = model(**batch)
    metrics = sums.metrics()
    chosen = batch["labels"] != -100
    targets = batch["labels"][chosen]
    counts = store.train.unigram_counts
    unigram = -np.log((counts[targets.numpy()] + 1) / (counts.sum() + len(counts))).mean()
    labels = batch["next_sentence_label"]
    assert metrics["eval_mlm_loss"] == pytest.approx(full.mlm_loss.item(), rel=1e-5)
    assert metrics["eval_nsp_loss"] == pytest.approx(full.nsp_loss.item(), rel=1e-5)
    assert metrics["eval_loss"] == pytest.approx(full.loss.item(), rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(full.mlm_loss.item()), rel=1e-4)
    right = (full.prediction_logits[chosen].argmax(-1) == targets).float().mean().item()
    assert metrics["eval_mlm_accuracy"] == pytest.approx(right)
    assert metrics["eval_unigram_loss"] == pytest.approx(unigram)
    nsp_right = (full.seq_relationship_logits.argmax(-1) == labels).float().mean().item()
    assert metrics["eval_nsp_accuracy"] == pytest.approx(nsp_right)
    share = labels.float().mean().item()
    assert metrics["eval_majority_accuracy"] == pytest.approx(max(share, 1 - share))
    assert metrics["eval_pairs"] == 23
    assert metrics["eval_masked_tokens"] == len(targets)


def test_an_evaluation_leaves_its_losses_without_one_batch_after_the_other(tmp_path):
    """Five batches of three pairs, each left out once: the losses are those of an evaluation over
    the other pairs.
    """
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=64))
    held_out = rows(15)

    def evaluate(pairs, size):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_eval_batch_size=size,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = BertTrainer(
            model, arguments, own_collator, train_dataset=held_out, eval_dataset=pairs
        )
        results = trainer.measure_all()
        return results, results["jackknife"]

    metrics, replicates = evaluate(held_out, 3)
    assert {*replicates} == {"loss", "mlm_loss", "nsp_loss"}
    batches = [
        [held_out[index] for _, index in keys]
        for keys in EvaluationSampler(epoched(held_out), None, 3, 0, 1)
    ]
    for name, values in replicates.items():
        expected = []
        for number in range(5):
            kept = [row for other, batch in enumerate(batches) if other != number for row in batch]
            expected.append(evaluate(kept, 12)[0][f"eval_{name}"])
        assert sorted(values) == pytest.approx(sorted(expected), abs=1e-5)
        assert min(values) < metrics[f"eval_{name}"] < max(values)


@pytest.mark.parametrize(("random", "majority"), [(30.0, 0.75), (10.0, 0.75), (20.0, 0.5)])
def test_the_majority_is_the_more_frequent_label_and_perplexity_that_of_the_masked_part(
    random, majority
):
    sums = PreTrainingSums(torch.device("cpu"))
    parts = {"mlm_loss": 50.0, "masked": 20.0, "nsp_loss": 8.0, "pairs": 40.0, "random": random}
    sums.values = torch.tensor([parts.get(name, 0.0) for name in sums.NAMES], dtype=torch.float64)
    metrics = sums.metrics()
    assert metrics["eval_majority_accuracy"] == majority
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(2.5))
    assert metrics["eval_loss"] == pytest.approx(2.5 + 0.2)


@pytest.mark.parametrize("pairs_task", ["nsp", "sop"])
def test_the_loss_of_the_sentence_task_is_a_mean_over_labelled_rows_whatever_the_batches(
    pairs_task,
):
    """Batches with 5, 1, 0 and 4 labelled rows of 5 count by those, as in one computation over all
    rows.
    """
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=64)).eval()
    model.cls.seq_relationship.weight.data *= 40  # so that rows have different losses
    batch = default_data_collator(rows(20))
    labels = batch["next_sentence_label"]
    labels[[6, 7, 8, 9, 10, 11, 12, 13, 14, 17]] = -100
    sums = PreTrainingSums(torch.device("cpu"))
    with torch.no_grad():
        for start in range(0, 20, 5):
            part = {
                name: values[start : start + 5]
                for name, values in batch.items()
                if name != "source_line"
            }
            sums.add(model(**part, return_full_logits=False), part)
        logits = model(
            batch["input_ids"], token_type_ids=batch["token_type_ids"]
        ).seq_relationship_logits
    is_labelled = labels >= 0
    losses = torch.nn.functional.cross_entropy(
        logits[is_labelled], labels[is_labelled], reduction="none"
    )
    assert losses.std() > 0.05
    metrics = sums.metrics("eval", pairs_task)
    assert metrics["eval_pairs"] == 10
    assert metrics[f"eval_{pairs_task}_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    right = (logits.argmax(-1) == labels)[is_labelled].float().mean().item()
    assert metrics[f"eval_{pairs_task}_accuracy"] == pytest.approx(right)
    share = labels[is_labelled].float().mean().item()
    assert metrics["eval_majority_accuracy"] == pytest.approx(max(share, 1 - share))


def test_without_next_sentence_labels_only_the_masked_part_is_reported(small_store):
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(
        store.validation, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint
    )
    features = [
        {k: v for k, v in dataset[i].items() if k != "next_sentence_label"} for i in range(4)
    ]
    batch = DataCollatorForPreTraining(tokenizer)(features)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).eval()
    sums = PreTrainingSums(torch.device("cpu"))
    with torch.no_grad():
        sums.add(model(**batch, return_full_logits=False), batch)
    metrics = sums.metrics()
    assert "eval_nsp_loss" not in metrics
    assert "eval_unigram_loss" not in metrics
    assert metrics["eval_loss"] == metrics["eval_mlm_loss"]


# With nothing of ours but the model and the Trainer


def rows(number=24):
    """Masked pairs as anybody may have them: plain lists, one column that the model does not
    know.
    """
    rng = np.random.default_rng(5)
    made = []
    for index in range(number):
        ids = rng.integers(5, 60, 12).tolist()
        labels = [-100] * 12
        labels[3], ids[3] = ids[3], 4
        made.append(
            {
                "input_ids": ids,
                "labels": labels,
                "attention_mask": [1] * 12,
                "next_sentence_label": index % 2,
            }
        )
        made[-1] |= {"token_type_ids": [0] * 6 + [1] * 6, "source_line": index}
    return made


class TorchRows(Dataset):
    def __len__(self):
        return len(rows())

    def __getitem__(self, index):
        return rows()[index]


def as_datasets():
    return pytest.importorskip("datasets").Dataset.from_list(rows())


def own_collator(features):
    names = ("input_ids", "labels", "next_sentence_label")
    return {name: torch.tensor([feature[name] for feature in features]) for name in names}


def stock_trainer(folder, dataset, collator=None, **settings):
    torch.manual_seed(0)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=60, dropout=0.0))
    defaults = {
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "logging_steps": 1,
    }
    defaults |= {"use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "seed": 3}
    args = TrainingArguments(output_dir=str(folder), **(defaults | settings))
    return BertTrainer(
        model, args, train_dataset=dataset, eval_dataset=dataset, data_collator=collator
    )


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("collator", [None, default_data_collator])
@pytest.mark.parametrize("make", [rows, TorchRows, as_datasets])
def test_stock_arguments_any_data_set_and_any_collator_train_alike(tmp_path, make, collator):
    expected = stock_trainer(tmp_path, rows(), default_data_collator)
    expected.train()
    trainer = stock_trainer(tmp_path, make(), collator)
    trainer.train()
    assert losses(trainer) == losses(expected)
    assert len(losses(trainer)) == 6
    assert trainer.state.log_history[1].keys() >= {
        "mlm_loss",
        "nsp_loss",
        "tokens_per_second",
        "learning_rate",
    }
    metrics = trainer.evaluate()
    assert metrics["eval_pairs"] == metrics["eval_masked_tokens"] == 24
    assert metrics["eval_loss"] == pytest.approx(
        trainer.predict(make()).metrics["test_loss"], rel=1e-5
    )


def test_the_split_of_the_batch_does_not_matter_with_stock_arguments_either(tmp_path):
    complete = stock_trainer(tmp_path, rows())
    complete.train()
    parts = stock_trainer(
        tmp_path, rows(), per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    parts.train()
    assert losses(parts)[0] == pytest.approx(losses(complete)[0], rel=1e-6)
    assert losses(parts) == pytest.approx(
        losses(complete), rel=1e-3
    )  # Adam's first steps divide by tiny numbers


def test_a_collator_without_masks_and_types_is_enough_and_metrics_may_be_ones_own(tmp_path):
    trainer = stock_trainer(
        tmp_path, rows(), own_collator, remove_unused_columns=False, max_steps=2
    )
    trainer.train()
    assert all(math.isfinite(loss) for loss in losses(trainer))
    assert trainer.evaluate()["eval_pairs"] == 24
    trainer.compute_metrics = lambda prediction: {
        "rows": len(prediction.label_ids[0])
    }  # as stock does it
    assert trainer.evaluate()["eval_rows"] == 24


def test_a_run_with_stock_arguments_is_resumed_bit_for_bit(tmp_path):
    straight = stock_trainer(tmp_path / "a", rows())
    straight.train()
    saving = {"save_strategy": "steps", "save_steps": 4}
    stock_trainer(tmp_path / "b", rows(), **saving).train()
    resumed = stock_trainer(tmp_path / "b", rows(), **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-4"))
    assert losses(resumed) == losses(straight)
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    again = stock_trainer(tmp_path / "b", rows(), **saving)
    again.train(resume_from_checkpoint=True)  # the newest one, of step 6
    assert again.steps_done == 6


def test_epochs_of_a_plain_data_set_are_counted_in_its_rows_and_pushing_is_left_to_the_user(
    tmp_path, caplog
):
    trainer = stock_trainer(tmp_path, rows(), max_steps=-1, num_train_epochs=2, push_to_hub=True)
    trainer.train()
    assert "nothing is pushed before you call trainer.push_to_hub()" in caplog.text
    assert (trainer.state.global_step, trainer.state.epoch) == (6, 2.0)


@pytest.mark.parametrize("selection", ["count", "bernoulli", "fairseq", "ngrams", "spans"])
def test_robertas_random_words_are_no_pads(small_store, tmp_path, selection):
    """It numbers the ids that are no pads: one in a text would shift the positions behind it, in
    stock as well.
    """
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    ids = {"cls_id": 2, "sep_id": 3, "store_fingerprint": store.fingerprint, "max_seq_length": 64}
    dataset = PreTrainingDataset(store.train, pair_label="none", **ids)
    settings = {"mlm_probability": 0.5, "mask_rate": 0.0, "keep_rate": 0.0, "random_rate": 1.0}
    collator = DataCollatorForPreTraining(tokenizer, selection=selection, **settings)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1)
    found = {}
    for member in ("roberta", "bert_mlm"):
        model_type = member.partition("_")[0]
        model = MEMBERS[member](
            pretraining_config("tiny", vocab_size=len(tokenizer), model_type=model_type)
        )
        trainer = BertTrainer(
            model, args, train_dataset=dataset, eval_dataset=dataset, data_collator=collator
        )
        for name in ("data_collator", "eval_collator"):
            batch = getattr(trainer, name)([dataset[index] for index in range(150)])
            shown = batch["input_ids"][batch["labels"] != -100]
            assert len(set(shown.tolist())) > 0.9 * len(tokenizer)
            found[member, name] = bool((shown == tokenizer.pad_token_id).any())
    # Google's rule draws from the whole vocabulary; fairseq and SpanBERT leave their first four ids
    # out.
    draws_pad = selection not in ("fairseq", "spans")
    assert set(found.values()) == {False, draws_pad}
    assert not found["roberta", "data_collator"]
    assert not found["roberta", "eval_collator"]


STOCK_SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
STOCK_SIZES |= {"intermediate_size": 64, "max_position_embeddings": 32}
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
    """One to six predicted tokens a row; pairs have the label that the stock class reads."""
    made = []
    for index, row in enumerate(rows(16)):
        row["labels"] = [
            token if place <= index % 6 else -100 for place, token in enumerate(row["input_ids"])
        ]
        del row["source_line"]
        if name == "AlbertForPreTraining":
            row["sentence_order_label"] = row.pop("next_sentence_label")
        elif name == "ModernBertForMaskedLM":
            del row["token_type_ids"]
        made.append(row)
    return made


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
    found = {}
    for batch, accumulation in ((16, 1), (4, 4), (1, 16)):
        trainer = trainer_of_stock(tmp_path, name, batch, accumulation)
        trainer.train()
        line = trainer.state.log_history[0]
        found[batch] = line["loss"], line["grad_norm"]
    # Stock gives pairs and words as one mean: pairs of rows with few predicted tokens count for
    # less.
    tolerance = 0.02 if name.endswith("PreTraining") else 1e-5
    assert found[4] == pytest.approx(found[16], rel=tolerance)
    assert found[1] == pytest.approx(found[16], rel=3 * tolerance)


@pytest.mark.parametrize(
    ("name", "member"), [("BertForPreTraining", "bert"), ("AlbertForPreTraining", "albert")]
)
def test_a_stock_model_is_measured_as_ours_is(tmp_path, name, member):
    """With the pairs under the name that the stock class has for their label."""
    stock = trainer_of_stock(tmp_path, name, remove_unused_columns=False)
    ours = trainer_of_stock(tmp_path, name, kind=MEMBERS[member], remove_unused_columns=False)
    ours.model.load_state_dict(stock.model.state_dict())
    found, expected = stock.evaluate(), ours.evaluate()
    names = {
        "mlm_loss",
        "mlm_accuracy",
        "nsp_loss",
        "nsp_accuracy",
        "pairs",
        "masked_tokens",
        "loss",
    }
    for each in names:
        assert found[f"eval_{each}"] == pytest.approx(expected[f"eval_{each}"], rel=1e-5), each


def test_alberts_pairs_count_under_stocks_name_too(tmp_path):
    """AlbertForPreTraining of transformers: 0 = in order, 1 = swapped, as ours."""
    losses_of_pairs = []
    for label in ("sentence_order_label", "next_sentence_label"):
        trainer = trainer_of_stock(
            tmp_path, "AlbertForPreTraining", kind=MEMBERS["albert"], remove_unused_columns=False
        )
        for row in trainer.train_dataset:
            row[label] = row.pop("sentence_order_label")
        trainer.train()
        losses_of_pairs.append(trainer.state.log_history[0]["nsp_loss"])
    assert losses_of_pairs[0] == losses_of_pairs[1] > 0


def test_a_stock_model_without_all_its_labels_is_refused_in_one_line(tmp_path):
    trainer = trainer_of_stock(tmp_path, "BertForPreTraining")
    for row in trainer.train_dataset:
        del row["next_sentence_label"]
    with pytest.raises(
        InputError,
        match="gives no loss for these batches; it wants all of labels, next_sentence_label",
    ):
        trainer.train()


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
    text = (repository / "docs" / "trainer.md").read_text(encoding="utf-8")
    code = text.split("## From a store")[1].split("```python\n")[1].split("```")[0]
    statements = [
        line for line in code.splitlines() if line and not line.startswith(("from ", "import "))
    ]
    assert len(statements) <= 12
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_store").symlink_to(small_store)
    found: dict = {}
    exec(
        code.replace("max_steps=2000", "max_steps=2, use_cpu=True").replace(
            "batch_size=64", "batch_size=4"
        ),
        found,
    )
    assert type(found["args"]) is TrainingArguments
    history = found["trainer"].state.log_history
    assert found["trainer"].state.global_step == 2
    assert {"eval_mlm_loss", "eval_nsp_accuracy"} <= history[-1].keys()


def test_the_page_about_the_trainer_shows_what_runs(repository, tmp_path, monkeypatch):
    text = (repository / "docs" / "trainer.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(code.replace("max_steps=20", "max_steps=2"), found)
    assert found["trainer"].state.global_step == 2
    # Stock arguments say nothing of a CPU where there is no GPU; the layers are those that recipes
    # have.
    assert found["model"].bert.fast_kernels == load_kernels("auto", found["trainer"].args.device)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
