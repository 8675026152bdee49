"""That ELECTRA's discriminator can learn, and what keeps it from that: a language in which every
word says what the next one is.
"""

import numpy as np
import pytest
from small_run import small_run
from small_stores import make_tokenizer, write_store

from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS


pytestmark = pytest.mark.slow
NUM_WORDS, NUM_DOCUMENTS, SENTENCES, LENGTH = 60, 200, 12, 10
# Those of recipes/configs/pretrain/laptop.yaml.
QUICK = {"optimizer": "muon", "muon_learning_rate": 0.01, "learning_rate": 4e-3}
QUICK_WEIGHTS = {"weight_init": "sinusoidal_positions", "initializer_range": 0.06}


@pytest.fixture(scope="module")
def chain_store(tmp_path_factory):
    """A store whose sentences count on from a random word, and after the last begin again."""
    folder = tmp_path_factory.mktemp("chain")
    tokenizer = make_tokenizer(folder, [f"w{number}" for number in range(NUM_WORDS)])
    rng = np.random.default_rng(0)
    documents = []
    for number in range(NUM_DOCUMENTS):
        starts = rng.integers(NUM_WORDS, size=SENTENCES)
        words_of_sentences = (starts[:, None] + np.arange(LENGTH)) % NUM_WORDS
        split = "train" if number < 190 else "validation"
        documents.append((split, (words_of_sentences + len(SPECIAL_TOKENS)).tolist()))
    return write_store(folder, tokenizer, documents)


@pytest.mark.parametrize(("random_replacements", "finds"), [(0.6, True), (0.0, False)])
def test_a_discriminator_finds_replaced_tokens_where_some_were_random_words(
    chain_store, tmp_path, random_replacements, finds
):
    metrics = small_run(
        store=str(chain_store),
        output_dir=str(tmp_path),
        objective="electra",
        inputs=QUICK_WEIGHTS,
        max_steps=300,
        per_device_train_batch_size=32,
        random_replacements=random_replacements,
        **QUICK,
    )["metrics"]
    assert metrics["eval_mlm_loss"] < 2.0  # log(60) is 4.1
    assert (metrics["eval_replaced_recall"] > 0.2) is finds
    assert (metrics["eval_disc_loss"] < 0.8 * metrics["eval_base_rate_loss"]) is finds
