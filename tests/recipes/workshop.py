"""The folder in which the commands of the pages are typed: what they expect there, as small as it
can be.
"""

import csv
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
from original_model import draw_variables, write_original
from python_process import run_python


SOME_WORDS = "the a red green blue old new apple pear tree house river grows falls runs sees and of"
SOME_NAMES = "Anna Doyle Munich Siemens Bergen"
WORDS, NAMES = SOME_WORDS.split(), SOME_NAMES.split()
AUTHORS = ("Doyle", "Schreiner", "Bennet", "Chesterton", "Conrad", "Austen")
# Names of the pages for stores and models -> all the same one.
STORES = "STORE data/store data/books data/paper data/quickstart/store domain_store sst2_store"
MODELS = "my_bert my_bert_larger runs/quickstart runs/base runs/base_2e-4"


def sentence(rng: random.Random) -> str:
    words = " ".join(rng.choices(WORDS, k=rng.randint(4, 9)))
    return f"{words.capitalize()} {rng.choice(NAMES)}."


def document(rng: random.Random) -> str:
    """A paragraph."""
    return " ".join(sentence(rng) for _ in range(8))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_rows(path: Path, rows: list[dict]) -> None:
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def write_texts(folder: Path, rng: random.Random) -> None:
    for name in ("my_texts", "domain_texts", "other_texts", "CORPUS", "books"):
        # Words that no tokenizer here has, for those that are added.
        new_words = " Retinopathy thrombolysis angioplasty." if name == "domain_texts" else ""
        for number in range(8):
            paragraphs = [document(rng) + new_words for _ in range(8)]
            write(folder / name / f"{number}.txt", "\n\n".join(paragraphs) + "\n")
    rows = [{"text": document(rng)} for _ in range(20)]
    for name in ("wikipedia/0.jsonl", "corpus/00000.jsonl"):
        write_rows(folder / name, rows)
    for author in AUTHORS:
        for number in range(3):
            write(folder / "corpus" / "books" / f"{author}_{number}.txt", document(rng) + "\n")
    for name in ("Mill_On_Liberty", "Smith"):
        write(folder / "corpus" / "nonfiction" / f"{name}.txt", document(rng) + "\n")
    for number in (6, 7):
        write(folder / "corpus" / "articles" / f"squad_0{number}.txt", document(rng) + "\n")
    articles = "\n\n".join(document(rng) for _ in range(12))
    write(folder / "corpus" / "wiki" / "squad_train_articles.txt", articles + "\n")
    wikitext = "\n".join(f" = Article {number} = \n {document(rng)}" for number in range(12))
    write(folder / "corpus" / "wiki" / "wikitext-2-valid.txt", wikitext + "\n")
    write(folder / "wiki.train.raw", wikitext + "\n")
    write(folder / "wiki.valid.raw", wikitext + "\n")
    lines = "".join(sentence(rng) + "\n" for _ in range(5))
    write(folder / "text.txt", f"{lines}\n" * 10)
    write(folder / "texts.txt", lines)
    write(folder / "sentences.txt", lines)
    texts = [{"text": sentence(rng)} for _ in range(5)]
    # my_task.yaml is a task of pairs.
    texts = [row | {"sentence1": row["text"], "sentence2": row["text"]} for row in texts]
    write_rows(folder / "texts.jsonl", texts)
    pairs = [{"question": sentence(rng), "answer": sentence(rng)} for _ in range(4)]
    pairs = [row | {"sentence1": row["question"], "sentence2": row["answer"]} for row in pairs]
    write_rows(folder / "pairs.jsonl", pairs)
    write(folder / "names.txt", "".join(f"item_{number}\n" for number in range(30)))
    ids = np.random.default_rng(0).integers(0, 30, size=(40, 12))
    np.save(folder / "ids.npy", ids)


def write_task_data(folder: Path, rng: random.Random) -> None:
    """Rows of the tasks that the pages name, in the forms of their data sets."""
    splits = {"train": 24, "validation": 8, "test": 8}
    for split, number in splits.items():
        labels = [-1 if split == "test" else index % 2 for index in range(number)]
        pairs = [
            {"idx": i, "sentence1": sentence(rng), "sentence2": sentence(rng)}
            for i in range(number)
        ]
        singles = [{"idx": i, "sentence": sentence(rng)} for i in range(number)]
        for task, rows in {"mrpc": pairs, "rte": pairs, "sst2": singles}.items():
            labelled = [row | {"label": label} for row, label in zip(rows, labels, strict=True)]
            write_rows(folder / task / f"{split}.jsonl", labelled)
        for suffix in ("",) if split == "train" else ("_matched", "_mismatched"):
            rows = [
                {"premise": sentence(rng), "hypothesis": sentence(rng), "idx": i}
                for i in range(number)
            ]
            labelled = [row | {"label": label} for row, label in zip(rows, labels, strict=True)]
            write_rows(folder / "mnli" / f"{split}{suffix}.jsonl", labelled)
        text = "-DOCSTART- O\n"
        for _ in range(number):
            words = sentence(rng)[:-1].split()
            tags = ["B-PER" if word in NAMES else "O" for word in words]
            text += "\n" + "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True))
        write(folder / "conll2003" / f"{split}.txt", text)
    for name in ("train-v1.1", "train-v2.0", "dev-v1.1", "dev-v2.0"):
        data = {"version": name[-3:], "data": [article(rng)]}
        write(folder / "squad" / f"{name}.json", json.dumps(data))
    for split in ("train", "val", "test"):
        write_swag(folder / "swag" / f"{split}.csv", rng)


def article(rng: random.Random) -> dict:
    """An article of SQuAD with four questions."""
    context = document(rng)
    questions = []
    for number in range(4):
        start = context.index(" ") + 1
        answer = {"text": context[start:].split()[0], "answer_start": start}
        question = {
            "id": f"q{number}{rng.random()}",
            "question": sentence(rng),
            "is_impossible": False,
        }
        questions.append(question | {"answers": [answer]})
    return {"title": "t", "paragraphs": [{"context": context, "qas": questions}]}


def write_swag(path: Path, rng: random.Random) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ["sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for number in range(12):
            row = {name: sentence(rng) for name in names[:-1]}
            writer.writerow(row | {"sent2": "She", "label": number % 4})


def link_repository(repository: Path, folder: Path) -> None:
    """Put the project's files into a folder: links, but a copy of docs/, into which some commands
    write.
    """
    for path in repository.iterdir():
        if path.name == "docs":
            shutil.copytree(path, folder / "docs", symlinks=True)
        elif path.name not in ("data", "runs", "build") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)


def make_workshop(repository: Path, folder: Path) -> None:
    """Fill a folder with what the pages' commands read, made by the recipes themselves."""
    rng = random.Random(0)
    link_repository(repository, folder)
    write_texts(folder, rng)
    write_task_data(folder / "DATA", rng)
    shutil.copytree(folder / "DATA", folder / "my_data")
    shutil.copytree(folder / "DATA" / "sst2", folder / "augmented" / "sst2")
    for name, columns, data in (
        ("my_task", "[sentence1, sentence2]", "mrpc"),
        ("tickets", "sentence", "sst2"),
    ):
        task = f"kind: sequence_classification\ntext_columns: {columns}\nlabels: [no, yes]\n"
        files = f"{{train: DATA/{data}/train.jsonl, validation: DATA/{data}/validation.jsonl}}"
        write(folder / f"{name}.yaml", f"{task}files: {files}\n")
    train = "tokenizer/train.py --files my_texts"
    run_python(f"{train} --vocab_size 300 --output_dir my_tokenizer", cwd=folder)
    run_python(f"{train} --algorithm byte_bpe --vocab_size 400 --output_dir my_bpe", cwd=folder)
    for name in ("vocab.txt", "bert-base-uncased-vocab.txt"):
        shutil.copy(folder / "my_tokenizer" / "vocab.txt", folder / name)
    shutil.copytree(folder / "my_tokenizer", folder / "data" / "paper_tokenizer")
    corpus = "--files my_texts --validation_fraction 0.2 --num_processes 1"
    prepare = f"recipes/prepare_corpus.py {corpus} --tokenizer my_tokenizer"
    run_python(f"{prepare} --output_dir my_store", cwd=folder)
    for name in STORES.split():
        shutil.copytree(folder / "my_store", folder / name)
    pretrain = "recipes/pretrain.py --config recipes/configs/pretrain/laptop.yaml --store my_store"
    pretrain += " --use_cpu true --max_steps 2 --global_train_batch_size 2 --max_eval_pairs 2"
    pretrain += " --per_device_train_batch_size 2"
    run_python(f"{pretrain} --output_dir runs/my_bert", cwd=folder)
    for name in MODELS.split():
        shutil.copytree(folder / "runs" / "my_bert", folder / name)
    # Deeper than my_bert, which README.md makes of two layers: a teacher has as many as its student
    # or more.
    run_python(f"{pretrain} --output_dir runs/bert_base --size mini", cwd=folder)
    # A student with as many heads as its teacher.
    run_python(f"{pretrain} --output_dir runs/my_student --size 2/64/4", cwd=folder)
    finetune = "recipes/finetune.py --data_dir DATA --use_cpu true --num_train_epochs 1"
    for task, model in {"mrpc": "my_bert", "sst2": "bert_base"}.items():
        paths = f"--model_name_or_path runs/{model} --output_dir runs/{task}"
        run_python(f"{finetune} --task {task} {paths}", cwd=folder)
    files = "--input_file=text.txt --output_file=examples.tfrecord --vocab_file=vocab.txt"
    run_python(f"recipes/create_pretraining_data.py {files}", cwd=folder)
    write_original(folder / "uncased_L-12_H-768_A-12", draw_variables())


def open_workshop(workshop: Path, folder: Path, outputs: set[str]) -> None:
    """Copy the workshop for one block of commands, without what they make themselves."""
    for path in workshop.iterdir():
        target = folder / path.name
        if path.is_symlink():
            target.symlink_to(os.readlink(path))
        elif path.is_dir():
            shutil.copytree(path, target, symlinks=True)
        else:
            shutil.copy(path, target)
    for name in outputs:
        path = folder / name
        if path.is_dir() and not path.is_symlink() and not name.startswith("docs"):
            shutil.rmtree(path)
        elif path.is_file() and not name.startswith("docs"):
            path.unlink()
