"""The built-in tasks: a file rows/NAME.yaml each, in the form that a user's own task has.

They are GLUE (Wang et al. 2019) with its diagnostic set AX, SQuAD, SWAG, CoNLL-2003 and XNLI.

Sources of the definitions of GLUE:
    columns, labels and their order: Hub data set nyu-mll/glue;
    layout of the TSV files: the official download (gluebenchmark.com/tasks), as
        huggingface/datasets' glue.py reads it;
    rows of the splits: the data set's card; rows of the test files: gluebenchmark.com/submit;
    metrics: GLUE paper, Table 1; results: BERT, Devlin et al. 2019, Table 1, BERT-base.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

from bert_recipes.errors import InputError, did_you_mean
from bert_recipes.tasks.task import Task
from bert_recipes.tasks.task_file import read_task_file


_FOLDER = Path(__file__).with_name("rows")
_GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
_NAMES = (*_GLUE, "squad", "squad_v2", "swag", "conll2003")
# Other names that people give to the same data, letters and digits only.
_ALIASES = {
    "squad2": "squad_v2",
    "squad20": "squad_v2",
    "squadv11": "squad",
    "conll": "conll2003",
    "ner": "conll2003",
    "diagnostic": "ax",
    "glueax": "ax",
}
XNLI_LANGUAGES = (
    "ar",
    "bg",
    "de",
    "el",
    "en",
    "es",
    "fr",
    "hi",
    "ru",
    "sw",
    "th",
    "tr",
    "ur",
    "vi",
    "zh",
)


def list_tasks() -> tuple[str, ...]:
    """Return the names of the tasks, GLUE first.

    XNLI's 15 languages, `xnli_en` and so on, are not among them.

    Example:
        >>> list_tasks()[:3]
        ('cola', 'sst2', 'mrpc')
    """
    return _NAMES


@cache
def get_task(name: str) -> Task:
    """Return a task by its name; `InputError` with the nearest one where there is none.

    Example:
        >>> get_task("mnli").labels
        ('entailment', 'neutral', 'contradiction')
    """
    family, _, language = name.partition("_")
    if family == "xnli" and language in XNLI_LANGUAGES:
        task = read_task_file(_FOLDER / "xnli.yaml")
        return replace(task, name=name, hub_subset=language, local_name=f"xnli/{language}")
    if name not in _NAMES:
        raise InputError(
            f"unknown task '{name}'; {_name_nearest(name)}allowed: {', '.join(_NAMES)}, "
            f"xnli_{' xnli_'.join(XNLI_LANGUAGES)}; a "
            "task of your own is given with --task_file"
        )
    task = read_task_file(_FOLDER / f"{name}.yaml")
    return replace(task, local_name=task.local_name or name)


def _name_nearest(name: str) -> str:
    """Return a hint at the task that is most like an unknown one: "SST-2" and "sst2" are one."""
    task_of_letters = {_letters_of(task): task for task in _NAMES}
    task_of_letters.update(_ALIASES)
    return did_you_mean(
        _letters_of(name.lower()),
        task_of_letters,
        shown=lambda letters: repr(task_of_letters[letters]),
    )


def _letters_of(name: str) -> str:
    return "".join(filter(str.isalnum, name))
