"""A run is configured by one flat YAML file and flags that win over it; what cannot be read is one
clear line.
"""

import dataclasses
import enum
from pathlib import Path
from typing import Literal

import pytest
import yaml
from transformers import TrainingArguments

from bert_recipes.config import parse_arguments, save_config
from bert_recipes.errors import InputError
from bert_recipes.finetuning.arguments import TaskArguments
from bert_recipes.settings import option
from bert_recipes.yaml_files import read_tree


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Small:
    files: list[str] = dataclasses.field(default_factory=list)
    name: str = "x"
    folder: Path | None = None
    rate: float = 0.1
    maximum: float | None = 1.0
    steps: int = 1
    limit: int | None = None
    flag: bool = False
    switch: bool = True
    maybe: bool | None = None
    mode: Literal["fast", "slow", "no"] = "fast"
    color: Color = Color.RED
    extra: dict | None = None
    api_key: str | None = None


@dataclasses.dataclass
class Needy:
    store: str
    size: int = 0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size is {self.size}; allowed: 0 or more")


@pytest.fixture
def parse(tmp_path: Path):
    """Parse a YAML text (None for no file) and flags into one dataclass."""

    def parse_one(text: str | bytes | None, *flags: str, kind: type = Small):
        if text is not None:
            path = tmp_path / "run.yaml"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            flags = ("--config", str(path), *flags)
        return parse_arguments(kind, argv=flags)[0]

    return parse_one


# Values


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("rate: 2e-5", 2e-5),
        ("rate: 1E3", 1000.0),
        ("rate: 3", 3.0),
        ("rate: .5", 0.5),
        ("rate: .inf", float("inf")),
        ("rate: '2e-5'", 2e-5),
        ("steps: 1_000_000", 1_000_000),
        # YAML 1.1 would read octal and base 60.
        ("steps: 012", 12),
        ("name: 1:30", "1:30"),
        ("name: 1_000", "1_000"),
        ("name: 007", "007"),
        # YAML 1.1 would read booleans.
        ("name: no", "no"),
        ("name: on", "on"),
        ("mode: no", "no"),
        ("name: 'true'", "true"),
        ("name: None", "None"),
        ("flag: yes", True),
        ("flag: on", True),
        ("switch: off", False),
        ("maybe: no", False),
        ("limit: null", None),
        ("limit: None", None),
        ("limit: ~", None),
        ("limit:", None),
        ("maximum: null", None),
        ("folder: runs/x", Path("runs/x")),
        ("color: blue", Color.BLUE),
        ("files: [a, b]", ["a", "b"]),
        ("files:\n  - a\n  - no", ["a", "no"]),
        ("files: a", ["a"]),
        ("extra: {lr: 1e-6, n: 3, b: true}", {"lr": 1e-6, "n": 3, "b": True}),
        ("extra:\n  lr: 1e-6", {"lr": 1e-6}),
    ],
)
def test_yaml_values_are_read_by_the_type_of_their_field(parse, line: str, value: object):
    result = getattr(parse(line), line.split(":")[0])
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--rate", "2e-5"], "rate", 2e-5),
        (["--steps=7"], "steps", 7),
        (["--limit", "null"], "limit", None),
        (["--flag"], "flag", True),
        (["--flag", "false"], "flag", False),
        (["--no_switch"], "switch", False),
        (["--switch", "no"], "switch", False),
        (["--maybe", "true"], "maybe", True),
        (["--files", "a", "b"], "files", ["a", "b"]),
        (["--color", "blue"], "color", Color.BLUE),
        (["--extra", '{"a": 1e-3}'], "extra", {"a": 1e-3}),
    ],
)
def test_flags_are_read_by_the_same_rules(parse, flags: list[str], field: str, value: object):
    assert getattr(parse(None, *flags), field) == value


def test_flags_win_over_the_file_and_the_file_over_defaults(parse):
    result = parse("rate: 0.5\nsteps: 5\n", "--steps", "6")
    assert (result.rate, result.steps, result.name) == (0.5, 6, "x")


def test_a_flag_wins_even_where_it_repeats_the_default(parse):
    assert parse("steps: 5\n", "--steps", "1").steps == 1


def test_default_config_is_read_only_without_config(tmp_path: Path):
    default, other = tmp_path / "default.yaml", tmp_path / "other.yaml"
    default.write_text("steps: 2\nrate: 0.2\n")
    other.write_text("rate: 0.3\n")
    assert parse_arguments(Small, argv=["--steps", "4"], default_config=default)[0].rate == 0.2
    (result,) = parse_arguments(Small, argv=["--config", str(other)], default_config=default)
    assert (result.steps, result.rate) == (1, 0.3)


def test_several_dataclasses_share_one_flat_file(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("store: s\nsteps: 3\n")
    small, needy = parse_arguments(Small, Needy, argv=["--config", str(path), "--size", "4"])
    assert (small.steps, needy.store, needy.size) == (3, "s", 4)


@dataclasses.dataclass
class Words:
    """A list of texts, and a number."""

    names: list[str] | None = None
    threshold: float = 0.0


def test_words_of_a_list_may_be_true_and_false_and_numbers_may_have_exponents():
    argv = ["--names", "false", "true", "--threshold", "-1e-3"]
    (result,) = parse_arguments(Words, argv=argv)
    assert (result.names, result.threshold) == (["false", "true"], -0.001)
    assert parse_arguments(Words, argv=["--names", "true"])[0].names == ["true"]
    assert parse_arguments(Words, argv=["--threshold", "-.5"])[0].threshold == -0.5


def test_training_arguments_take_mappings_and_words_that_yaml_calls_booleans(parse):
    text = (
        "use_cpu: true\nlr_scheduler_kwargs:\n  num_decay_steps: 10\neval_strategy: "
        "no\nsave_strategy: no\n"
    )
    result = parse(text, kind=TrainingArguments)
    assert result.lr_scheduler_kwargs == {"num_decay_steps": 10}
    assert (result.eval_strategy.value, result.save_strategy.value) == ("no", "no")


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("{0: 1, 1: 5}", {"0": 1, "1": 5}),
        ("{no: 1, yes: 3}", {"no": 1, "yes": 3}),
    ],
)
def test_names_of_classes_are_as_they_are_written(tmp_path: Path, text, weights):
    path = tmp_path / "run.yaml"
    path.write_text(f"task: sst2\nclass_weights: {text}\n")
    (result,) = parse_arguments(TaskArguments, argv=["--config", str(path)])
    assert result.class_weights == weights


# Mistakes


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rat: 1", ["line 1", "'rat'", "did you mean rate?"]),
        ("steps: 1\n\nstepz: 1", ["line 3", "'stepz'", "did you mean steps?"]),
        ("qqqq: 1", ["line 1", "'qqqq'", "--help"]),
        ("steps: 1\nrate: 1\nsteps: 2", ["line 3", "'steps'", "second time"]),
        ("rate: fast", ["line 1", "rate", "'fast'", "a number"]),
        ("steps: 3.5", ["steps", "'3.5'", "a whole number"]),
        ("flag: perhaps", ["flag", "'perhaps'", "true or false"]),
        ("mode: quick", ["mode", "'quick'", "fast, slow, no"]),
        ("color: green", ["color", "'green'", "red, blue"]),
        ("name: true", ["name", "'true'", "text"]),
        ("rate: null", ["rate", "'null'", "a number"]),
        ("rate: [1, 2]", ["rate", "list of 2", "a number"]),
        ("rate: {a: 1}", ["rate", "a mapping", "a number"]),
        ("files: [[a]]", ["files", "list of 1", "text"]),
        ("training:\n  rate: 1", ["line 1", "'training'", "section", "flat"]),
        ("", ["no settings"]),
        ("# only a comment\n", ["no settings"]),
        ("rate:1", ["line 1", "with the space"]),
        ("- rate", ["line 1", "field: value"]),
        ("rate: 1\n\tsteps: 2", ["line 2", "\\t"]),
        ("name: a: b", ["line 1", "not valid YAML"]),
        ("files: [a", ["line", "not valid YAML"]),
        (b"rate: 1\nname: \xe9", ["UTF-8", "0xe9"]),
        ("extra: {a: !!python/object/apply:os.getcwd []}", ["line 1", "python/object"]),
        ("? [a]\n: 1", ["line 1", "a key must be"]),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_file_line_key_and_remedy(
    parse, text: str | bytes, parts: list[str]
):
    with pytest.raises(InputError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    for part in ["run.yaml", *parts]:
        assert part in message


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--rat", "1"], ["--rat;", "did you mean --rate?"]),
        # No abbreviations: a new field must not change what an old command means.
        (["--lim", "1"], ["unknown option --lim"]),
        (["--steps", "many"], ["--steps", "'many'", "a whole number"]),
        (["--steps"], ["--steps", "expected one argument"]),
        (["--mode", "quick"], ["--mode", "'quick'", "fast, slow, no"]),
        (["run.yaml"], ["'run.yaml'", "--config run.yaml"]),
        (["5"], ["unexpected argument '5'"]),
        (["--config", "/no/such.yaml"], ["/no/such.yaml", "no such file"]),
        (["--config", "a", "--config", "b"], ["--config", "2 times"]),
        (["--extra", '{"a": '], ["--extra", "a mapping"]),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_names_the_flag(
    parse, flags: list[str], parts: list[str]
):
    with pytest.raises(InputError) as caught:
        parse(None, *flags)
    for part in parts:
        assert part in str(caught.value)


def test_a_missing_config_names_its_neighbours(tmp_path: Path):
    (tmp_path / "base.yaml").write_text("steps: 1\n")
    with pytest.raises(InputError, match=r"no such file; .* holds base\.yaml"):
        parse_arguments(Small, argv=["--config", str(tmp_path / "bass.yaml")])


def test_a_required_field_may_come_from_the_file_and_is_asked_for_otherwise(parse):
    assert parse("store: s", kind=Needy).store == "s"
    with pytest.raises(InputError, match="--store"):
        parse("size: 1", kind=Needy)


def test_a_value_that_the_dataclass_refuses_is_the_users_mistake(parse):
    with pytest.raises(InputError, match="size is -1; allowed: 0 or more"):
        parse(None, "--store", "s", "--size", "-1", kind=Needy)


@dataclasses.dataclass
class Sized(Needy):
    """Choose the size."""

    width: int = option(1, "how wide", is_common=True)


def help_of(flag: str, capsys, *classes: type) -> str:
    with pytest.raises(SystemExit):
        parse_arguments(*classes, argv=[flag])
    return capsys.readouterr().out


def test_help_shows_every_choice_and_a_slip_is_named_with_the_nearest_option(capsys):
    shown = help_of("--help", capsys, TrainingArguments)
    assert "--eval_strategy {no,steps,epoch}" in shown.replace("\n", " ")
    assert "--config FILE" in shown
    message = "^unknown option --learning_rat; did you mean --learning_rate\\?$"
    with pytest.raises(InputError, match=message):
        parse_arguments(TrainingArguments, argv=["--learning_rat", "1"])


def test_help_lists_the_common_options_and_names_the_way_to_all(capsys):
    listed = help_of("--help", capsys, Sized)
    for words in ("--config FILE", "--width", "--help_all lists all 3 options"):
        assert words in listed
    assert "--store" not in listed


def test_help_lists_all_options_of_a_class_that_marks_none(capsys):
    listed = help_of("--help", capsys, Needy)
    assert "--store" in listed
    assert "--help_all" not in listed


def test_help_all_lists_each_class_and_the_librarys_last(capsys):
    listed = help_of("--help_all", capsys, TrainingArguments, Sized)
    words = [
        "--config FILE",
        "Needy",
        "--store",
        "Choose the size",
        "--width",
        "other options of transformers.TrainingArguments",
        "--optim_args",
    ]
    places = [listed.index(word) for word in words]
    assert places == sorted(places)
    assert listed.count("--width") == 1


# Saving


def test_saved_training_arguments_read_back_to_the_same_values(tmp_path: Path):
    flags = [
        "--output_dir",
        str(tmp_path),
        "--use_cpu",
        "--learning_rate",
        "2e-5",
        "--eval_strategy",
        "steps",
    ]
    flags += [
        "--lr_scheduler_kwargs",
        '{"num_decay_steps": 10}',
        "--report_to",
        "tensorboard",
        "--run_name",
        "no",
    ]
    (before,) = parse_arguments(TrainingArguments, argv=flags)
    save_config(tmp_path / "config.yaml", before)
    (after,) = parse_arguments(TrainingArguments, argv=["--config", str(tmp_path / "config.yaml")])
    assert after.to_dict() == before.to_dict()
    assert (after.learning_rate, after.run_name, after.eval_strategy) == (
        2e-5,
        "no",
        before.eval_strategy,
    )


def test_saved_values_of_every_type_read_back(tmp_path: Path):
    before = Small(
        files=["a b", "no", "1"],
        name="multi\nline: \u00e9 # x",
        folder=Path("runs/x"),
        rate=1e-7,
        maximum=None,
        limit=3,
        flag=True,
        switch=False,
        maybe=False,
        mode="no",
        color=Color.BLUE,
        extra={"a": 1e-9, "b": [1, 2]},
    )
    needy = Needy(store="null")
    save_config(tmp_path / "config.yaml", before, needy)
    assert parse_arguments(Small, Needy, argv=["--config", str(tmp_path / "config.yaml")]) == (
        before,
        needy,
    )


def test_saved_configuration_is_plain_flat_yaml_without_none_and_secrets(tmp_path: Path):
    path = tmp_path / "config.yaml"
    save_config(path, Small(api_key="hush"), TrainingArguments(use_cpu=True, hub_token="hf_secret"))
    text = path.read_text()
    assert "hush" not in text
    assert "hf_secret" not in text
    values = yaml.safe_load(text)
    assert "limit" not in values
    assert "local_rank" not in values
    assert values["maximum"] == 1.0
    assert values["learning_rate"] == 5e-5
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


ALIASES = "\n".join(
    f"{name}: &{name} [{', '.join([before] * 10)}]"
    for before, name in zip(["x", *(f"*{c}" for c in "abcdefgh")], "abcdefghi", strict=True)
)


@pytest.mark.parametrize("text", [ALIASES, "a: &a [*a]\n", "a: &a {b: *a}\n"])
def test_aliases_that_stand_for_a_billion_values_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    monkeypatch.setattr("bert_recipes.yaml_files.MAX_VALUES", 10_000)
    path = tmp_path / "task.yaml"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"task\.yaml: its aliases \(\*name\) stand for more than 10,000 values"
    ):
        read_tree(path)
    with pytest.raises(InputError, match="its aliases"):
        parse_arguments(Small, argv=["--config", str(path)])


def test_aliases_are_what_their_anchors_hold(tmp_path: Path):
    path = tmp_path / "task.yaml"
    path.write_text("a: &a [x, y]\nb: *a\n")
    assert read_tree(path)[0] == {"a": ["x", "y"], "b": ["x", "y"]}
