r"""What the recipes put out, as hashes and numbers: recorded before the code is rebuilt, compared
after each step.

    python tests/golden/record.py \
        --output tests/golden/golden.json [--sections pretrain_fp32 ...] [--workspace FOLDER]

Everything runs through the command lines that a user types, on text and rows that are made here
from fixed seeds. Whole numbers and texts hold on every machine; floats to the bit only where
processor, threads and versions are those of the record.
"""

# ruff: noqa: B023, RUF001, T201

import argparse
import hashlib
import itertools
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 50
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
    "PYTHONPATH": str(REPOSITORY / "src"),
    "PYTHONHASHSEED": "0",
}
SMALL = [
    "--size",
    "tiny",
    "--max_seq_length",
    48,
    "--global_train_batch_size",
    16,
    "--per_device_train_batch_size",
    8,
]
SMALL += [
    "--learning_rate",
    1e-3,
    "--warmup_steps",
    5,
    "--logging_steps",
    1,
    "--max_eval_pairs",
    40,
    "--eval_strategy",
    "no",
]
SMALL += ["--disable_tqdm", "true", "--use_cpu", "true", "--store", "store", "--config", "own.yaml"]


def machine() -> dict[str, str]:
    """What decides the last bits of a float."""
    import torch
    import transformers

    cpu = next(
        (
            line
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("flags")
        ),
        "",
    )
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpu": hashlib.sha256(cpu.encode()).hexdigest()[:16],
        "bf16": torch.backends.cpu.get_cpu_capability(),
    }


def sha(data: Any) -> str:
    """Of bytes, of a file, or of a value as JSON."""
    if isinstance(data, Path):
        data = data.read_bytes()
    if not isinstance(data, bytes):
        data = json.dumps(data, ensure_ascii=False, sort_keys=True, default=str).encode()
    return hashlib.sha256(data).hexdigest()[:24]


def weights(folder: Path) -> str:
    """The tensors of a checkpoint, whatever else its file says."""
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()[:24]


class Workspace:
    """A folder in which the recipes run; what several sections need is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Without a configuration the recipe would take the quickstart's, which may change.
        (folder / "own.yaml").write_text("seed: 12345\n", encoding="utf-8")

    def command(self, script: str, *flags: object, processes: int = 1) -> list[str]:
        start = [sys.executable]
        if processes > 1:
            start += [
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(processes),
            ]
        return [*start, str(REPOSITORY / script), *map(str, flags)]

    def run(self, script: str, *flags: object, processes: int = 1, fails: bool = False) -> str:
        done = subprocess.run(
            self.command(script, *flags, processes=processes),
            cwd=self.folder,
            # With WANDB_MODE transformers speaks on stdout.
            env={
                name: value
                for name, value in {**os.environ, **ENVIRONMENT}.items()
                if name != "WANDB_MODE"
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode and not fails:
            raise RuntimeError(
                f"{script} {flags} ended with {done.returncode}:\n{done.stderr[-3000:]}"
            )
        return done.stdout

    def once(self, name: str, make: Callable[[], object]) -> Path:
        """The file or folder `name`, made where it is missing."""
        if not (self.folder / name).exists():
            make()
        return self.folder / name

    # What the sections share

    def text(self) -> Path:
        """60 documents of English-like sentences, with accents, capitals and numbers."""

        def make() -> None:
            rng = random.Random(7)
            syllables = [
                "ba",
                "ke",
                "lo",
                "mi",
                "nu",
                "ra",
                "sé",
                "ti",
                "vo",
                "zür",
                "an",
                "er",
                "ist",
                "ung",
                "th",
            ]
            words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(700)]
            marks = [1 / (rank + 3) for rank in range(len(words))]
            documents = []
            for _ in range(60):
                lines = []
                for _ in range(rng.randint(4, 30)):
                    chosen = rng.choices(words, marks, k=rng.randint(3, 18))
                    if rng.random() < 0.2:
                        chosen[rng.randrange(len(chosen))] = str(rng.randint(1, 2030))
                    lines.append(" ".join(chosen).capitalize() + rng.choice([".", ".", "?", "!"]))
                documents.append("\n".join(lines))
            (self.folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")

        return self.once("text.txt", make)

    def tokenizer(self) -> Path:
        flags = [
            "--files",
            self.text().name,
            "--output_dir",
            "tokenizer",
            "--vocab_size",
            500,
            "--num_unused",
            9,
        ]
        return self.once("tokenizer", lambda: self.run("tokenizer/train.py", *flags))

    def store(self) -> Path:
        flags = [
            "--files",
            self.text().name,
            "--tokenizer",
            self.tokenizer().name,
            "--output_dir",
            "store",
        ]
        flags += ["--validation_fraction", 0.2, "--sentences", "lines"]
        return self.once("store", lambda: self.run("recipes/prepare_corpus.py", *flags))

    def pretrained(self) -> Path:
        """The run that fine-tuning, features, export and conversion begin with."""
        return self.once(
            "base", lambda: self.pretrain("base", "--precision", "fp32", "--fast_layers", "off")
        )

    def pretrain(self, name: str, *flags: object, processes: int = 1) -> Path:
        self.store()
        settings = [*SMALL, "--max_steps", STEPS, "--output_dir", name, *flags]
        self.run("recipes/pretrain.py", *settings, processes=processes)
        return self.folder / name

    def rows(self) -> Path:
        """A small data set of each kind of task, with the YAML file of its task."""

        def make() -> None:
            rng = random.Random(11)
            words = self.text().read_text(encoding="utf-8").split()
            data = self.folder / "rows"
            data.mkdir()

            def sentence(least: int = 2, most: int = 14) -> str:
                return " ".join(rng.choices(words, k=rng.randint(least, most)))

            def answerable(number: int) -> dict:
                context = sentence(30, 90)
                start = rng.randrange(len(context.split()) - 3)
                answer = " ".join(context.split()[start : start + rng.randint(1, 3)])
                found = {"text": [answer], "answer_start": [context.index(answer)]}
                answers = found if number % 3 else {"text": [], "answer_start": []}
                return {
                    "id": f"q{number}",
                    "question": sentence(3, 8),
                    "context": context,
                    "answers": answers,
                }

            def tagged(_: int) -> dict:
                tokens = sentence(2, 20).split()
                inside = [False, *(len(word) % 3 > 0 for word in tokens)]
                tags = [
                    ("I-X" if was else "B-X") if now else "O"
                    for was, now in itertools.pairwise(inside)
                ]
                return {"tokens": tokens, "labels": tags}

            makers: dict[str, Callable[[int], dict]] = {
                "pairs": lambda n: {"first": sentence(), "second": sentence(), "label": n % 3},
                "score": lambda n: {
                    "first": sentence(),
                    "second": sentence(),
                    "label": round(rng.random() * 5, 2),
                },
                "tags": tagged,
                "questions": answerable,
                "choices": lambda n: {
                    "start": sentence(),
                    "label": n % 3,
                    **{name: sentence() for name in "abc"},
                },
            }
            heads = {
                "pairs": "kind: sequence_classification\ntext_columns: [first, second]\nlabels: "
                "[yes, no, perhaps]\n",
                "score": "kind: sequence_classification\nproblem_type: regression\nlabel_range: "
                "[0, 5]\ntext_columns: [first, second]\n",
                "tags": "kind: token_classification\nlabels: [O, B-X, I-X]\n",
                "questions": "kind: question_answering\nmetrics: squad_v2\n",
                "choices": "kind: multiple_choice\ntext_columns: start\nchoice_columns: [a, b, "
                "c]\n",
            }
            for name, make_row in makers.items():
                splits = []
                for split, number in (("train", 48), ("validation", 29), ("test", 17)):
                    lines = [json.dumps(make_row(index)) + "\n" for index in range(number)]
                    (data / f"{name}-{split}.jsonl").write_text("".join(lines), encoding="utf-8")
                    splits.append(f"{split}: {name}-{split}.jsonl")
                text = f"name: {name}\n{heads[name]}files: {{{', '.join(splits)}}}\n"
                (data / f"{name}.yaml").write_text(text, encoding="utf-8")

        return self.once("rows", make)

    def finetuned(self, name: str) -> Path:
        flags = [
            "--task_file",
            f"{self.rows().name}/{name}.yaml",
            "--model_name_or_path",
            self.pretrained().name,
        ]
        flags += [
            "--output_dir",
            f"tuned-{name}",
            "--max_seq_length",
            40,
            "--doc_stride",
            8,
            "--max_query_length",
            12,
        ]
        flags += [
            "--num_train_epochs",
            2,
            "--learning_rate",
            1e-3,
            "--global_train_batch_size",
            8,
            "--logging_steps",
            1,
        ]
        flags += [
            "--precision",
            "fp32",
            "--fast_layers",
            "off",
            "--use_cpu",
            "true",
            "--disable_tqdm",
            "true",
        ]
        flags += ["--do_predict", "true"]
        return self.once(f"tuned-{name}", lambda: self.run("recipes/finetune.py", *flags))


# Sections


def tokenizer(work: Workspace) -> dict[str, Any]:
    """The vocabulary, and ids and offsets of 2,000 texts."""
    from bert_recipes import load_tokenizer

    rng = random.Random(3)
    lines = work.text().read_text(encoding="utf-8").split("\n")
    strange = "aZé ĂŽ\u0301ß中文\u200b\u00ad'’—…[MASK]-9½ﬁ\t\u3000\U0001f600ﷺ"
    texts = [
        rng.choice(lines) + "".join(rng.choices(strange, k=rng.randint(0, 12))) for _ in range(1000)
    ]
    texts += [
        "".join(chr(rng.randrange(32, 0x3000)) for _ in range(rng.randint(1, 40)))
        for _ in range(1000)
    ]
    found: dict[str, Any] = {"vocabulary": sha(work.tokenizer() / "vocab.txt")}
    for lower in (True, False):
        made = load_tokenizer(work.tokenizer() / "vocab.txt", do_lower_case=lower)
        encoded = made(texts, return_offsets_mapping=True)
        found["uncased" if lower else "cased"] = [
            sha(encoded["input_ids"]),
            sha(encoded["offset_mapping"]),
        ]
    return found


def instances(work: Workspace) -> dict[str, Any]:
    """The drop-in for create_pretraining_data.py: every byte of its files."""
    found = {}
    for suffix in ("tfrecord", "jsonl", "parquet"):
        for whole in ("False", "True"):
            file = f"instances-{whole}.{suffix}"
            flags = [
                f"--input_file={work.text().name}",
                f"--output_file={file}",
                f"--do_whole_word_mask={whole}",
            ]
            flags += [
                f"--vocab_file={work.tokenizer().name}/vocab.txt",
                "--max_seq_length=64",
                "--dupe_factor=3",
            ]
            work.run("recipes/create_pretraining_data.py", *flags, "--max_predictions_per_seq=10")
            data: Any = work.folder / file
            if suffix == "parquet":
                import pyarrow.parquet

                data = pyarrow.parquet.read_table(data).to_pylist()
            found[file] = sha(data)
    return found


def store(work: Workspace) -> dict[str, Any]:
    """The token ids of a store, and the pairs that a user is shown."""
    shown = {}
    for extra in ((), ("--whole_word", "true"), ("--selection", "bernoulli")):
        shown[" ".join(extra)] = sha(
            work.run(
                "recipes/show_data.py", "--store", work.store().name, "--num_pairs", 20, *extra
            )
        )
    return {"shown": shown, "ids": sorted(sha(file) for file in work.store().rglob("*.arrow"))}


def batches(work: Workspace) -> dict[str, Any]:
    """Pairs, masks and order of three epochs, as the trainer gets them."""
    from bert_recipes.training.arguments import DataArguments
    from bert_recipes.training.pretraining import load_data

    found = {}
    for extra in ({}, {"whole_word": True}, {"selection": "bernoulli"}):
        data = load_data(DataArguments(store=str(work.store()), max_seq_length=48, **extra), 12345)
        rows = []
        for epoch in range(3):
            for index in range(data.train.num_pairs(epoch)):
                batch = data.collator([data.train[epoch, index]])
                rows.append({name: tensor.tolist() for name, tensor in sorted(batch.items())})
        found[str(extra)] = [len(rows), sha(rows)]
    return found


def _trained(folder: Path) -> dict[str, Any]:
    state = json.loads((folder / "trainer_state.json").read_text())
    losses = [line["loss"] for line in state["log_history"] if "loss" in line]
    return {"losses": losses, "weights": weights(folder)}


def _pretrain(*flags: object) -> Callable[[Workspace], dict[str, Any]]:
    def section(work: Workspace) -> dict[str, Any]:
        found = {}
        for processes in (1, 2):
            name = f"run{processes}-" + "-".join(
                str(flag) for flag in flags if not str(flag).startswith("--")
            )
            found[f"processes {processes}"] = _trained(
                work.once(name, lambda: work.pretrain(name, *flags, processes=processes))
            )
        return found

    return section


def killed(work: Workspace) -> dict[str, Any]:
    """Killed -9 after a checkpoint, and the same command again: as never interrupted."""
    work.store()
    settings = [*SMALL, "--max_steps", STEPS, "--output_dir", "killed", "--precision", "bf16"]
    settings += ["--save_strategy", "steps", "--save_steps", 10]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = work.command("recipes/pretrain.py", *settings)
    run = subprocess.Popen(command, cwd=work.folder, env={**os.environ, **ENVIRONMENT}, **silent)
    end = time.monotonic() + 300
    while (
        not (work.folder / "killed" / "checkpoint-20").exists()
        and run.poll() is None
        and time.monotonic() < end
    ):
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    if (work.folder / "killed" / "all_results.json").exists():
        raise RuntimeError("the run had ended before it was killed")
    work.run("recipes/pretrain.py", *settings)
    return _trained(work.folder / "killed")


def phases(work: Workspace) -> dict[str, Any]:
    """Both phases of the paper as one run, with longer inputs in the second."""
    flags = ["--precision", "fp32", "--phase2_steps", 10, "--phase2_max_seq_length", 96]
    return _trained(
        work.once(
            "phases",
            lambda: work.pretrain("phases", *flags, "--phase2_per_device_train_batch_size", 4),
        )
    )


def instance_training(work: Workspace) -> dict[str, Any]:
    """Training from ready-made instances instead of a store."""
    instances(work)
    settings = [flag for flag in SMALL if flag not in ("--store", "store")]
    settings += [
        "--train_file",
        "instances-False.tfrecord",
        "--tokenizer",
        "tokenizer",
        "--max_seq_length",
        64,
    ]
    settings += ["--max_steps", 10, "--output_dir", "from-instances", "--precision", "fp32"]
    work.once("from-instances", lambda: work.run("recipes/pretrain.py", *settings))
    return _trained(work.folder / "from-instances")


def _finetune(name: str) -> Callable[[Workspace], dict[str, Any]]:
    def section(work: Workspace) -> dict[str, Any]:
        folder = work.finetuned(name)
        files = {
            file.name: sha(file)
            for file in sorted(folder.glob("predictions_*")) + sorted(folder.glob("*nbest*"))
        }
        results = json.loads((folder / "all_results.json").read_text())
        measured = {
            key: value
            for key, value in results.items()
            if key.startswith("eval") and key != "eval_seconds"
        }
        return {**_trained(folder), "predictions": files, "metrics": measured}

    return section


def conversion(work: Workspace) -> dict[str, Any]:
    """Google's checkpoints to the Hub's form."""
    found = {}
    for name in ("pretraining", "classifier", "squad"):
        source = REPOSITORY / "tests" / "fixtures" / "google" / name
        work.once(
            f"hub-{name}",
            lambda: work.run(
                "recipes/convert_checkpoint.py",
                "--tf_checkpoint",
                source,
                "--output_dir",
                f"hub-{name}",
            ),
        )
        found[name] = [
            weights(work.folder / f"hub-{name}"),
            sha(work.folder / f"hub-{name}" / "config.json"),
        ]
    return found


def features(work: Workspace) -> dict[str, Any]:
    """Vectors of tokens and of inputs from two layers, as a user's Parquet file has them."""
    import pyarrow.parquet

    texts = work.folder / "texts.txt"
    texts.write_text(
        "\n".join(work.text().read_text(encoding="utf-8").split("\n")[:20]) + "\n", encoding="utf-8"
    )
    found = {}
    for pooling in ("tokens", "mean"):
        flags = [
            "--model_name_or_path",
            work.pretrained().name,
            "--input_file",
            texts.name,
            "--output_dir",
            f"features-{pooling}",
        ]
        work.run(
            "recipes/extract_features.py",
            *flags,
            "--pooling",
            pooling,
            "--overwrite",
            "true",
            "--use_cpu",
            "true",
        )
        rows: list[dict] = []
        for file in sorted((work.folder / f"features-{pooling}").rglob("*.parquet")):
            rows += pyarrow.parquet.read_table(file).to_pylist()
        found[pooling] = [len(rows), sorted(rows[0]), sha(rows)]
    return found


def onnx(work: Workspace) -> dict[str, Any]:
    """Outputs of an exported graph for fixed ids."""
    import numpy as np
    import onnxruntime

    work.finetuned("pairs")
    flags = [
        "--model_name_or_path",
        "tuned-pairs",
        "--format",
        "onnx",
        "--output_dir",
        "onnx",
        "--task_file",
        "rows/pairs.yaml",
    ]
    work.once("onnx", lambda: work.run("recipes/export.py", *flags))
    session = onnxruntime.InferenceSession(work.folder / "onnx" / "model.onnx")
    ids = np.random.default_rng(5).integers(5, 200, (3, 24))
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    outputs = session.run(None, {item.name: inputs[item.name] for item in session.get_inputs()})
    return {"outputs": [output.round(4).tolist() for output in outputs]}


def folders(work: Workspace) -> dict[str, Any]:
    """The files of finished runs, the keys of their results, and their resolved settings."""
    found = {}
    for folder in (work.pretrained(), work.finetuned("pairs"), work.finetuned("questions")):
        results = json.loads((folder / "all_results.json").read_text())
        found[folder.name] = {
            "files": sorted(
                str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()
            ),
            "keys": sorted(results),
            "settings": (folder / "run.yaml").read_text(encoding="utf-8").split("\n"),
        }
    return found


SECTIONS: dict[str, Callable[[Workspace], dict[str, Any]]] = {
    "tokenizer": tokenizer,
    "instances": instances,
    "store": store,
    "batches": batches,
    "pretrain_off_fp32": _pretrain("--fast_layers", "off", "--precision", "fp32"),
    "pretrain_off_bf16": _pretrain("--fast_layers", "off", "--precision", "bf16"),
    "pretrain_plain_fp32": _pretrain("--fast_layers", "plain", "--precision", "fp32"),
    "pretrain_kernels_fp32": _pretrain("--fast_layers", "auto", "--precision", "fp32"),
    "pretrain_kernels_bf16": _pretrain("--fast_layers", "auto", "--precision", "bf16"),
    "killed": killed,
    "phases": phases,
    "instance_training": instance_training,
    **{
        f"finetune_{name}": _finetune(name)
        for name in ("pairs", "score", "tags", "questions", "choices")
    },
    "conversion": conversion,
    "features": features,
    "onnx": onnx,
    "folders": folders,
}
# What is the same on every machine; the others hold floats.
EXACT_EVERYWHERE = ("tokenizer", "instances", "store", "batches", "conversion", "folders")


def main() -> None:
    """Record the sections that are asked for, keep the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=GOLDEN)
    parser.add_argument("--sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--workspace", type=Path, required=True)
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    work = Workspace(options.workspace.resolve())
    known = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name in options.sections:
        start = time.monotonic()
        known[name] = SECTIONS[name](work)
        known["machine"] = machine()
        options.output.write_text(
            json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
