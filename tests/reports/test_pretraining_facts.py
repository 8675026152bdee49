"""What a report says of the training data and of held-out sentences is what the run trained on and what its model says."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from bert_recipes.arguments import DataArguments, ModelArguments, PreTrainingArguments
from bert_recipes.data.sampler import PreTrainingOrder
from bert_recipes.errors import InputError
from bert_recipes.phases import PhaseArguments, plan_phases
from bert_recipes.pretraining import load_model, load_phases, make_trainer
from bert_recipes.reports import pretraining_facts
from bert_recipes.reports.held_out import look_at_pairs, pieces_as_words
from bert_recipes.reports.pretraining_facts import PairCounts, count_phase, describe_run, gather_pretraining
from bert_recipes.reports.writing import report_run


def train(store, folder, second, **settings):
    """A run of two phases, as recipes/pretrain.py makes it."""
    args = PreTrainingArguments(
        output_dir=str(folder),
        warmup_steps=2,
        logging_steps=5,
        per_device_train_batch_size=4,
        save_strategy="no",
        precision="fp32",
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
        **settings,
    )
    data_args = DataArguments(store=str(store), max_seq_length=32, max_eval_pairs=12)
    phases = plan_phases(args, data_args, PhaseArguments(phase2_max_seq_length=48, **second))
    parts = load_phases(data_args, args.seed, phases)
    model = load_model(ModelArguments(size="tiny"), parts[0].tokenizer, 48, args.seed)
    trainer = make_trainer(model, args, parts, data_args.max_eval_pairs, phases)
    trainer.train()
    return trainer, parts


@pytest.fixture(scope="module")
def trained(small_store, tmp_path_factory):
    """Over more than an epoch."""
    folder = tmp_path_factory.mktemp("run")
    return train(small_store, folder, {"phase2_steps": 10}, max_steps=40, global_train_batch_size=8)


def test_the_counts_are_those_of_the_pairs_that_were_trained_on(trained, monkeypatch):
    monkeypatch.setattr(pretraining_facts, "SAMPLED_PAIRS", 10_000)
    trainer, parts = trained
    for part, data, steps in zip(trainer.phases, parts, (30, 10), strict=True):
        counted = count_phase(trainer, part)
        samples = steps * 8
        assert counted["trained_pairs"] == samples
        keys = PreTrainingOrder(data.train, samples, 3).keys(0, samples)
        # The sample is taken of the last pass over the data alone; all of it where that is the whole run.
        keys = keys[samples - counted["pairs"] :]
        assert counted["sampled_from"] == counted["pairs"]
        pairs = [data.train[key] for key in keys]
        assert counted["tokens"] == sum(len(pair["input_ids"]) for pair in pairs)
        assert counted["random_next"] == sum(pair["next_sentence_label"] for pair in pairs)
        assert counted["next"] + counted["random_next"] == counted["pairs"] == len(pairs)
        batches = [pairs[start : start + 4] for start in range(0, len(pairs), 4)]
        assert counted["positions"] == sum(len(b) * max(len(pair["input_ids"]) for pair in b) for b in batches)
        assert sum(counted["length_counts"]) == len(pairs)
        assert counted["length_edges"][-1] >= counted["max_seq_length"]


@pytest.mark.parametrize(
    ("second", "micro", "accumulation"),
    [({"phase2_per_device_train_batch_size": 2}, 2, 4), ({"phase2_global_train_batch_size": 2}, 2, 1)],
)
def test_phases_have_batches_of_their_own_without_a_global_batch(small_store, tmp_path, second, micro, accumulation):
    trainer, _ = train(
        small_store, tmp_path, {"phase2_steps": 1, **second}, max_steps=3, gradient_accumulation_steps=2
    )
    args = trainer.args
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (micro, accumulation)
    first, last = (count_phase(trainer, part) for part in trainer.phases)
    assert (first["global_batch"], first["micro_batch"], first["trained_pairs"]) == (8, 4, 16)
    batch = micro * accumulation
    assert (last["global_batch"], last["micro_batch"], last["trained_pairs"]) == (batch, micro, batch)
    assert trainer.identity["global batch"] == f"8, then {batch}"
    trainer.is_deepspeed_enabled = True
    with pytest.raises(InputError, match="give --global_train_batch_size 8, --per_device_train_batch_size"):
        trainer._check_batches()


def test_a_sample_lies_over_the_last_pass_and_is_no_larger_than_wanted(trained, monkeypatch):
    trainer, _ = trained
    monkeypatch.setattr(pretraining_facts, "SAMPLED_PAIRS", 16)
    counted = count_phase(trainer, trainer.phases[0])
    assert (counted["pairs"], counted["sampled_batches"], counted["micro_batch"]) == (16, 4, 4)
    assert counted["steps"] == [0, 30]


@pytest.mark.parametrize("epochs", [0.4, 1.0, 1.7, 4.2])
def test_only_tables_of_the_last_two_epochs_are_asked_for(epochs):
    """Those before were deleted during the run, and are costly to build."""

    class Dataset:
        def num_pairs(self, epoch):
            return 1000 + epoch

    samples, dataset = int(epochs * 1000), Dataset()
    last = pretraining_facts._last_epoch(dataset, samples)
    order = PreTrainingOrder(dataset, samples, 1)
    found = list(pretraining_facts._sampled_batches(samples, dataset.num_pairs(last), 7))
    assert found == sorted(found)
    asked = {epoch for begin in found for epoch, _ in order.keys(begin, begin + 7)}
    assert asked <= {last - 1, last}
    assert all(begin + 7 <= samples for begin in found)


def test_lengths_and_masks_are_counted_as_the_batch_has_them():
    counts = PairCounts(8, mask_id=4)
    batch = {
        "input_ids": torch.tensor([[2, 4, 9, 3, 0], [2, 7, 8, 6, 3]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        "labels": torch.tensor([[-100, 5, 9, -100, -100], [-100, 6, -100, -100, -100]]),
        "next_sentence_label": torch.tensor([1, 0]),
    }
    counts.add(batch)
    found = counts.as_json()
    # [MASK] for 5; 9 left as it is; 7 in the place of 6.
    assert (found["predicted"], found["masked"], found["kept"]) == (3, 1, 1)
    assert (found["positions"], found["tokens"]) == (10, 9)
    assert (found["next"], found["random_next"]) == (1, 1)
    edges = np.array(found["length_edges"])
    assert found["length_counts"][int(np.searchsorted(edges, 4)) - 1] == 1
    assert found["length_counts"][int(np.searchsorted(edges, 5)) - 1] == 1


def test_guesses_and_verdicts_are_the_models(trained):
    trainer, parts = trained
    tokenizer, model = parts[0].tokenizer, trainer.model
    features = [trainer.eval_dataset[(0, index)] for index in range(16)]
    batch = trainer.eval_collator(features)
    found = look_at_pairs(model, tokenizer, batch)
    assert found["pairs"] == 16
    assert len(found["masks"]) == 8
    model.eval()
    with torch.no_grad():
        output = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
        )
    seen = 0
    for row in range(16):
        hidden = (batch["input_ids"][row] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
        if not hidden or seen == len(found["masks"]):
            continue
        mask, place = found["masks"][seen], hidden[len(hidden) // 2]
        seen += 1
        shares = output.prediction_logits[row, place].softmax(-1)
        truth = int(batch["labels"][row, place])
        assert mask["truth"] == tokenizer.convert_ids_to_tokens(truth)
        assert mask["probability"] == pytest.approx(shares[truth].item(), rel=1e-3)
        assert mask["rank"] == int((shares > shares[truth]).sum()) + 1
        pieces = tokenizer.convert_ids_to_tokens(shares.topk(5).indices.tolist())
        assert [piece for piece, _ in mask["guesses"]] == pieces
        around = [mask["before"].removeprefix("... "), mask["after"].removesuffix(" ...")]
        whole = tokenizer.convert_ids_to_tokens(batch["input_ids"][row].tolist())
        first = max(number for number in range(place) if whole[number] in ("[CLS]", "[SEP]")) + 1
        assert pieces_as_words(whole[first:place]).endswith(around[0])
        assert pieces_as_words(whole[place + 1 :]).startswith(around[1])
    assert seen == 8
    shares = output.seq_relationship_logits.softmax(-1)[:, 0].tolist()
    labels = [feature["next_sentence_label"] for feature in features]
    rows = sorted(row for wanted in (0, 1) for row in [r for r in range(16) if labels[r] == wanted][:4])
    second = features[rows[0]]["input_ids"][features[rows[0]]["token_type_ids"] == 1][:-1].tolist()
    assert found["verdicts"][0]["second"] == pieces_as_words(tokenizer.convert_ids_to_tokens(second))  # before masking
    assert [verdict["truth"] for verdict in found["verdicts"]] == [labels[row] == 0 for row in rows]
    assert [verdict["is_next"] for verdict in found["verdicts"]] == pytest.approx(
        [shares[row] for row in rows], rel=1e-3
    )


def test_the_text_around_a_mask_is_that_of_its_own_sentence(trained):
    trainer, parts = trained
    tokenizer = parts[0].tokenizer
    ids = [tokenizer.cls_token_id, *range(10, 50), tokenizer.sep_token_id, 60, 4, 61, tokenizer.sep_token_id]
    types, place = [0] * 42 + [1] * 4, 20
    labels = [-100] * len(ids)
    labels[place], ids[place] = 30, tokenizer.mask_token_id
    batch = {
        "input_ids": torch.tensor([ids]),
        "token_type_ids": torch.tensor([types]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.int64),
        "labels": torch.tensor([labels]),
    }
    (mask,) = look_at_pairs(trainer.model, tokenizer, batch)["masks"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert mask["before"] == pieces_as_words(pieces[1:place])
    assert mask["after"] == pieces_as_words(pieces[place + 1 : 41])
    assert pieces_as_words(["play", "##ing", "##s", "on"]) == "playings on"


def test_everything_is_json_and_a_report_follows(trained, tmp_path):
    trainer, parts = trained
    results = trainer.evaluate()
    (tmp_path / "all_results.json").write_text(json.dumps(results))
    gather = partial(gather_pretraining, trainer, parts[0], results, describe_run(trainer, parts[0]))
    names = {path.name for path in report_run(tmp_path, gather, is_main=True)}
    assert names == {"report.md", "report.html", "losses.png", "report.json"}
    facts = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert [phase["steps"] for phase in facts["phases"]] == [[0, 30], [30, 40]]
    assert facts["identity"].keys() == {"store", "tokenizer"}
    assert facts["corpus"]["training"]["documents"] == 40
    assert "Phase 2, steps 30 to 40: counted over" in (tmp_path / "report.md").read_text()


def test_other_processes_take_part_and_write_nothing(trained, tmp_path):
    trainer, parts = trained
    gather = partial(gather_pretraining, trainer, parts[0], {}, {})
    assert report_run(tmp_path, gather, is_main=False) == []
    assert not list(tmp_path.iterdir())
