"""Model FLOPs beside PyTorch's own counter."""

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig

from bert_recipes.flops import Work, forward_flops, training_flops
from bert_recipes.models.bert import BertForPreTraining


CONFIG = BertConfig(
    vocab_size=97,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=80,
    max_position_embeddings=64,
    attn_implementation="eager",
)


@pytest.fixture(scope="module")
def counted() -> tuple[int, int]:
    """FLOPs of the forward pass and of both passes of 4 x 24 tokens without pads, 5 of them predicted, as PyTorch counts."""
    model = BertForPreTraining(CONFIG)
    model.set_attn_implementation("eager")
    ids = torch.randint(5, CONFIG.vocab_size, (4, 24))
    labels = torch.full_like(ids, -100)
    labels.view(-1)[[0, 7, 30, 50, 95]] = 9
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    batch |= {"labels": labels, "next_sentence_label": torch.tensor([0, 1, 1, 0])}
    with FlopCounterMode(display=False) as forward:
        output = model(**batch)
    with FlopCounterMode(display=False) as backward:
        output.loss.backward()
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


def test_the_forward_pass_has_the_flops_that_pytorch_counts(counted: tuple[int, int]):
    work = Work(tokens=4 * 24, squares=4 * 24**2, sequences=4, masked=5)
    assert forward_flops(CONFIG, work) == counted[0]


def test_both_passes_have_the_flops_that_pytorch_counts(counted: tuple[int, int]):
    work = Work(tokens=4 * 24, squares=4 * 24**2, sequences=4, masked=5)
    assert training_flops(CONFIG, work) == counted[1]


@pytest.mark.parametrize(("name", "pooler"), [("SequenceClassification", True), ("TokenClassification", False)])
def test_a_model_of_a_task_has_them_too_but_for_its_own_small_head(name: str, pooler: bool):
    model = getattr(transformers, f"BertFor{name}")(CONFIG).eval()
    model.set_attn_implementation("eager")
    ids = torch.randint(5, CONFIG.vocab_size, (4, 24))
    with FlopCounterMode(display=False) as counted:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    head = 2 * CONFIG.hidden_size * CONFIG.num_labels * (4 if pooler else 4 * 24)
    assert (model.base_model.pooler is not None) is pooler
    work = Work(tokens=4 * 24, squares=4 * 24**2, sequences=4)
    assert forward_flops(CONFIG, work, nsp=False, pooler=pooler) + head == counted.get_total_flops()


def test_a_hand_count_of_base():
    # 12 layers, H 768, I 3072, one sequence of 128 tokens, 20 predicted of 30,522.
    config = BertConfig()
    products = 4 * 2 * 128 * 768 * 768 + 2 * 2 * 128 * 768 * 3072 + 2 * 2 * 128 * 128 * 768
    heads = 20 * (2 * 768 * 768 + 2 * 768 * 30522) + 2 * 768 * 768 + 2 * 768 * 2
    work = Work(tokens=128, squares=128**2, sequences=1, masked=20)
    assert forward_flops(config, work) == 12 * products + heads
