import pytest
import torch

from bert_recipes.errors import InputError
from bert_recipes.models.bert import BertForPreTraining
from bert_recipes.models.sizes import count_parameters, pretraining_config


def count(size, vocab_size):
    """Parameters by component, and those of the encoder without the heads."""
    with torch.device("meta"):
        model = BertForPreTraining(pretraining_config(size, vocab_size=vocab_size))
    counts = count_parameters(model)
    # Every parameter is counted once.
    assert sum(counts.values()) == model.num_parameters()
    assert model.config.hidden_size == 64 * model.config.num_attention_heads
    assert model.config.intermediate_size == 4 * model.config.hidden_size
    encoder = [counts[name] for name in counts if not name.startswith("pre-training heads")]
    return counts, sum(encoder)


def test_base_has_the_parameters_of_the_paper_by_component():
    """Devlin et al. 2019, section 3: base = 110M; the components follow from the shapes, for a
    30,000 vocabulary.
    """
    counts, encoder = count("base", 30_000)
    assert counts["token embeddings"] == 23_040_000
    assert counts["segment embeddings"] == 1_536
    assert counts["position embeddings"] == 393_216
    assert counts["attention weights"] == 12 * 2_359_296
    assert counts["feed-forward weights"] == 12 * 4_718_592
    assert encoder == 109_081_344


@pytest.mark.parametrize(("size", "published"), [("base", 109_482_240), ("large", 335_141_888)])
def test_published_vocabulary_gives_the_published_encoders(size, published):
    """google-research/bert: uncased_L-12_H-768_A-12 and uncased_L-24_H-1024_A-16 over 30,522
    pieces.
    """
    _, encoder = count(size, 30_522)
    assert encoder == published


def test_a_size_can_be_said_in_numbers():
    config = pretraining_config("4/128/1", vocab_size=100)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (4, 128, 1)
    assert config.intermediate_size == 512
    assert pretraining_config("3/192", vocab_size=100).num_attention_heads == 3


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("4/100/3", "size is '4/100/3': 100 is no multiple of 3 heads"),
        ("4/0", "allowed: tiny, mini, small, medium, base, large"),
        ("4/128/2/2", "allowed: tiny"),
        ("a/b", "allowed: tiny"),
        ("huge", "allowed: tiny"),
    ],
)
def test_what_is_no_size_is_refused(size, message):
    with pytest.raises(InputError, match=message):
        pretraining_config(size, vocab_size=100)
