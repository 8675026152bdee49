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
from bert_recipes.features.likelihood import blimp_table, measure_blimp, open_scorer
from bert_recipes.tokenization.others import train_byte_bpe


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
CONFIGS = {
    "bert": SIZES | {"max_position_embeddings": 40},
    "roberta": SIZES | {"max_position_embeddings": 42, "type_vocab_size": 1, "pad_token_id": 1},
    "modernbert": SIZES
    | {"max_position_embeddings": 40, "pad_token_id": 1, "global_attn_every_n_layers": 1},
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
        tokenizer = train_byte_bpe(["ab cd ef uv wx yz"] * 3, vocab_size=270, show_progress=False)[
            0
        ]
    else:
        pieces = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            ".",
            ",",
            *LETTERS,
            *(f"##{each}" for each in LETTERS),
        ]
        tokenizer = BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    tokenizer.save_pretrained(folder)
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), **CONFIGS[kind], **changes
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
    model, tokenizer = (
        AutoModelForMaskedLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    scores = []
    for sentence in sentences:
        encoded, total = tokenizer(sentence, return_tensors="pt"), 0.0
        ids, words = encoded["input_ids"], encoded.word_ids(0)
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
    scores = open_scorer(
        LikelihoodArguments(model_name_or_path=folder, use_cpu=True, **settings)
    ).score(sentences)
    return [score.log_likelihood for score in scores]


@pytest.mark.parametrize("whole_words", [False, True])
def test_scores_are_those_of_a_plain_loop(model_folder, whole_words):
    expected = plain_scores(model_folder, SENTENCES, whole_words=whole_words)
    assert len(set(expected)) == len(SENTENCES) - 1, "the test would not see a mistake"
    own = likelihoods(model_folder, SENTENCES, whole_words=whole_words)
    assert own == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_batches_change_nothing_and_whole_words_change_longer_words_only(tmp_path):
    folder = save(tmp_path, "bert")
    plain = likelihoods(folder, SENTENCES)
    assert likelihoods(folder, SENTENCES, batch_tokens=1) == pytest.approx(plain, abs=1e-4)
    assert likelihoods(folder, SENTENCES, fast_layers="off") == pytest.approx(plain, abs=1e-4)
    assert likelihoods(folder, SENTENCES, precision="bf16") == pytest.approx(plain, rel=0.05)
    # Pieces are letters, so "c d e f, u" alone has no word of two.
    whole = likelihoods(folder, SENTENCES, whole_words=True)
    assert [abs(a - b) < 1e-4 for a, b in zip(plain, whole, strict=True)] == [
        text in ("", "c d e f, u") for text in SENTENCES
    ]


@torch.no_grad()
def test_a_model_that_reads_from_left_to_right_says_the_probability_of_the_sentence(tmp_path):
    folder = save(tmp_path, "bert", transformers.BertLMHeadModel, is_decoder=True)
    model, tokenizer = (
        transformers.BertLMHeadModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    expected = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        said = model(ids).logits[0].log_softmax(-1)
        expected.append(
            sum(float(said[place - 1, ids[0, place]]) for place in range(1, ids.shape[1] - 1))
        )
    assert likelihoods(folder, SENTENCES) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_real_pairs_are_scored_as_by_a_plain_loop(shared_data, tmp_path):
    files = sorted((shared_data / "blimp").glob("*.jsonl"))
    lines = [
        json.loads(line) for file in files[::7] for line in file.read_text().splitlines()[:20]
    ][:200]
    sentences = [line[key] for line in lines for key in ("sentence_good", "sentence_bad")]
    vocabulary = (shared_data / "vocab" / "bert-base-uncased-vocab.txt").read_text().splitlines()
    BertTokenizer(vocab={piece: number for number, piece in enumerate(vocabulary)}).save_pretrained(
        tmp_path
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(vocabulary), **SIZES)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    assert len(lines) == 200
    own = likelihoods(str(tmp_path), sentences)
    assert own == pytest.approx(plain_scores(tmp_path, sentences), rel=1e-5)


# BLiMP


def write_pairs(folder, paradigms):
    folder.mkdir(exist_ok=True)
    for name, (phenomenon, pairs) in paradigms.items():
        lines = [
            {
                "sentence_good": good,
                "sentence_bad": bad,
                "linguistics_term": phenomenon,
                "UID": name,
            }
            for good, bad in pairs
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_accuracies_count_the_pairs_whose_good_sentence_is_likelier(tmp_path):
    folder, rng = save(tmp_path / "model", "bert"), random.Random(0)
    sentences = [" ".join(rng.choices(LETTERS, k=rng.randint(2, 6))) for _ in range(80)]
    pairs = list(zip(sentences[::2], sentences[1::2], strict=True))
    said = plain_scores(folder, sentences)
    right = [good > bad for good, bad in zip(said[::2], said[1::2], strict=True)]
    assert 0 < sum(right) < 40
    paradigms = {
        "a": ("x", pairs[:10]),
        "b": ("y", pairs[10:20]),
        "c": ("x", [*pairs[20:39], ("a b", "a b")]),
    }
    data = write_pairs(tmp_path / "data", paradigms)
    args = SentenceArguments(model_name_or_path=folder, blimp_dir=data, use_cpu=True)
    results = measure_blimp(args)
    of_c = sum(right[20:39])
    assert results["paradigms"]["c"]["accuracy"] == of_c / 20  # a tie is no success
    assert results["phenomena"]["x"]["accuracy"] == (sum(right[:10]) + of_c) / 30
    assert results["overall"]["accuracy"] == pytest.approx((sum(right[:20]) + of_c) / 40)
    assert (
        results["overall"]["interval"][0]
        < results["overall"]["accuracy"]
        < results["overall"]["interval"][1]
    )
    table = blimp_table(results).splitlines()
    assert len(table) == 2 + 1 + 2 + 3
    args.max_pairs = 5
    few = measure_blimp(args)
    assert few["overall"]["pairs"] == 15
    assert few["paradigms"]["a"]["accuracy"] == sum(right[:5]) / 5


def test_mistakes_are_said_in_one_line(tmp_path):
    folder = save(tmp_path / "model", "bert")
    with pytest.raises(InputError, match="has 63 tokens, the model reads 40"):
        likelihoods(folder, ["a b", "a " * 61])
    with pytest.raises(InputError, match=r"no \.jsonl in it; give the folder data/"):
        measure_blimp(
            SentenceArguments(model_name_or_path=folder, blimp_dir=str(tmp_path / "model"))
        )
    data = write_pairs(tmp_path / "data", {"a": ("x", [("a", "b")])})
    (tmp_path / "data" / "b.jsonl").write_text('{"sentence_good": "a"}\n')
    with pytest.raises(InputError, match=r"b\.jsonl, line 1.*sentence_bad"):
        measure_blimp(SentenceArguments(model_name_or_path=folder, blimp_dir=data))
    save(tmp_path / "bare", "bert", transformers.BertModel)
    with pytest.raises(InputError, match="has no masked-LM head"):
        open_scorer(LikelihoodArguments(model_name_or_path=str(tmp_path / "bare")))
