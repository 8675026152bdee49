"""Small models and ragged batches, and one step on them."""

import torch
from transformers import BertConfig

from bert_recipes.models import bert_model
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.packed_encoder import encode_packed
from bert_recipes.models.padding_free import make_packing


VOCAB = 211
LENGTHS = {
    "ragged": [40, 33, 7, 1, 25, 39],
    "full_rows": [24, 24, 24],
    "one_token": [1],
    "one_long": [40, 2, 2],
    "single_row": [17],
}


def make_model(cls=BertForPreTraining, hidden_act="gelu_new", dropout=0.0, **changes):
    torch.manual_seed(0)
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 100,
        "max_position_embeddings": 64,
        "hidden_act": hidden_act,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "initializer_range": 0.2,
    }
    return cls(BertConfig(**(settings | changes))).train()


def make_batch(lengths, seed=0, masked=0.2):
    generator = torch.Generator().manual_seed(seed)
    size = max(lengths)
    mask = (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(1, VOCAB, mask.shape, generator=generator) * mask
    is_masked = (torch.rand(mask.shape, generator=generator) < masked) & (mask == 1)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, mask.shape, generator=generator) * mask,
        "labels": torch.where(is_masked, ids, -100),
        "next_sentence_label": torch.randint(0, 2, (len(lengths),), generator=generator),
    }


def encoder_inputs(batch):
    """What an encoder takes of a batch."""
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}


def with_packing(batch):
    """The batch as a collator makes it for a GPU."""
    return batch | {"packing": make_packing(batch["attention_mask"], batch["labels"])}


def run(model, batch, fast_layers, autocast=False):
    """The output, and the gradient of every parameter."""
    model.bert.use_fast_layers(fast_layers)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(**batch)
    output.loss.backward()
    return output, gradients_of(model)


def gradients_of(model):
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return gradients


def assert_near(values, expected, atol=1e-6):
    """Equal to the rounding of float32."""
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=atol)


def assert_gradients_alike(gradients, expected, tolerance):
    """Equal relative to the largest gradient of the model: some are zero but for rounding (the
    keys' bias).
    """
    assert gradients.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        scale = max(gradient.abs().max(), 1e-2 * largest)
        assert (gradients[name] - gradient).abs().max() <= tolerance * scale + 1e-7, name


def distance(gradients, expected):
    """The norm of the difference of two gradients."""
    return sum((gradients[name] - expected[name]).square().sum() for name in expected) ** 0.5


def count_packed_calls(monkeypatch):
    calls = []

    def counted(*args):
        calls.append(args)
        return encode_packed(*args)

    monkeypatch.setattr(bert_model, "encode_packed", counted)
    return calls
