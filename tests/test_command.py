"""The command `bert-recipes`: in a checkout, and out of an installed wheel."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from python_process import REPOSITORY, run_python

from bert_recipes.errors import InputError
from bert_recipes.shipped import ROOT, find_config


PRETRAIN = ROOT / "recipes" / "configs" / "pretrain"


def test_the_list_has_every_script_and_what_configurations_there_are():
    lines = run_python("-m bert_recipes").stdout.splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    scripts = {path.stem.replace("_", "-") for path in (REPOSITORY / "recipes").glob("*.py")}
    assert scripts | {"train-tokenizer", "compare-tokenizers"} <= listed
    [configs] = [line for line in lines if line.startswith("recipes/configs/pretrain: ")]
    assert {"quickstart", "laptop", "bert_base"} <= set(configs.split(": ")[1].split(", "))


def test_a_command_is_the_script_with_its_options():
    text = run_python("-m bert_recipes count-parameters --help").stdout
    assert text.startswith("usage: bert-recipes count-parameters ")
    numbers = run_python("-m bert_recipes count-parameters --size tiny").stdout
    assert numbers == run_python("recipes/count_parameters.py --size tiny").stdout


def test_an_unknown_command_is_one_line():
    [line] = run_python("-m bert_recipes pretain", code=1).stderr.splitlines()
    assert line.startswith(
        "error: no command 'pretain': did you mean pretrain? allowed: add-tokens"
    )


def test_a_configuration_is_found_by_file_by_name_and_as_the_documentation_writes_it(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert find_config("laptop", PRETRAIN) == PRETRAIN / "laptop.yaml"
    assert find_config("recipes/configs/pretrain/laptop.yaml", PRETRAIN) == PRETRAIN / "laptop.yaml"
    Path("laptop").mkdir()
    assert find_config("laptop", PRETRAIN) == PRETRAIN / "laptop.yaml"
    Path("laptop").rmdir()
    Path("laptop").write_text("size: mini\n")
    assert find_config("laptop", PRETRAIN) == Path("laptop")
    with pytest.raises(InputError, match=r"no file latop; did you mean laptop\? allowed: a file, "):
        find_config("latop", PRETRAIN)
    assert find_config("missing.yaml", PRETRAIN) == Path("missing.yaml")  # reading it says so


def test_the_scripts_take_the_names(tmp_path):
    error = run_python("recipes/pretrain.py --config latop", code=1).stderr
    assert "--config: there is no file latop; did you mean laptop?" in error
    for script, name in (
        ("finetune", "glue"),
        ("prepare_corpus", "local_text"),
        ("prepare_on_cluster", "local_text"),
    ):
        error = run_python(f"recipes/{script}.py --config {name} --no_option 1", code=1).stderr
        assert "unknown option --no_option" in error
    error = run_python("tokenizer/train.py --config quicstart", code=1).stderr
    assert "did you mean quickstart?" in error


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout."""
    pytest.importorskip("setuptools", "77")
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"  # a build leaves files in it
    for name in ("src", "recipes", "tokenizer", "accelerate_configs"):
        shutil.copytree(REPOSITORY / name, checkout / name)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, checkout / name)
    offline = ["--quiet", "--no-index", "--no-deps"]
    run_pip("wheel", *offline, "--no-build-isolation", "--wheel-dir", folder, checkout)
    [wheel] = folder.glob("bert_recipes-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel):
    """The command of a wheel in a virtual environment, which has the packages of this one."""
    environment = wheel.parent / "venv"
    venv.create(environment, symlinks=True)
    offline = ["--quiet", "--no-index", "--no-deps"]
    run_pip("--python", environment / "bin" / "python", "install", *offline, wheel)
    [packages] = (environment / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "bert-recipes"


def run_pip(*words):
    command = [sys.executable, "-m", "pip", *map(str, words)]
    subprocess.run(command, check=True, env=without_sources())


def without_sources():
    """The environment without PYTHONPATH."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run_installed(command, folder, *words):
    command = [command, *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=without_sources(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_a_wheel_trains_without_a_checkout(installed, small_store, tmp_path):
    where = run_installed(
        installed.with_name("python"),
        tmp_path,
        "-c",
        "import bert_recipes.shipped; print(bert_recipes.shipped.ROOT)",
    )
    assert where.stdout.strip().endswith("/bert_recipes/shipped")
    listed = run_installed(installed, tmp_path).stdout
    assert listed == run_python("-m bert_recipes").stdout
    flags = "--size 1/32 --max_steps 2 --max_minutes null --output_dir run"
    trained = run_installed(
        installed, tmp_path, *f"pretrain --config laptop --store {small_store} {flags}".split()
    ).stdout
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "report.md").is_file()

    # There is no Makefile to go on with.
    hints = re.findall(r"bert-recipes (\S+) (.*)", trained)
    assert [command for command, _ in hints] == ["finetune", "finetune", "push-to-hub"]
    assert "make " not in trained
    for command, options in hints:
        usage = run_installed(installed, tmp_path, command, "--help").stdout
        for option in re.findall(r"--\w+", options):
            assert re.search(rf"{option}\b", usage)


def test_uvx_takes_a_wheel_from_a_local_index(wheel, small_store, tmp_path):
    """What the wheel requires is found by its name; the files are those that are installed here."""
    uvx = shutil.which("uvx", path=str(Path(sys.executable).parent))
    if uvx is None:
        pytest.skip("uv is not installed")
    index = tmp_path / "index"
    index.mkdir()
    shutil.copy(wheel, index)
    for package in importlib.metadata.distributions():
        if package.name != "bert-recipes":
            write_stub(index, package)

    options = ["--offline", "--no-index", "--find-links", index, "--cache-dir", tmp_path / "cache"]
    options += ["--python", sys.executable, "--from", wheel]
    flags = "--size 1/32 --max_steps 2 --max_minutes null --output_dir run"
    words = f"pretrain --config laptop --store {small_store} {flags}".split()
    run_installed(uvx, tmp_path, *options, "bert-recipes", *words)
    assert (tmp_path / "run" / "model.safetensors").is_file()


def write_stub(index, package):
    """Write a wheel with the metadata of an installed package, whose file leads to the package."""
    name = canonicalize_name(package.name).replace("-", "_")
    stem = f"{name}-{package.version}"
    files = {
        f"{name}.pth": sysconfig.get_path("purelib") + "\n",
        f"{stem}.dist-info/METADATA": package.read_text("METADATA"),
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    files[record] = "".join(f"{path},,\n" for path in (*files, record))
    with zipfile.ZipFile(index / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
