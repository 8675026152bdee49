"""Small models of each member of the family, and batches for them."""

import copy

import torch
import transformers
from packed_models import VOCAB, make_batch

from bert_recipes.models.checkpoints import MEMBERS
from bert_recipes.models.electra import ElectraForMaskedLM


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 100,
    "max_position_embeddings": 66,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 100,
    "max_position_embeddings": 66,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "initializer_range": 0.2,
}
# By the name that our class shares with stock's.
CONFIGS = {
    "BertForPreTraining": transformers.BertConfig(**SIZES),
    "BertForMaskedLM": transformers.BertConfig(**SIZES),
    "RobertaForMaskedLM": transformers.RobertaConfig(
        **SIZES, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=0
    ),
    "AlbertForPreTraining": transformers.AlbertConfig(
        **SIZES,
        embedding_size=24,
        num_hidden_groups=2,
        hidden_act="gelu_new",
        classifier_dropout_prob=0.0,  # stock's head for pairs has it too
    ),
    "DistilBertForMaskedLM": transformers.DistilBertConfig(**DISTILBERT),
    "ElectraForPreTraining": transformers.ElectraConfig(
        **SIZES, embedding_size=16, generator_size=0.5
    ),
    "ElectraForMaskedLM": transformers.ElectraConfig(**SIZES, embedding_size=16),
}
CLASSES = {kind.__name__: kind for kind in [*MEMBERS.values(), ElectraForMaskedLM]}


def build(name, **changes):
    """One of our models, in training."""
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[name])
    config.update(changes)
    return CLASSES[name](config).train()


def build_stock(model):
    """Stock's model of the same name with the same weights, in training."""
    kind = getattr(transformers, type(model).__name__)
    stock = kind(model.config).train()
    stock.load_state_dict(model.state_dict(), strict=False)
    stock.tie_weights()
    return stock


def batch_for(name, lengths):
    """A batch with the labels that a member has."""
    batch = make_batch(lengths)
    if name.startswith("Roberta"):
        batch["token_type_ids"] = torch.zeros_like(batch["token_type_ids"])
    if name not in ("BertForPreTraining", "AlbertForPreTraining"):
        del batch["next_sentence_label"]
    return batch


def stock_batch(name, batch):
    """The batch under the names of stock's class."""
    batch = dict(batch)
    if name.startswith("Albert"):
        batch["sentence_order_label"] = batch.pop("next_sentence_label")
    if name.startswith("DistilBert"):
        del batch["token_type_ids"]
    return batch
