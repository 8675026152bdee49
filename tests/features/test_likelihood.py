"""Scores of sentences are those of a plain loop over stock's model, one mask at a time; BLiMP
counts what is likelier.
"""

import json
import random

import pytest
import torch
import transformers
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertTokenizer

from bert_recipes.errors import InputError
from bert_recipes.features.arguments import LikelihoodArguments, SentenceArguments
from bert_recipes.features.likelihood import (
    SentenceScorer,
    blimp_table,
    measure_blimp,
    open_scorer,
)
from bert_recipes.tokenization.others import train_byte_bpe


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
CONFIGS = {
    "bert": SIZES,
    # A generator by itself, as google/electra-small-generator is.
    "electra": {**SIZES, "embedding_size": 32},
    "roberta": {
        **SIZES,
        "max_position_embeddings": 42,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    },
    "modernbert": {
        **SIZES,
        "pad_token_id": 1,
        "global_attn_every_n_layers": 1,
    },
    "distilbert": {
        "dim": 64,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 64,
        "max_position_embeddings": 40,
    },
}
LETTERS = "abcdefuvwxyz"
SENTENCES = ["ab cd", "abc", "zz yz uv ab", "", "c d e f, u", "abcd cd", "fe. dc. ba", "abc"]


def save(folder, kind, model_class=AutoModelForMaskedLM, **changes):
    """A model whose weights matter, and its tokenizer."""
    if kind in ("roberta", "modernbert"):
        texts = ["ab cd ef uv wx yz"] * 3
        tokenizer, _ = train_byte_bpe(texts, vocab_size=270, show_progress=False)
    else:
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ","]
        for letter in LETTERS:
            pieces.extend([letter, f"##{letter}"])
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    tokenizer.save_pretrained(folder)
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        **CONFIGS[kind],
        **changes,
    )
    torch.manual_seed(1)
    model = getattr(model_class, "from_config", model_class)(config)

    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(5)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=CONFIGS)
def model_folder(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp(request.param), request.param)


@torch.no_grad()
def plain_scores(folder, sentences, *, whole_words=False):
    """Salazar et al. 2020, equation 1, by stock transformers: a forward pass for each token."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for sentence in sentences:
        encoded = tokenizer(sentence, return_tensors="pt")
        ids = encoded["input_ids"]
        words = encoded.word_ids(0)
        total = 0.0
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            later = place + 1
            while whole_words and later < len(words) and words[later] == words[place]:
                masked[0, later] = tokenizer.mask_token_id
                later += 1
            total += float(model(masked).logits[0, place].log_softmax(-1)[ids[0, place]])
        scores.append(total)
    return scores


def likelihoods(folder, sentences, **settings):
    args = LikelihoodArguments(
        model_name_or_path=str(folder),
        use_cpu=True,
        **settings,
    )
    return [score.log_likelihood for score in open_scorer(args).score(sentences)]


@pytest.mark.parametrize("whole_words", [False, True])
def test_scores_are_those_of_a_plain_loop(model_folder, whole_words):
    expected = plain_scores(model_folder, SENTENCES, whole_words=whole_words)
    assert len(set(expected)) == len(SENTENCES) - 1, "the test would not see a mistake"
    scores = likelihoods(model_folder, SENTENCES, whole_words=whole_words)
    assert scores == pytest.approx(expected, rel=1e-4, abs=1e-4)


def record_sizes(monkeypatch):
    """The rows of each call of the model."""
    sizes = []
    compute = SentenceScorer._losses_of_rows

    def record(scorer, input_ids, labels):
        sizes.append(len(input_ids))
        return compute(scorer, input_ids, labels)

    monkeypatch.setattr(SentenceScorer, "_losses_of_rows", record)
    return sizes


def test_batches_change_nothing_and_whole_words_change_longer_words_only(tmp_path, monkeypatch):
    folder = save(tmp_path, "bert")
    plain = likelihoods(folder, SENTENCES)
    sizes = record_sizes(monkeypatch)
    assert likelihoods(folder, SENTENCES, batch_tokens=1) == pytest.approx(plain, abs=1e-4)
    assert set(sizes) == {1}
    sizes.clear()
    likelihoods(folder, SENTENCES, batch_tokens=14)
    assert max(sizes) == 2  # of 5 to 7 tokens
    assert likelihoods(folder, SENTENCES, fast_layers="off") == pytest.approx(plain, abs=1e-4)
    rounded = likelihoods(folder, SENTENCES, precision="bf16")
    assert rounded == pytest.approx(plain, rel=0.05)
    assert rounded != pytest.approx(plain, rel=1e-5)
    # Pieces are letters, so "c d e f, u" alone has no word of two.
    whole = likelihoods(folder, SENTENCES, whole_words=True)
    is_same = [abs(a - b) < 1e-4 for a, b in zip(plain, whole, strict=True)]
    assert is_same == [text in ("", "c d e f, u") for text in SENTENCES]


@torch.no_grad()
def test_a_model_that_reads_from_left_to_right_says_the_probability_of_the_sentence(tmp_path):
    folder = save(tmp_path, "bert", transformers.BertLMHeadModel, is_decoder=True)
    model = transformers.BertLMHeadModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        log_probabilities = model(ids).logits[0].log_softmax(-1)
        pieces = range(1, ids.shape[1] - 1)
        expected.append(sum(float(log_probabilities[place - 1, ids[0, place]]) for place in pieces))
    assert likelihoods(folder, SENTENCES) == pytest.approx(expected, rel=1e-4, abs=1e-4)

    with pytest.raises(InputError, match="reads from left to right and hides none: leave it out"):
        likelihoods(folder, SENTENCES, whole_words=True)


def test_real_pairs_are_scored_as_by_a_plain_loop(shared_data, tmp_path):
    files = sorted((shared_data / "blimp").glob("*.jsonl"))
    sentences = []
    for file in files[::14]:
        for line in file.read_text().splitlines()[:8]:
            pair = json.loads(line)
            sentences.extend([pair["sentence_good"], pair["sentence_bad"]])

    vocabulary = (shared_data / "vocab" / "bert-base-uncased-vocab.txt").read_text().splitlines()
    vocab = {piece: number for number, piece in enumerate(vocabulary)}
    BertTokenizer(vocab=vocab).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(vocabulary), **SIZES)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    assert len(sentences) >= 64
    assert likelihoods(tmp_path, sentences) == pytest.approx(
        plain_scores(tmp_path, sentences), rel=1e-5
    )


# BLiMP


def write_pairs(folder, paradigms):
    folder.mkdir(exist_ok=True)
    for name, (phenomenon, pairs) in paradigms.items():
        lines = []
        for good, bad in pairs:
            pair = {
                "sentence_good": good,
                "sentence_bad": bad,
                "linguistics_term": phenomenon,
            }
            lines.append(json.dumps(pair) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))


def test_accuracies_count_the_pairs_whose_good_sentence_is_likelier(tmp_path):
    folder = save(tmp_path / "model", "bert")
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(LETTERS, k=rng.randint(2, 6))) for _ in range(40)]
    pairs = list(zip(sentences[::2], sentences[1::2], strict=True))
    scores = plain_scores(folder, sentences)
    is_right = [good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True)]
    assert 0 < sum(is_right[:10]) < 10
    paradigms = {
        "a": ("x", pairs[:5]),
        "b": ("y", pairs[5:10]),
        "c": ("x", [*pairs[10:19], ("a b", "a b")]),
    }
    write_pairs(tmp_path / "data", paradigms)
    args = SentenceArguments(
        model_name_or_path=folder,
        blimp_dir=str(tmp_path / "data"),
        use_cpu=True,
    )
    results = measure_blimp(args)
    num_right_of_c = sum(is_right[10:19])  # a tie is no success
    assert results["paradigms"]["c"]["accuracy"] == num_right_of_c / 10
    assert results["phenomena"]["x"]["accuracy"] == (sum(is_right[:5]) + num_right_of_c) / 15
    accuracy = (sum(is_right[:10]) + num_right_of_c) / 20
    assert results["overall"]["accuracy"] == pytest.approx(accuracy)
    low, high = results["overall"]["interval"]
    assert low < accuracy < high
    assert len(blimp_table(results).splitlines()) == 2 + 1 + 2 + 3

    args.max_pairs = 3
    results = measure_blimp(args)
    assert results["overall"]["pairs"] == 9
    assert results["paradigms"]["a"]["accuracy"] == sum(is_right[:3]) / 3


def test_what_cannot_be_scored_is_refused(tmp_path):
    folder = save(tmp_path / "model", "bert")
    with pytest.raises(InputError, match="has 63 tokens, the model reads 40"):
        likelihoods(folder, ["a b", "a " * 61])
    with pytest.raises(InputError, match=r"no \.jsonl in it; give the folder data/"):
        measure_blimp(SentenceArguments(model_name_or_path=folder, blimp_dir=folder))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"empty\.jsonl: no pair in it"):
        measure_blimp(SentenceArguments(model_name_or_path=folder, blimp_dir=str(tmp_path)))
    save(tmp_path / "bare", "bert", transformers.BertModel)
    with pytest.raises(InputError, match="has no masked-LM head"):
        open_scorer(LikelihoodArguments(model_name_or_path=str(tmp_path / "bare")))
