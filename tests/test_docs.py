"""Documents are tested too: what they name must be there."""

import ast
import contextlib
import importlib
import io
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_recipes.command import find_scripts


ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")])
SETUP_FILES = sorted(
    path
    for folder in ("recipes", "tokenizer", "accelerate_configs", "paper")
    for path in (ROOT / folder).rglob("*.yaml")
)
SCRIPTS = sorted(
    path
    for folder in ("recipes", "tokenizer", "benchmarks", "paper")
    for path in (ROOT / folder).glob("*.py")
    if "__main__"
    in path.read_text(encoding="utf-8")  # benchmarks/ and paper/ have modules that scripts share
)

# What CONFIG=name of a make target stands for.
CONFIG_FOLDERS = {"pretrain": "recipes/configs/pretrain", "corpus": "recipes/configs/corpus"}
CONFIG_FOLDERS["tokenizer"] = "tokenizer/configs"
CONFIG_FOLDERS["babylm"] = CONFIG_FOLDERS["pretrain"]
# Scripts whose --config takes the names of files in a folder.
CONFIGS_BY_NAME = {
    "recipes/pretrain.py": "recipes/configs/pretrain",
    "recipes/show_data.py": "recipes/configs/pretrain",
    "recipes/finetune.py": "recipes/configs/finetune",
    "recipes/prepare_corpus.py": "recipes/configs/corpus",
    "recipes/prepare_on_cluster.py": "recipes/configs/corpus",
    "tokenizer/train.py": "tokenizer/configs",
}
# Scripts that also take the flags of another one.
WITH_FLAGS_OF_FINETUNE = (
    "recipes/sweep_finetuning.py",
    "recipes/glue_all.py",
    "benchmarks/compare_with_stock.py",
    "recipes/evaluate_checkpoint.py",
)

FENCE = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`]+)`")


def test_every_function_and_test_named_in_the_rules_exists(repository):
    text = (repository / "docs" / "rules.md").read_text(encoding="utf-8")
    functions = set(re.findall(r"`(bert_recipes[\w.]*):(\w+)`", text))
    tests = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))
    assert len(functions) >= 15
    assert len(tests) >= 25
    for module, name in functions:
        assert hasattr(importlib.import_module(module), name), f"{module}:{name}"
    for file, name in tests:
        tree = ast.parse((repository / file).read_text(encoding="utf-8"))
        assert name in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }, f"{file}::{name}"


def test_every_row_of_the_rules_names_source_function_and_test(repository):
    page = (repository / "docs" / "rules.md").read_text(encoding="utf-8")
    text = page.split("## Intended differences")[0]
    for row in re.findall(r"^\| (?!rule|---).*", text, re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert all(cells), row


@pytest.mark.parametrize("size", ["base", "large"])
def test_the_parameter_totals_in_the_rules_are_the_models(repository, size):
    import torch

    from bert_recipes.models.bert import BertForPreTraining
    from bert_recipes.models.sizes import count_parameters, pretraining_config

    text = (repository / "docs" / "rules.md").read_text(encoding="utf-8")
    for vocab_size in (30_000, 30_522):
        with torch.device("meta"):
            counts = count_parameters(
                BertForPreTraining(pretraining_config(size, vocab_size=vocab_size))
            )
        encoder = sum(
            number for name, number in counts.items() if not name.startswith("pre-training heads")
        )
        assert f"{encoder:,}" in text


# Links and files


def prose(page: Path) -> str:
    """The page without code, in which brackets mean something else."""
    return INLINE_CODE.sub("``", FENCE.sub("", page.read_text(encoding="utf-8")))


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(<?([^)\s>]+)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            name, _, heading = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), target
            assert not heading or heading in headings(file), target


def headings(page: Path) -> set[str]:
    """As GitHub calls them in links."""
    titles = re.findall(r"^#+ (.+)", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_file_of_ours_named_in_code_exists(page):
    folders = "recipes|configs|tokenizer|accelerate_configs|docs|tests|src|paper"
    named = {
        path
        for code in INLINE_CODE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        for path in re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.{{}},-]*", code)
    }
    places = (ROOT, page.parent)
    files = {file for path in named if "..." not in path for file in expand_braces(path)}
    assert not [file for file in files if not any((place / file).exists() for place in places)]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_placeholder_is_left(page):
    assert not re.findall(r"<!--.*?-->", page.read_text(encoding="utf-8"))


def expand_braces(text: str) -> list[str]:
    """Expand bert_{tiny,mini} to bert_tiny and bert_mini, as bash does."""
    match = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if match is None:
        return [text]
    head, tail = text[: match.start()], text[match.end() :]
    return [full for part in match[1].split(",") for full in expand_braces(head + part + tail)]


# Commands


def code_lines(path: Path) -> Iterator[str]:
    """The lines of a file that may be commands: code in pages, comments in YAML, docstrings of
    scripts.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        blocks = [
            *FENCE.findall(text),
            *(" ".join(code.split()) for code in INLINE_CODE.findall(FENCE.sub("", text))),
        ]
    elif path.suffix == ".yaml":
        blocks = ["\n".join(line[1:] for line in text.splitlines() if line.startswith("#"))]
    else:
        blocks = [ast.get_docstring(ast.parse(text)) or ""]
    for block in blocks:
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()


def commands(path: Path) -> Iterator[list[str]]:
    """The commands of a file that start something of this project, cut into words."""
    for line in code_lines(path):
        for part in line.split(" && "):
            if re.match(
                r"\s*(make|python3?|accelerate launch|bert-recipes|uv run|hf jobs)(\s|$)", part
            ):
                # Words for the reader, not for the shell: [--field value ...] and <target>.
                words = [
                    word
                    for text in shlex.split(part, comments=True)
                    for word in expand_braces(text)
                ]
                yield [
                    word
                    for word in words
                    if not word.startswith(("[", "<")) and not word.endswith(("]", "..."))
                ]


Flags = Callable[[str], set[str]]


@pytest.fixture(scope="session")
def helps():
    """What every script prints for --help_all."""
    texts = {}
    for path in SCRIPTS:
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
            patch.setattr(sys, "argv", [str(path), "--help_all"])
            patch.syspath_prepend(path.parent)
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(path), run_name="__main__")
        assert not ended.value.code, path
        texts[path.relative_to(ROOT).as_posix()] = output.getvalue()
    return texts


@pytest.fixture(scope="session")
def flags_of(helps):
    """The flags of a script."""

    def flags(script: str) -> set[str]:
        known = set(re.findall(r"^  (--[\w-]+)", helps[script], re.MULTILINE))
        assert "--config" in known, helps[script]
        return known | flags("recipes/finetune.py") if script in WITH_FLAGS_OF_FINETUNE else known

    return flags


def problems_of_script(words: list[str], flags_of: Flags) -> Iterator[str]:
    """What is wrong with `script.py --flag value ...`."""
    script, *rest = words
    if not (ROOT / script).is_file():
        yield f"no script {script}"
        return
    given = [word.split("=")[0] for word in rest if word.startswith("--") and " " not in word]
    yield from (
        f"{script} has no {flag}"
        for flag in given
        if flag not in ("--help", "--help_all", *flags_of(script))
    )
    configs = rest[rest.index("--config") + 1 :] if "--config" in rest else []
    for config in configs[:1]:
        by_name = ROOT / CONFIGS_BY_NAME.get(script, "") / f"{config}.yaml"
        is_there = (ROOT / config).is_file() or by_name.is_file()
        if not config.startswith("--") and not is_there:
            yield f"no configuration {config}"


def problems_of_command(words: list[str], flags_of: Flags) -> Iterator[str]:
    """What is wrong with `bert-recipes pretrain --flag value ...`."""
    scripts = find_scripts()
    if not words:
        return  # the list
    if words[0] not in scripts:
        yield f"no command {words[:1]}"
        return
    script = scripts[words[0]].relative_to(ROOT).as_posix()
    yield from problems_of_script([script, *words[1:]], flags_of)


def problems_of_launch(words: list[str], flags_of: Flags) -> Iterator[str]:
    """What is wrong with `accelerate launch --flag value ... script.py ...`."""
    from accelerate.commands.launch import launch_command_parser

    if "-m" in words:
        place = words.index("-m")
        assert words[place + 1] == "bert_recipes"
        yield from problems_of_command(words[place + 2 :], flags_of)
    else:
        place = find_script(words)
    known = launch_command_parser()._option_string_actions
    yield from (
        f"accelerate launch has no {word}"
        for word in words[:place]
        if word[:2] == "--" and word not in known
    )
    config = dict(itertools.pairwise(words)).get("--config_file")
    if config is not None and not (ROOT / config).is_file():
        yield f"no launch configuration {config}"
    if place < len(words) and words[place] != "-m":
        yield from problems_of_script(words[place:], flags_of)


def find_script(words: list[str]) -> int:
    """Return the place of the first script among words, or their number."""
    return next((number for number, word in enumerate(words) if word.endswith(".py")), len(words))


def script_of_target(target: str, makefile: str) -> str:
    """Return the script that gets the ARGS of a make target."""
    command = re.search(rf"^{target}:.*\n(?:(?:\t|ifeq).*\n)*?.*\$\(ARGS\)", makefile, re.MULTILINE)
    text = command[0].replace("$(FINETUNE)", "recipes/finetune.py") if command else ""
    scripts = re.findall(r"(?:recipes|tokenizer|paper|benchmarks)/\w+\.py", text)
    return scripts[-1] if scripts else ""


def problems_of_make(words: list[str], flags_of: Flags) -> Iterator[str]:
    """What is wrong with `make target NAME=value ...`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))
    settings = set(re.findall(r"^([A-Z_]+) *[?:]?=", makefile, re.MULTILINE))
    values = dict(word.split("=", 1) for word in words if "=" in word)
    target = next((word for word in words if "=" not in word), "help")
    if target not in targets:
        yield f"make has no target {target}"
    yield from (f"make knows no {name}=" for name in values if name not in settings)
    files = []
    if "LAUNCH" in values:
        files.append(f"accelerate_configs/{values['LAUNCH']}.yaml")
    if "CONFIG" in values:
        files.append(f"{CONFIG_FOLDERS[target]}/{values['CONFIG']}.yaml")
    yield from (f"make {target}: no {file}" for file in files if not (ROOT / file).exists())
    arguments = shlex.split(values.get("ARGS", ""))
    script = script_of_target(target, makefile)
    if arguments and script:
        script = "recipes/sweep_finetuning.py" if "SWEEP" in values else script
        yield from problems_of_script([script, *arguments], flags_of)
    elif arguments:
        paths = [argument.split("::")[0] for argument in arguments if argument[0] != "-"]
        yield from (f"no {path}" for path in paths if not (ROOT / path).exists())


def problems(words: list[str], flags_of: Flags) -> Iterator[str]:
    if words[0] == "make":
        yield from problems_of_make(words[1:], flags_of)
    elif words[0] == "accelerate":
        yield from problems_of_launch(words[2:], flags_of)
    elif words[0] == "bert-recipes":
        yield from problems_of_command(words[1:], flags_of)
    elif words[0] in ("uv", "hf"):
        place = find_script(words)
        if place < len(words):  # hf jobs has other commands
            yield from problems_of_script(words[place:], flags_of)
    elif words[1:2] and words[1].endswith(".py") and not words[1].startswith("tools/"):
        yield from problems_of_script(words[1:], flags_of)


def test_every_command_shown_could_be_typed(flags_of):
    seen, found = 0, []
    for path in [*PAGES, *SETUP_FILES, *SCRIPTS]:
        for words in commands(path):
            seen += 1
            found += [f"{page_id(path)}: {problem}" for problem in problems(words, flags_of)]
    assert seen >= 40
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("make pretrian", "make has no target pretrian"),
        ("bert-recipes pretrian", "no command ['pretrian']"),
        ("bert-recipes pretrain --config latop", "no configuration latop"),
        ("uv run recipes/pretrain.py --stores a", "pretrain.py has no --stores"),
        ("make pretrain CONFIG=bert_huge", "no recipes/configs/pretrain/bert_huge.yaml"),
        ("make pretrain LAUNCH=tpu", "no accelerate_configs/tpu.yaml"),
        ("make glue TASKS=base", "make knows no TASKS="),
        ('make show-data ARGS="--sizes base"', "show_data.py has no --sizes"),
        ("python recipes/count_params.py", "no script recipes/count_params.py"),
        ("python recipes/count_parameters.py --sizes base", "count_parameters.py has no --sizes"),
        (
            "python recipes/count_parameters.py --config missing.yaml",
            "no configuration missing.yaml",
        ),
        (
            "accelerate launch --config_file a.yaml recipes/count_parameters.py",
            "no launch configuration a.yaml",
        ),
        (
            "accelerate launch --config a recipes/count_parameters.py",
            "accelerate launch has no --config",
        ),
    ],
)
def test_a_wrong_command_would_be_found(tmp_path, flags_of, line, problem):
    page = tmp_path / "page.md"
    page.write_text(f"```bash\n{line}\n```\n")
    (words,) = commands(page)
    assert problem in "\n".join(problems(words, flags_of))
