"""Every figure and word of a card is in a file of the run, changes with it, and nothing else is there."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import safe_open
from scipy.stats import binomtest

from bert_recipes.config_file import read_tree
from bert_recipes.model_card import write_card


OTHERS = ("two_phases", "sequence_classification", "token_classification", "multiple_choice")
ALL = ("pretraining", "question_answering", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS))
NUMBER = re.compile(r"(?<![\w#])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# What is part of the project's own words.
OWN_WORDS = (
    "95% interval",
    "SHA-256",
    "CO2",
    "co2_eq_emissions",
    'inputs["input_ids"][0,',
    "argmax() + 1]",
    "softmax(-1)",
)


def facts_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "card_facts.json").read_text())["facts"]


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def read(folder: Path, file: str, key: str) -> Any:
    """A source's value, by other means than the card's."""
    path = folder / file
    if file == ".":
        return path.resolve().name
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as opened:
            tensors = [opened.get_tensor(name) for name in opened.keys()]  # noqa: SIM118
        return {
            "parameters": sum(tensor.numel() for tensor in tensors),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "types": "F32",
        }[key]
    if path.suffix not in (".json", ".yaml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "lines": len(lines)}[key]
    text = path.read_text(encoding="utf-8")
    # BaseLoader: every scalar as it is written, as the card shows settings.
    value = json.loads(text) if path.suffix == ".json" else yaml.load(text, yaml.BaseLoader)
    for part in key.split("/"):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


# Units in which the card gives what a file has in another one: what marks them in the card, and the factor.
UNITS = {"%": 100, " kB": 1e-3, " MB": 1e-6, " GB": 1e-9}


def says(name: str, shown: str, value: Any) -> bool:
    """Whether a text of the card says a value: the same words, or the same number up to how it is rounded and its unit."""
    if isinstance(value, bool):
        return shown == ("yes" if value else "no")
    if isinstance(value, list):
        return all(says(name, part, item) for part, item in zip(shown.split(", "), value, strict=True))
    text, plain = " ".join(str(value).replace("|", "\\|").split()), shown.strip("`")
    if not plain or plain == text:
        return bool(plain)
    if len(plain) >= 16 and text.startswith(plain):  # a hash is cut
        return True
    try:
        number = float(value)
    except (TypeError, ValueError):
        return text in shown or shown == text.replace("_", " ")  # a word may stand in a sentence
    if name.startswith("hours"):
        in_hours, in_seconds = NUMBER.findall(shown)
        return is_rounded(in_hours, number / 3600) and is_rounded(in_seconds, number)
    factor = next((factor for unit, factor in UNITS.items() if shown.endswith(unit)), 1)
    return any(is_rounded(found, number * factor) for found in NUMBER.findall(shown))


def is_rounded(found: str, number: float) -> bool:
    """Whether a number in the card is another one with some digits less."""
    digits, _, exponent = found.partition("e")
    half_of_last_digit = 0.5001 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(found.replace(",", "")) - number) <= half_of_last_digit


def wilson(right: int, rows: int) -> str:
    found = binomtest(right, rows).proportion_ci(method="wilson")
    return f"{found.low:.1%} to {found.high:.1%}"


DERIVED = {
    "examples a step": lambda micro, times, world: float(micro) * float(times) * float(world),
    "occupations of he": lambda *shares: sum(share < 0.5 for share in shares),
    "least P(she)": lambda *shares: min(shares),
    "greatest P(she)": lambda *shares: max(shares),
    "occupations probed": lambda *shares: len(shares),
    "occupations above the yardstick": lambda usual, *shares: sum(share > usual for share in shares),
    "energy": lambda watts, seconds: float(watts) / 1000 * seconds / 3600,
    "CO2": lambda watts, seconds, grams: float(watts) / 1000 * seconds / 3600 * float(grams),
    "hours with an estimate": lambda known, total: known if known < total else "all",
    "hardly learned": lambda loss, unigram: "is above that" if loss - unigram > 0.1 else "is about that",
    "no better than the larger class": lambda accuracy, pairs, majority: "Nothing shows",
    "next-sentence interval": lambda accuracy, pairs: wilson(round(accuracy * pairs), round(pairs)),
    "interval": lambda low, high: f"{low:.4f} to {high:.4f}",
}
# What the card says in words of its own where a file holds one value.
SAID = {
    "CO2": lambda kilograms: kilograms * 1000,
    "no capitals": lambda lowers: "makes all letters small" if lowers else "keeps capitals",
    "how the checkpoint was chosen": lambda best: "chosen by a figure" if best == "true" else "the last one",
    "pipeline in the head": lambda kind: kind.replace("_", "-").replace("sequence-", "text-"),
    "metric in the head": lambda name: {"entities": "seqeval", "pearson": "pearsonr"}.get(name, name),
}


@pytest.mark.parametrize("kind", ALL)
def test_every_fact_is_what_its_source_says_and_stands_in_the_card(carded, kind):
    folder = carded(kind)
    facts, card = facts_of(folder), card_of(folder)
    assert len(facts) >= 40
    words = set(re.sub(r"[`|]", " ", card).split())
    for fact in facts:
        values = [read(folder, source["file"], source["key"]) for source in fact["sources"]]
        if fact["name"] == "held-out words of the example":
            before, after = json.loads(fact["shown"]).split("[MASK]")
            assert values[0].startswith(before)
            assert after in values[0]
        elif fact["name"] == "words of the example":
            assert set(json.loads(fact["shown"]).split()) <= {*vocabulary_of(folder), "[MASK]"}
        else:
            made_by = SAID.get(fact["name"], lambda value: value) if len(values) == 1 else DERIVED[fact["name"]]
            assert says(fact["name"], fact["shown"], made_by(*values)), fact
        shown = fact["shown"].strip('`"')
        head = " in the head" in fact["name"] or "of the results" in fact["name"]
        assert fact["shown"] in card or shown in words or (head and str(yaml_number(shown)) in card), fact


def yaml_number(text: str) -> Any:
    """A number as YAML writes it: 1e-05 is 1.0e-05 there."""
    try:
        return yaml.safe_dump(float(text)).split("\n")[0]
    except ValueError:
        return text


def vocabulary_of(folder: Path) -> list[str]:
    return (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("kind", ALL)
def test_no_number_stands_in_the_card_that_is_no_fact(carded, kind):
    folder = carded(kind)
    text = card_of(folder)
    for words in OWN_WORDS:
        text = text.replace(words, " ")
    for shown in sorted({fact["shown"] for fact in facts_of(folder)}, key=len, reverse=True):
        for words in {shown, str(yaml_number(shown))}:
            # As a whole: the 1 of a fact is not the 1 of 12 or of 1.5.
            text = re.sub(rf"(?<![\w.,]){re.escape(words)}(?!\w|[.,]\d)", " ", text)
    left = [line for line in text.splitlines() if NUMBER.search(line)]
    assert not left


@pytest.mark.parametrize("kind", ALL)
def test_no_cell_and_no_section_is_empty_or_says_that_something_is_missing(carded, kind):
    text = re.sub(r"```python\n.*?```", "", card_of(carded(kind)), flags=re.DOTALL)
    for word in ("None", "null", "nan", "More information", "[More", "unknown", "N/A", "TODO", "False", "True"):
        assert not re.search(rf"(?<![\w/.-]){re.escape(word)}(?![\w-])", text), word
    assert not re.search(r"## [^\n]+\n+(##|\Z)", text)
    # A table's first column always says something.
    assert not [
        line for line in text.splitlines() if re.match(r"\|\s*\|", line) and line.strip("| ") and "---" not in line
    ]


def test_the_passes_over_the_data_are_those_of_both_phases(carded, english_store):
    from bert_recipes.arguments import DataArguments
    from bert_recipes.pretraining import load_data

    folder = carded("two_phases")
    settings = [DataArguments(store=str(english_store), max_seq_length=length) for length in (32, 48)]
    short, long = (load_data(each, seed=12345).train.num_pairs(0) for each in settings)
    passes = 4 * 8 / short + 2 * 4 / long
    assert json.loads((folder / "all_results.json").read_text())["epoch"] == pytest.approx(passes)
    assert f"| passes over the data | {passes:.2f} |" in card_of(folder)
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    epochs = [line["epoch"] for line in history if "loss" in line]
    assert epochs == sorted(epochs)
    assert len(epochs) == 6


# Values that are changed to see that the card follows


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 1 if abs(value) >= 1 or value == 0 else value / 3
    if isinstance(value, list):
        return [*value, "another"]
    try:
        number = float(value)
    except ValueError:
        return f"other {value}"
    return str(int(number) * 2 + 1) if number.is_integer() else repr(number / 3)


# They decide what is written at all, or are checked: another value makes another card, or none.
STRUCTURAL = {"architectures/0", "license", "language", "kind", "metrics", "max_position_embeddings", "hub_dataset"}


def write_value(folder: Path, file: str, key: str) -> None:
    path = folder / file
    text = path.read_text(encoding="utf-8")
    content = json.loads(text) if path.suffix == ".json" else read_tree(path)[0]
    parts = key.split("/")
    place = content
    for part in parts[:-1]:
        place = place[int(part)] if isinstance(place, list) else place[part]
    last: Any = int(parts[-1]) if isinstance(place, list) else parts[-1]
    place[last] = changed(place[last])
    dumped = json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content, sort_keys=False)
    path.write_text(dumped, encoding="utf-8")


@pytest.mark.parametrize("kind", ALL)
def test_another_value_in_a_source_makes_another_card(copy_of, kind):
    folder = copy_of(kind)
    before = card_of(folder)
    sources = {(source["file"], source["key"]) for fact in facts_of(folder) for source in fact["sources"]}
    tried = 0
    for file, key in sorted(sources):
        if Path(file).suffix not in (".json", ".yaml") or key in STRUCTURAL or is_left_out(file, key):
            continue
        original = (folder / file).read_bytes()
        write_value(folder, file, key)
        write_card(folder)
        assert card_of(folder) != before, (file, key)
        (folder / file).write_bytes(original)
        tried += 1
    write_card(folder)
    assert card_of(folder) == before
    assert tried >= 30


def is_left_out(file: str, key: str) -> bool:
    """The rows of the probe are alike: a few will do. What is called otherwise is another occupation."""
    row = re.match(r"rows/(\d+)/", key) if file == "bias_probe.json" else None
    return row is not None and (int(row[1]) > 2 or key.endswith("occupation"))


@pytest.mark.parametrize("file", ["vocab.txt", "model.safetensors"])
def test_other_bytes_make_another_hash(copy_of, file):
    folder = copy_of("pretraining")
    before = card_of(folder)
    data = bytearray((folder / file).read_bytes())
    data[-2] ^= 1
    (folder / file).write_bytes(data)
    if file == "vocab.txt":
        (folder / "tokenizer.json").unlink()  # the two must say the same
    write_card(folder)
    assert hashlib.sha256(data).hexdigest() in card_of(folder)
    assert hashlib.sha256(data).hexdigest() not in before


@pytest.mark.parametrize("kind", ALL)
def test_the_folder_of_the_machine_is_nowhere_in_the_card(carded, english_store, kind):
    text = card_of(carded(kind)) + (carded(kind) / "card_facts.json").read_text()
    assert str(carded(kind).parent) not in text
    assert str(english_store.parent) not in text
    assert "/tmp" not in text


def test_a_section_without_a_fact_is_left_out(copy_of):
    folder = copy_of("pretraining")
    results = json.loads((folder / "all_results.json").read_text())
    kept = {name: results[name] for name in ("train_steps",)}
    (folder / "all_results.json").write_text(json.dumps(kept))
    for name in ("bias_probe.json", "card.yaml", "model.safetensors", "tokenizer_config.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "runs", ignore_errors=True)
    text = write_card(folder).read_text()
    for title in ("Results", "Training data", "Hardware and hours", "Licence"):
        assert f"## {title}" not in text
    assert "P(she)" not in text
    assert "license:" not in text
    assert "model-index" not in text
    assert "## Training" in text
