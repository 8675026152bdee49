"""Everybody's encoder is fine-tuned: BPE and Unigram, no segments, positions from 2, other
layers.
"""

import json
import random

import pytest
import torch
import transformers
from transformers import AlbertTokenizer, BertTokenizer

from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.finetuning.checkpoints import open_model, open_tokenizer
from bert_recipes.finetuning.kind import join_texts
from bert_recipes.finetuning.multiple_choice import MultipleChoice
from bert_recipes.finetuning.question_answering import QuestionAnswering
from bert_recipes.finetuning.sequence_classification import SequenceClassification
from bert_recipes.finetuning.squad import encode_questions, offset_texts
from bert_recipes.finetuning.token_classification import TokenClassification
from bert_recipes.tasks.catalogue import get_task
from bert_recipes.tasks.examples import Answer, QuestionExample, Split
from bert_recipes.tokenization.others import train_byte_bpe, with_bulk_encoding


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
CONFIGS = {
    "roberta": (
        SIZES | {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1},
        "bytes",
    ),
    "xlm-roberta": (
        SIZES | {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1},
        "bytes",
    ),
    "modernbert": (
        SIZES | {"max_position_embeddings": 64, "pad_token_id": 1, "global_attn_every_n_layers": 1},
        "bytes",
    ),
    "albert": (SIZES | {"embedding_size": 16, "max_position_embeddings": 64}, "unigram"),
    "deberta-v2": (SIZES | {"max_position_embeddings": 64, "type_vocab_size": 0}, "unigram"),
    "distilbert": (
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64},
        "pieces",
    ),
    "electra": (SIZES | {"embedding_size": 16, "max_position_embeddings": 64}, "pieces"),
}
# One for each kind of tokenizer; the others are trained by `make test-slow`.
QUICK = ("roberta", "deberta-v2", "electra")
TRAINED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]
LETTERS = "abcdefuvwxyz"


def make_tokenizer(kind):
    if kind == "bytes":
        return train_byte_bpe(["ab cd ef uv wx yz"] * 3, vocab_size=270, show_progress=False)[0]
    if kind == "pieces":
        pieces = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *LETTERS,
            *(f"##{letter}" for letter in LETTERS),
        ]
        return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    special = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0)]
    return AlbertTokenizer(
        vocab=[*special, ("\u2581", -2.0), *((letter, -3.0) for letter in LETTERS)]
    )


@pytest.fixture(scope="module", params=CONFIGS)
def encoder(request, tmp_path_factory):
    settings, kind = CONFIGS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = make_tokenizer(kind)
    tokenizer.save_pretrained(folder)
    config = transformers.AutoConfig.for_model(request.param, vocab_size=len(tokenizer), **settings)
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    for split, number in (("train", 96), ("validation", 24)):
        lines = []
        for _ in range(number):
            label = rng.randint(0, 1)
            words = [
                " ".join(
                    "".join(rng.choices(LETTERS[:6] if label else LETTERS[6:], k=3))
                    for _ in range(4)
                )
                for _ in "ab"
            ]
            tokens = [
                "".join(rng.choices(rng.choice([LETTERS[:6], LETTERS[6:]]), k=3)) for _ in range(5)
            ]
            tags = ["B-X" if word[0] in LETTERS[:6] else "O" for word in tokens]
            lines.append(
                {
                    "first": words[0],
                    "second": words[1],
                    "label": ["no", "yes"][label],
                    "tokens": tokens,
                    "tags": tags,
                }
            )
        (folder / f"{split}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
        )
    return folder


PAIRS = (
    "name: pairs\nkind: sequence_classification\nfiles: {train: train.jsonl, validation: "
    "validation.jsonl}\ntext_columns: [first, second]\nlabel_column: label\nlabels: ['no', 'yes']\n"
)
TAGS = (
    "name: tags\nkind: token_classification\nfiles: {train: train.jsonl, validation: "
    "validation.jsonl}\ntext_columns: [tokens]\nlabel_column: tags\nlabels: [O, B-X, I-X]\n"
)


@pytest.mark.parametrize("encoder", TRAINED, indirect=True)
@pytest.mark.parametrize("task", [PAIRS, TAGS], ids=["pairs", "tags"])
def test_an_encoder_of_another_kind_is_fine_tuned_and_predicts(
    call_recipe, encoder, data, tmp_path, task
):
    (tmp_path / "task.yaml").write_text(task, encoding="utf-8")
    flags = [
        "--task_file",
        tmp_path / "task.yaml",
        "--data_dir",
        data,
        "--model_name_or_path",
        encoder,
        "--use_cpu",
        "true",
    ]
    flags += [
        "--max_seq_length",
        64,
        "--num_train_epochs",
        25,
        "--learning_rate",
        "5e-3",
        "--output_dir",
        tmp_path / "run",
    ]
    call_recipe(
        "finetune", *flags, "--global_train_batch_size", 8, "--dropout", 0, "--disable_tqdm", "true"
    )
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["eval_accuracy" if task is PAIRS else "eval_f1"] > 0.85
    inputs = data / "validation.jsonl"
    call_recipe(
        *("predict", "--model_name_or_path", tmp_path / "run", "--input_file", inputs),
        *("--output_file", tmp_path / "out.jsonl", "--use_cpu", "true"),
    )
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 24


KINDS = {
    "mrpc": SequenceClassification,
    "conll2003": TokenClassification,
    "squad": QuestionAnswering,
    "swag": MultipleChoice,
}


@pytest.mark.parametrize("task", KINDS)
def test_dropout_reaches_encoder_and_head_of_every_kind(encoder, task):
    settings = TaskArguments(task=task, max_seq_length=64, dropout=0.3)
    opened = open_model(
        str(encoder), get_task(task), KINDS[task], open_tokenizer(str(encoder)), settings, seed=1
    )
    modules = [module for module in opened.modules() if "Dropout" in type(module).__name__]
    assert modules
    assert {getattr(module, "p", getattr(module, "drop_prob", None)) for module in modules} == {0.3}
    # Rates that are no modules: attention's.
    rates = [
        value
        for module in opened.modules()
        for name, value in vars(module).items()
        if "dropout" in name
    ]
    assert set(rates) <= {0.3}


def test_pairs_are_laid_out_as_the_tokenizer_does(encoder):
    tokenizer = open_tokenizer(str(encoder))
    stock = transformers.AutoTokenizer.from_pretrained(encoder)
    feature = join_texts(tokenizer, tokenizer.encode_ids("ab cd"), tokenizer.encode_ids("ef"), 64)
    expected = stock("ab cd", "ef", return_token_type_ids=True)
    assert feature["input_ids"] == expected["input_ids"]
    assert feature["token_type_ids"] == expected["token_type_ids"]
    assert (
        join_texts(tokenizer, tokenizer.encode_ids("ab cd"), None, 64)["input_ids"]
        == stock("ab cd")["input_ids"]
    )


def test_a_word_of_a_list_has_the_space_before_it_that_a_text_has():
    """Released RoBERTa tokenizers add none: 'the' and 'Ġthe' are other pieces."""
    tokenizer = train_byte_bpe(["ab ab ab cd"] * 9, vocab_size=264, show_progress=False)[0]
    plain = transformers.RobertaTokenizer(
        vocab=tokenizer.get_vocab(),
        merges=[
            tuple(merge)
            for merge in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
        ],
    )
    assert (
        with_bulk_encoding(plain).encode_word("ab")
        == tokenizer.encode_word("ab")
        == tokenizer.encode_ids("x ab")[1:][-1:]
    )
    assert plain.encode_ids("ab") != plain.encode_word("ab")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """Paragraphs of words from one half of the alphabet; the answer is the word of the other
    half.
    """
    folder, rng = tmp_path_factory.mktemp("questions"), random.Random(0)
    for split, number in (("train", 160), ("validation", 24)):
        lines = []
        for idx in range(number):
            words = ["".join(rng.choices(LETTERS[6:], k=3)) for _ in range(6)]
            words[place := rng.randrange(6)] = answer = "".join(rng.choices(LETTERS[:6], k=3))
            start = len(" ".join(words[:place])) + (place > 0)
            answers = {"text": [answer], "answer_start": [start]}
            lines.append(
                {"id": str(idx), "context": " ".join(words), "question": "ab", "answers": answers}
            )
        (folder / f"{split}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
        )
    return folder


@pytest.mark.parametrize("encoder", TRAINED, indirect=True)
def test_questions_are_answered_by_slices_of_the_paragraph(
    call_recipe, encoder, questions, tmp_path
):
    flags = [
        "--task",
        "squad",
        "--data_dir",
        questions,
        "--model_name_or_path",
        encoder,
        "--use_cpu",
        "true",
    ]
    flags += [
        "--max_seq_length",
        40,
        "--max_query_length",
        8,
        "--doc_stride",
        16,
        "--num_train_epochs",
        20,
    ]
    flags += [
        "--learning_rate",
        "3e-3",
        "--global_train_batch_size",
        16,
        "--dropout",
        0,
        "--disable_tqdm",
        "true",
    ]
    call_recipe("finetune", *flags, "--output_dir", tmp_path / "run")
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["eval_exact_match"] > 80
    call_recipe(
        *(
            "predict",
            "--model_name_or_path",
            tmp_path / "run",
            "--input_file",
            questions / "validation.jsonl",
        ),
        *("--output_file", tmp_path / "out.jsonl", "--use_cpu", "true"),
    )
    rows = [json.loads(line) for line in (questions / "validation.jsonl").read_text().splitlines()]
    said = [
        json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    assert all(answer in row["context"] for answer, row in zip(said, rows, strict=True))
    right = sum(answer == row["answers"]["text"][0] for answer, row in zip(said, rows, strict=True))
    assert right / len(rows) == pytest.approx(results["eval_exact_match"] / 100)


TEXTS = (
    ("When  did it end? In\u00a01895 (perhaps).", "1895"),
    ("Zo\u00eb na\u00efve \U0001f600 \u4f60\u597d caf\u00e9s", "\u4f60\u597d"),
    (" Zo\u00eb na\u00efve", "Zo\u00eb"),
    ("a b c", "a b c"),
    ("Japanese", "Japan"),
)


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_a_label_leads_back_to_its_answer(kind):
    """Offsets find the pieces that hold the answer; their slice is the answer, or the pieces around
    it where it ends inside of one.
    """
    tokenizer = with_bulk_encoding(make_tokenizer(kind))
    settings = TaskArguments(task="squad", max_seq_length=24, max_query_length=8, doc_stride=4)
    examples = tuple(
        QuestionExample(
            idx=str(n),
            question="ab?",
            context=text,
            answers=(Answer(text=answer, answer_start=text.index(answer)),),
        )
        for n, (text, answer) in enumerate(TEXTS)
    )
    split = Split(name="train", examples=examples, source="made", num_rows=len(examples))
    features = encode_questions(split, tokenizer, settings, for_training=True)
    assert not features.dropped
    found = set()
    for number, (example, start, _) in enumerate(features.windows.tolist()):
        feature = features[number]
        assert len(feature["input_ids"]) == features.lengths[number] <= 24
        if not feature["start_positions"]:
            continue
        text, answer = TEXTS[example]
        behind = tokenizer.layout.start_of_second(len(features.queries[example]))
        first, last = (feature[f"{end}_positions"] - behind + start for end in ("start", "end"))
        cut = offset_texts(features.contexts[example], tokenizer)(first, last)
        assert answer in cut
        assert cut in text
        assert len(cut) - len(answer) <= 1 or kind == "unigram"
        found.add(example)
    assert found == set(range(len(TEXTS)))


def test_what_opens_no_tokenizer_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text(
        '{"model": {"type": "WordLevel", "vocab": {}}}', encoding="utf-8"
    )
    with pytest.raises(InputError, match="holds no BPE, Unigram, or WordPiece model"):
        open_tokenizer(str(tmp_path))
