import math

import numpy as np
import pytest
import torch

from bert_recipes.data.collator import DataCollatorForPreTraining
from bert_recipes.data.dataset import PreTrainingDataset
from bert_recipes.data.store import open_store
from bert_recipes.evaluation import EvaluationSampler, PreTrainingSums, unigram_log_probs
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import pretraining_config
from bert_recipes.tokenization import load_tokenizer


class Pairs:
    def __init__(self, number):
        self.number = number

    def num_pairs(self, epoch):
        return self.number


@pytest.mark.parametrize(
    ("pairs", "limit", "batch", "world"), [(100, 75, 8, 2), (10, 99, 4, 3), (3, 3, 2, 4), (8, 8, 8, 1)]
)
def test_each_held_out_pair_is_counted_once_and_processes_have_equally_many_batches(pairs, limit, batch, world):
    samplers = [EvaluationSampler(Pairs(pairs), limit, batch, rank, world) for rank in range(world)]
    assert len({len(sampler) for sampler in samplers}) == 1
    counted = []
    for sampler in samplers:
        for keys, is_filler in zip(sampler, sampler.is_filler, strict=True):
            assert 1 <= len(keys) <= batch
            counted += [] if is_filler else [index for _, index in keys]
    assert len(counted) == len(set(counted)) == min(pairs, limit)


def test_unigram_yardstick_is_the_add_one_cross_entropy():
    counts = np.array([0, 3, 5, 0, 92])
    log_probs = unigram_log_probs(counts)
    assert log_probs.exp().sum().item() == pytest.approx(1.0)
    assert log_probs.tolist() == pytest.approx([math.log((c + 1) / 105) for c in counts.tolist()])


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


def test_without_next_sentence_labels_only_the_masked_part_is_reported(small_store):
    store = open_store(small_store)
    tokenizer = load_tokenizer(store.tokenizer_path)
    dataset = PreTrainingDataset(store.validation, cls_id=2, sep_id=3, store_fingerprint=store.fingerprint)
    features = [{k: v for k, v in dataset[i].items() if k != "next_sentence_label"} for i in range(4)]
    batch = DataCollatorForPreTraining(tokenizer)(features)
    model = BertForPreTraining(pretraining_config("tiny", vocab_size=len(tokenizer))).eval()
    sums = PreTrainingSums(torch.device("cpu"))
    with torch.no_grad():
        sums.add(model(**batch, return_full_logits=False), batch)
    metrics = sums.metrics()
    assert "eval_nsp_loss" not in metrics
    assert "eval_unigram_loss" not in metrics
    assert metrics["eval_loss"] == metrics["eval_mlm_loss"]
