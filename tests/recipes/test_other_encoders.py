"""Encoders of other kinds: BPE and Unigram, no segments, positions from 2, other layers."""

import json
import random

import pytest
import torch
import transformers
from transformers import AlbertTokenizer, BertTokenizer

from bert_recipes.data.encoding import DocumentEncoder, TextBatch
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.kind import join_texts
from bert_recipes.finetuning.squad import encode_questions, make_offset_text
from bert_recipes.reports.bias_probe import _pronoun_ids
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split
from bert_recipes.tokenization.others import train_byte_bpe, with_bulk_encoding
from bert_recipes.tokenization.tokenizer import SPECIAL_TOKENS


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
ONE_SEGMENT = {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": 66}
CONFIGS = {
    "roberta": (ONE_SEGMENT, "bytes"),
    "xlm-roberta": (ONE_SEGMENT, "bytes"),
    "modernbert": ({"pad_token_id": 1, "global_attn_every_n_layers": 1}, "bytes"),
    "albert": ({"embedding_size": 16}, "unigram"),
    "deberta-v2": ({"type_vocab_size": 0}, "unigram"),
    "distilbert": ({"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}, "pieces"),
    "electra": ({"embedding_size": 16}, "pieces"),
}


def quick(*names):
    """All encoders, of which these are trained by the quick tests."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in names else slow) for name in CONFIGS]


LETTERS = "abcdefuvwxyz"


def make_tokenizer(kind):
    if kind == "bytes":
        return train_byte_bpe(["ab cd ef uv wx yz"] * 3, vocab_size=270, show_progress=False)[0]
    if kind == "pieces":
        pieces = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
        return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    special = [(token, 0.0) for token in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")]
    letters = [(letter, -3.0) for letter in LETTERS]
    return AlbertTokenizer(vocab=[*special, ("\u2581", -2.0), *letters])


@pytest.fixture(scope="module", params=CONFIGS)
def encoder(request, tmp_path_factory):
    settings, kind = CONFIGS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = make_tokenizer(kind)
    tokenizer.save_pretrained(folder)
    settings = SIZES | settings | {"vocab_size": len(tokenizer)}
    config = transformers.AutoConfig.for_model(request.param, **settings)
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_word(rng, letters):
    return "".join(rng.choices(letters, k=3))


FIRST_HALF = LETTERS[:6]
SECOND_HALF = LETTERS[6:]


def make_row(rng):
    """A pair and a sentence whose labels say from which half of the alphabet words are."""
    label = rng.choice(["no", "yes"])
    letters = FIRST_HALF if label == "yes" else SECOND_HALF
    tokens = [make_word(rng, rng.choice([FIRST_HALF, SECOND_HALF])) for _ in range(5)]
    return {
        "first": " ".join(make_word(rng, letters) for _ in range(4)),
        "second": " ".join(make_word(rng, letters) for _ in range(4)),
        "label": label,
        "tokens": tokens,
        "tags": ["B-X" if word[0] in FIRST_HALF else "O" for word in tokens],
    }


FILES = "files: {train: train.jsonl, validation: validation.jsonl}\n"
PAIRS = (
    f"kind: sequence_classification\n{FILES}text_columns: [first, second]\nlabel_column: label\n"
    "labels: ['no', 'yes']\n"
)
TAGS = (
    f"kind: token_classification\n{FILES}text_columns: [tokens]\nlabel_column: tags\n"
    "labels: [O, B-X, I-X]\n"
)


@pytest.fixture
def fine_tune(call_recipe, tmp_path):
    """An encoder and flags -> the results of a run, and its predictions of a file."""

    def run(encoder, flags, inputs):
        common = "--dropout 0 --use_cpu true --disable_tqdm true"
        model, output = tmp_path / "run", tmp_path / "out.jsonl"
        paths = f"--model_name_or_path {encoder} --output_dir {model}"
        call_recipe("finetune", paths, common, flags)
        paths = f"--model_name_or_path {model} --input_file {inputs} --output_file {output}"
        call_recipe("predict", paths, "--use_cpu true")
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        return json.loads((model / "all_results.json").read_text()), lines

    return run


def check_training(fine_tune, encoder, tmp_path, task, metric):
    rng = random.Random(0)
    write_jsonl(tmp_path / "train.jsonl", [make_row(rng) for _ in range(96)])
    write_jsonl(tmp_path / "validation.jsonl", [make_row(rng) for _ in range(24)])
    (tmp_path / "mine.yaml").write_text(task, encoding="utf-8")
    flags = (
        f"--task_file {tmp_path}/mine.yaml --max_seq_length 64 --num_train_epochs 25 "
        "--learning_rate 5e-3 --global_train_batch_size 8"
    )
    results, lines = fine_tune(encoder, flags, tmp_path / "validation.jsonl")
    assert results[metric] > 0.85
    assert len(lines) == 24


@pytest.mark.parametrize("encoder", quick("electra"), indirect=True)
def test_pairs_are_classified_with_another_encoder(fine_tune, encoder, tmp_path):
    check_training(fine_tune, encoder, tmp_path, PAIRS, "eval_accuracy")


@pytest.mark.slow
@pytest.mark.parametrize("encoder", CONFIGS, indirect=True)
def test_words_are_tagged_with_another_encoder(fine_tune, encoder, tmp_path):
    check_training(fine_tune, encoder, tmp_path, TAGS, "eval_f1")


@pytest.mark.parametrize("task", ["mrpc", "conll2003", "squad", "swag"])
def test_dropout_reaches_encoder_and_head_of_every_kind(encoder, task):
    settings = TaskArguments(task=task, max_seq_length=64, dropout=0.3)
    tokenizer = open_tokenizer(str(encoder))
    model = open_model(str(encoder), get_task(task), tokenizer, settings, seed=1)
    rates = set()
    for module in model.modules():
        if "Dropout" in type(module).__name__:
            rates.add(getattr(module, "p", getattr(module, "drop_prob", None)))
        # Rates that are no modules: attention's.
        rates.update(value for name, value in vars(module).items() if "dropout" in name)
    assert rates == {0.3}


def test_pairs_are_laid_out_as_the_tokenizer_does(encoder):
    tokenizer = open_tokenizer(str(encoder))
    stock = transformers.AutoTokenizer.from_pretrained(encoder)
    first = tokenizer.encode_ids("ab cd")
    feature = join_texts(tokenizer, [*first], tokenizer.encode_ids("ef"), 64)
    expected = stock("ab cd", "ef", return_token_type_ids=True)
    assert feature["input_ids"] == expected["input_ids"]
    assert feature["token_type_ids"] == expected["token_type_ids"]
    assert join_texts(tokenizer, first, None, 64)["input_ids"] == stock("ab cd")["input_ids"]


def as_released(tokenizer):
    """The same pieces in a tokenizer as RoBERTa's, which adds no space before a text."""
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return with_bulk_encoding(
        transformers.RobertaTokenizer(
            vocab=tokenizer.get_vocab(), merges=[tuple(merge) for merge in merges]
        )
    )


def test_a_word_of_a_list_has_the_space_before_it_that_a_text_has():
    """Released RoBERTa tokenizers add none: 'the' and 'Ġthe' are other pieces."""
    tokenizer = train_byte_bpe(["ab ab ab cd"] * 9, vocab_size=264, show_progress=False)[0]
    plain = as_released(tokenizer)
    word = plain.encode_word("ab")
    assert word == tokenizer.encode_word("ab")
    assert word == tokenizer.encode_ids("x ab")[-1:]
    assert word != plain.encode_ids("ab")


def test_a_pronoun_is_counted_at_the_beginning_of_a_text_too():
    """Two templates of the bias probe begin with the mask."""
    plain = as_released(train_byte_bpe(["ab ab ab cd"] * 9, vocab_size=264, show_progress=False)[0])
    ids = [plain.encode_ids(text) for text in ("ab", " ab")]
    expected = {pieces[0] for pieces in ids if len(pieces) == 1}
    assert set(_pronoun_ids(plain, ["ab"])) == expected
    assert plain.encode_word("ab")[0] in expected


def test_sentences_of_a_document_have_the_ids_that_its_text_has():
    """Released RoBERTa tokenizers add no space: the store had "ab cd.Ef gh." of "ab cd. Ef gh."."""
    plain = as_released(train_byte_bpe(["ab ef ab cd"] * 9, vocab_size=264, show_progress=False)[0])
    text = "ab cd. Ef gh. Ab ab."
    encode = DocumentEncoder(plain.text_encoder, plain.following_encoder)
    batch = encode(TextBatch("train", [[text], [text]]))
    assert batch.sentence_lengths.size == 6
    assert batch.tokens.tolist() == 2 * plain.encode_ids(text)


def make_question(rng, number):
    """A paragraph of words from a half of the alphabet; the answer is from the other half."""
    words = [make_word(rng, SECOND_HALF) for _ in range(6)]
    answer = make_word(rng, FIRST_HALF)
    words[rng.randrange(6)] = answer
    context = " ".join(words)
    answers = {"text": [answer], "answer_start": [context.index(answer)]}
    return {"id": str(number), "context": context, "question": "ab", "answers": answers}


@pytest.mark.parametrize("encoder", quick("roberta"), indirect=True)
def test_questions_are_answered_by_slices_of_the_paragraph(fine_tune, encoder, tmp_path):
    rng = random.Random(0)
    rows = [make_question(rng, number) for number in range(184)]
    write_jsonl(tmp_path / "train.jsonl", rows[:160])
    write_jsonl(tmp_path / "validation.jsonl", rows[160:])
    flags = (
        f"--task squad --data_dir {tmp_path} --max_seq_length 40 --max_query_length 8 "
        "--doc_stride 16 --num_train_epochs 20 --learning_rate 3e-3 --global_train_batch_size 16"
    )
    results, lines = fine_tune(encoder, flags, tmp_path / "validation.jsonl")
    assert results["eval_exact_match"] > 80
    num_right = 0
    for row, line in zip(rows[160:], lines, strict=True):
        assert line["prediction"] in row["context"]
        num_right += line["prediction"] == row["answers"]["text"][0]
    assert num_right / 24 == pytest.approx(results["eval_exact_match"] / 100)


TEXTS = (
    ("When  did it end? In\u00a01895 (perhaps).", "1895"),
    ("Zo\u00eb na\u00efve \U0001f600 \u4f60\u597d caf\u00e9s", "\u4f60\u597d"),
    (" Zo\u00eb na\u00efve", "Zo\u00eb"),
    ("a b c", "a b c"),
    ("Japanese", "Japan"),
)


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_a_label_leads_back_to_its_answer(kind):
    """Offsets find the pieces that hold the answer; it may end inside of one."""
    tokenizer = with_bulk_encoding(make_tokenizer(kind))
    settings = TaskArguments(task="squad", max_seq_length=24, max_query_length=8, doc_stride=4)
    examples = []
    for text, answer in TEXTS:
        answers = (Answer(text=answer, answer_start=text.index(answer)),)
        examples.append(QuestionExample(idx=text, question="ab?", context=text, answers=answers))
    split = Split(name="train", examples=examples, source="made", num_rows=len(examples))
    features = encode_questions(split, tokenizer, settings, for_training=True)
    assert not features.dropped
    trained = set()
    for feature, (example, start, _) in zip(features, features.windows.tolist(), strict=True):
        assert len(feature["input_ids"]) <= 24
        if not feature["start_positions"]:
            continue
        text, answer = TEXTS[example]
        offset = start - tokenizer.layout.start_of_second(len(features.queries[example]))
        span_text = make_offset_text(features.contexts[example], tokenizer)
        span = span_text(feature["start_positions"] + offset, feature["end_positions"] + offset)
        assert answer in span
        assert span in text
        assert len(span) - len(answer) <= 1 or kind == "unigram"
        trained.add(example)
    assert len(trained) == len(TEXTS)


def test_what_opens_no_tokenizer_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {}}}')
    with pytest.raises(InputError, match="holds no BPE, Unigram, or WordPiece model"):
        open_tokenizer(str(tmp_path))
