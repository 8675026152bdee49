r"""What the recipes put out, as hashes and numbers: recorded before the code is rebuilt, compared
after each step.

    python tests/golden/record.py \
        --output tests/golden/golden.json [--sections pretrain_fp32 ...] [--workspace FOLDER]

Everything runs through the command lines that a user types, on text and rows that are made here
from fixed seeds. Whole numbers and texts hold on every machine; floats to the bit only where
processor, threads and versions are those of the record.
"""

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from inputs import strange_texts, write_rows, write_text


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
PRETRAINING = """
    --size tiny --max_seq_length 48 --global_train_batch_size 16 --per_device_train_batch_size 8
    --learning_rate 0.001 --warmup_steps 5 --logging_steps 1 --max_eval_pairs 40 --eval_strategy no
    --disable_tqdm true --use_cpu true --config own.yaml
"""
FINETUNING = """
    --model_name_or_path base --max_seq_length 40 --doc_stride 8 --max_query_length 12
    --num_train_epochs 2 --learning_rate 0.001 --global_train_batch_size 8 --logging_steps 1
    --precision fp32 --fast_layers off --use_cpu true --disable_tqdm true --do_predict true
"""
Section = dict[str, Any]


def machine() -> dict[str, str]:
    """Return what decides the last bits of a float."""
    import torch
    import transformers

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = [line for line in lines if line.startswith("flags")]
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpu": hashlib.sha256(flags[0].encode() if flags else b"").hexdigest()[:16],
        "bf16": torch.backends.cpu.get_cpu_capability(),
    }


def sha(data: Any) -> str:
    """Return the hash of bytes, of a file, or of a value as JSON."""
    if isinstance(data, Path):
        data = data.read_bytes()
    if not isinstance(data, bytes):
        data = json.dumps(data, ensure_ascii=False, sort_keys=True, default=str).encode()
    return hashlib.sha256(data).hexdigest()[:24]


def weights(folder: Path) -> str:
    """Return the hash of the tensors of a checkpoint, whatever else its file says."""
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()[:24]


def trained(folder: Path) -> Section:
    """Return the losses and the weights of a run."""
    state = json.loads((folder / "trainer_state.json").read_text())
    losses = [line["loss"] for line in state["log_history"] if "loss" in line]
    return {"losses": losses, "weights": weights(folder)}


# Documents of the text that are not trained on.
HELD_OUT = (4, 19, 23, 31, 32, 50, 52)


class Workspace:
    """A folder in which the recipes run; what several sections need is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # Without a configuration the recipe would take the quickstart's, which may change.
        (folder / "own.yaml").write_text("seed: 12345\n", encoding="utf-8")
        # With WANDB_MODE transformers speaks on stdout.
        self.environment = {**os.environ, **ENVIRONMENT}
        self.environment.pop("WANDB_MODE", None)

    def command(self, script: str, flags: str, processes: int = 1) -> list[str]:
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone"]
            command += ["--nproc-per-node", str(processes)]
        return [*command, str(REPOSITORY / script), *flags.split()]

    def run(self, script: str, flags: str, processes: int = 1) -> str:
        done = subprocess.run(
            self.command(script, flags, processes),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            end = done.stderr[-3000:]
            raise RuntimeError(f"{script} {flags} ended with {done.returncode}:\n{end}")
        return done.stdout

    def once(self, name: str, script: str, flags: str, processes: int = 1) -> Path:
        """Return the folder `name`, made by a script where it is missing."""
        folder = self.folder / name
        if not folder.exists():
            self.run(script, f"{flags} --output_dir {name}", processes)
        return folder

    # What the sections share

    def text(self) -> Path:
        file = self.folder / "text.txt"
        if not file.exists():
            write_text(file)
        return file

    def tokenizer(self) -> Path:
        flags = f"--files {self.text().name} --vocab_size 500 --num_unused 9"
        return self.once("tokenizer", "tokenizer/train.py", flags)

    def store(self) -> Path:
        documents = self.text().read_text(encoding="utf-8").split("\n\n")
        held_out = [documents[number] for number in HELD_OUT]
        others = [document for document in documents if document not in held_out]
        for name, texts in (("train.txt", others), ("held_out.txt", held_out)):
            (self.folder / name).write_text("\n\n".join(texts), encoding="utf-8")
        flags = "--files train.txt --validation_files held_out.txt --sentences lines"
        flags += f" --tokenizer {self.tokenizer().name}"
        return self.once("store", "recipes/prepare_corpus.py", flags)

    def pretraining_flags(self, flags: str) -> str:
        return f"{PRETRAINING} --store {self.store().name} --max_steps {STEPS} {flags}"

    def pretrain(self, name: str, flags: str, processes: int = 1) -> Path:
        return self.once(name, "recipes/pretrain.py", self.pretraining_flags(flags), processes)

    def pretrained(self) -> Path:
        """Return the run that fine-tuning, features, export and conversion begin with."""
        return self.pretrain("base", "--precision fp32 --fast_layers off")

    def finetuned(self, task: str) -> Path:
        self.pretrained()
        rows = self.folder / "rows"
        if not rows.exists():
            write_rows(rows, self.text().read_text(encoding="utf-8").split())
        flags = f"--task_file rows/{task}.yaml {FINETUNING}"
        return self.once(f"tuned-{task}", "recipes/finetune.py", flags)


# Sections


def tokenizer(work: Workspace) -> Section:
    """Record the vocabulary, and ids and offsets of 2,000 texts."""
    from bert_recipes import load_tokenizer

    vocabulary = work.tokenizer() / "vocab.txt"
    texts = strange_texts(work.text().read_text(encoding="utf-8").split("\n"))
    section: Section = {"vocabulary": sha(vocabulary)}
    for name, do_lower_case in (("uncased", True), ("cased", False)):
        loaded = load_tokenizer(vocabulary, do_lower_case=do_lower_case)
        encoded = loaded(texts, return_offsets_mapping=True)
        section[name] = [sha(encoded["input_ids"]), sha(encoded["offset_mapping"])]
    return section


def instances(work: Workspace) -> Section:
    """Record the drop-in for create_pretraining_data.py: every byte of its files."""
    import pyarrow.parquet

    section = {}
    vocabulary = f"{work.tokenizer().name}/vocab.txt"
    flags = f"--input_file={work.text().name} --vocab_file={vocabulary} --max_seq_length=64"
    flags += " --dupe_factor=3 --max_predictions_per_seq=10"
    for suffix in ("tfrecord", "jsonl", "parquet"):
        for whole_word in ("False", "True"):
            name = f"instances-{whole_word}.{suffix}"
            form = f"--output_file={name} --do_whole_word_mask={whole_word}"
            work.run("recipes/create_pretraining_data.py", f"{flags} {form}")
            data: Any = work.folder / name
            if suffix == "parquet":
                data = pyarrow.parquet.read_table(data).to_pylist()
            section[name] = sha(data)
    return section


def store(work: Workspace) -> Section:
    """Record the token ids of a store, and the pairs that a user is shown."""
    shown = {}
    for masks in ("", "--whole_word true", "--selection bernoulli"):
        flags = f"--store {work.store().name} --num_pairs 20 {masks}"
        shown[masks] = sha(work.run("recipes/show_data.py", flags))
    return {"shown": shown, "ids": sorted(sha(file) for file in work.store().rglob("*.arrow"))}


def batches(work: Workspace) -> Section:
    """Record pairs, masks and order of three epochs, as the trainer gets them."""
    from bert_recipes.training.arguments import DataArguments
    from bert_recipes.training.pretraining import load_data

    section = {}
    masks: list[dict[str, Any]] = [{}, {"whole_word": True}, {"selection": "bernoulli"}]
    for settings in masks:
        arguments = DataArguments(store=str(work.store()), max_seq_length=48, **settings)
        data = load_data(arguments, 12345)
        rows = []
        for epoch in range(3):
            for index in range(data.train.num_pairs(epoch)):
                batch = data.collator([data.train[epoch, index]])
                rows.append({name: tensor.tolist() for name, tensor in sorted(batch.items())})
        section[str(settings)] = [len(rows), sha(rows)]
    return section


def pretrain(work: Workspace, layers: str, precision: str) -> Section:
    """Record a run in one process and in two."""
    section = {}
    for processes in (1, 2):
        flags = f"--fast_layers {layers} --precision {precision}"
        run = work.pretrain(f"run{processes}-{layers}-{precision}", flags, processes)
        section[f"processes {processes}"] = trained(run)
    return section


def killed(work: Workspace) -> Section:
    """Record a run that was killed after a checkpoint and started again: as never interrupted."""
    flags = work.pretraining_flags("--output_dir killed --precision bf16")
    flags += " --save_strategy steps --save_steps 10"
    folder, end = work.folder / "killed", time.monotonic() + 300
    run = subprocess.Popen(
        work.command("recipes/pretrain.py", flags),
        cwd=work.folder,
        env=work.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (folder / "checkpoint-20").exists() and time.monotonic() < end:
        if run.poll() is not None:
            break
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    if not (folder / "checkpoint-20").exists() or (folder / "all_results.json").exists():
        raise RuntimeError("the run had ended, or had no checkpoint, before it was killed")
    work.run("recipes/pretrain.py", flags)
    results = json.loads((folder / "all_results.json").read_text())
    return {**trained(folder), "goes on": results["resumed_at_step"] >= 20}


def phases(work: Workspace) -> Section:
    """Record both phases of the paper as one run, with longer inputs in the second."""
    flags = "--precision fp32 --phase2_steps 10 --phase2_max_seq_length 96"
    flags += " --phase2_per_device_train_batch_size 4"
    return trained(work.pretrain("phases", flags))


def instance_training(work: Workspace) -> Section:
    """Record the training from ready-made instances instead of a store."""
    instances(work)
    flags = PRETRAINING.replace("--max_seq_length 48", "--max_seq_length 64")
    flags += " --train_file instances-False.tfrecord --tokenizer tokenizer"
    flags += " --max_steps 10 --precision fp32"
    return trained(work.once("from-instances", "recipes/pretrain.py", flags))


def finetune(work: Workspace, task: str) -> Section:
    """Record a fine-tuning run, with its figures and its files of predictions."""
    folder = work.finetuned(task)
    files = [*folder.glob("predictions_*"), *folder.glob("*nbest*")]
    results = json.loads((folder / "all_results.json").read_text())
    metrics = {name: results[name] for name in results if name.startswith("eval")}
    del metrics["eval_seconds"]
    predictions = {file.name: sha(file) for file in files}
    return {**trained(folder), "predictions": predictions, "metrics": metrics}


def conversion(work: Workspace) -> Section:
    """Record Google's checkpoints in the Hub's form."""
    section = {}
    for name in ("pretraining", "classifier", "squad"):
        source = REPOSITORY / "tests" / "fixtures" / "google" / name
        flags = f"--tf_checkpoint {source}"
        folder = work.once(f"hub-{name}", "recipes/convert_checkpoint.py", flags)
        section[name] = [weights(folder), sha(folder / "config.json")]
    return section


def features(work: Workspace) -> Section:
    """Record vectors of tokens and of inputs, as a user's Parquet file has them."""
    import pyarrow.parquet

    section, lines = {}, work.text().read_text(encoding="utf-8").split("\n")[:20]
    (work.folder / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = f"--model_name_or_path {work.pretrained().name} --input_file texts.txt --use_cpu true"
    for pooling in ("tokens", "mean"):
        folder = f"features-{pooling}"
        output = f"--pooling {pooling} --output_dir {folder} --overwrite true"
        work.run("recipes/extract_features.py", f"{flags} {output}")
        rows: list[dict] = []
        for file in sorted((work.folder / folder).rglob("*.parquet")):
            rows += pyarrow.parquet.read_table(file).to_pylist()
        section[pooling] = [len(rows), sorted(rows[0]), sha(rows)]
    return section


def onnx(work: Workspace) -> Section:
    """Record the outputs of an exported graph for fixed ids."""
    import numpy as np
    import onnxruntime

    model = work.finetuned("pairs").name
    flags = f"--model_name_or_path {model} --format onnx --task_file rows/pairs.yaml"
    folder = work.once("onnx", "recipes/export.py", flags)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    ids = np.random.default_rng(5).integers(5, 200, (3, 24))
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.zeros_like(ids),
    }
    outputs = session.run(None, {item.name: inputs[item.name] for item in session.get_inputs()})
    return {"outputs": [output.round(4).tolist() for output in outputs]}


def folders(work: Workspace) -> Section:
    """Record the files of finished runs, the keys of their results, and their settings."""
    section = {}
    for folder in (work.pretrained(), work.finetuned("pairs"), work.finetuned("questions")):
        files = [file for file in folder.rglob("*") if file.is_file()]
        section[folder.name] = {
            "files": sorted(str(file.relative_to(folder)) for file in files),
            "keys": sorted(json.loads((folder / "all_results.json").read_text())),
            "settings": (folder / "run.yaml").read_text(encoding="utf-8").split("\n"),
        }
    return section


SECTIONS: dict[str, Callable[[Workspace], Section]] = {
    "tokenizer": tokenizer,
    "instances": instances,
    "store": store,
    "batches": batches,
    "pretrain_off_fp32": partial(pretrain, layers="off", precision="fp32"),
    "pretrain_off_bf16": partial(pretrain, layers="off", precision="bf16"),
    "pretrain_plain_fp32": partial(pretrain, layers="plain", precision="fp32"),
    "pretrain_kernels_fp32": partial(pretrain, layers="auto", precision="fp32"),
    "pretrain_kernels_bf16": partial(pretrain, layers="auto", precision="bf16"),
    "killed": killed,
    "phases": phases,
    "instance_training": instance_training,
    "finetune_pairs": partial(finetune, task="pairs"),
    "finetune_score": partial(finetune, task="score"),
    "finetune_tags": partial(finetune, task="tags"),
    "finetune_questions": partial(finetune, task="questions"),
    "finetune_choices": partial(finetune, task="choices"),
    "conversion": conversion,
    "features": features,
    "onnx": onnx,
    "folders": folders,
}
# What is the same on every machine; the others hold floats.
EXACT_EVERYWHERE = ("tokenizer", "instances", "store", "batches", "conversion", "folders")


def main() -> None:
    """Record the sections that are asked for, and leave the others as they are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=GOLDEN)
    parser.add_argument("--sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--workspace", type=Path, required=True)
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    work = Workspace(options.workspace.resolve())
    record = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name in options.sections:
        start = time.monotonic()
        record[name] = SECTIONS[name](work)
        if name not in EXACT_EVERYWHERE:
            record["machine"] = machine()  # whose floats are compared to the bit
        text = json.dumps(record, indent=1, sort_keys=True) + "\n"
        options.output.write_text(text, encoding="utf-8")
        seconds = time.monotonic() - start
        sys.stderr.write(f"{name}: {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
