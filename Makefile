# bert-recipes. `make` prints this help; every other target first sets up .venv when it is missing.
#   PYTHON=python3   use that interpreter as it is and install nothing
#   ARGS="--field value"   is passed on to the recipe

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CONFIG ?=
LAUNCH ?= $(if $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep GPU),single_gpu,cpu)
ARGS ?=
STORE ?= data/quickstart/store
MODEL ?=
TEACHER ?=
TASK ?=
TASK_FILE ?=
VERSION ?= 1
SWEEP ?=
RUNS ?=
RUN ?=
INPUT ?=
REPO ?=
REVISION ?=
FORMAT ?=
PORT ?= 7860
TABLE ?=
PROFILE ?= cpu
TEXT ?=
VALIDATION ?=
BLIMP ?=
RECIPE ?=
SEEDS ?=

# Waiting threads of OpenMP spin briefly and then sleep. Endless spinning takes the cores from other processes; sleeping at once
# costs small models time at every operation.
export GOMP_SPINCOUNT ?= 30000
# Seconds that torch's launcher waits for processes that it stops. Its default is 30; a step and a checkpoint may take longer.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT ?= 600

# With PYTHON= nothing is installed, and the sources are found by PYTHONPATH.
ifdef PYTHON
READY :=
export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PYTHON := .venv/bin/python
READY := .venv/.installed
export PATH := $(CURDIR)/.venv/bin:$(PATH)
endif
comma := ,
# The first GPU that is seen. An empty list hides all of them.
ON_ONE_GPU := CUDA_VISIBLE_DEVICES=$(if $(filter undefined,$(origin CUDA_VISIBLE_DEVICES)),0,$(firstword $(subst $(comma), ,$(CUDA_VISIBLE_DEVICES)))) $(PYTHON)
# One process needs no launcher: a launcher takes two seconds to start and does not wait for a run that saves at SIGTERM.
ifeq ($(LAUNCH),cpu)
LAUNCHER := ACCELERATE_USE_CPU=true $(PYTHON)
else ifeq ($(LAUNCH),single_gpu)
LAUNCHER := $(ON_ONE_GPU)
else
LAUNCHER := $(PYTHON) -m accelerate.commands.launch --quiet --config_file accelerate_configs/$(LAUNCH).yaml
# A process for each GPU that is seen. Without one, and with a file of your own, the number is that of the file.
ifneq ($(filter ddp fsdp deepspeed_zero%,$(LAUNCH)),)
ifeq ($(origin CUDA_VISIBLE_DEVICES),undefined)
GPUS := $(shell nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)
else
GPUS := $(filter-out -1,$(subst $(comma), ,$(CUDA_VISIBLE_DEVICES)))
endif
LAUNCHER += $(if $(GPUS),--num_processes $(words $(GPUS)))
endif
endif

.PHONY: help install check-names no-sweep no-config has-task has-model pretrain babylm tokenizer corpus show-data glue glue-all paper squad swag ner finetune tinybert predict evaluate blimp demo report card push export compare benchmark speedrun test test-slow lint format clean

## Start and data

help:  ## print this help
	@sed -n 's/^# \{0,1\}//p' Makefile | head -3
	@awk -F':.*## ' '/^## /{printf "\n%s\n", substr($$0, 4)} /^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  CONFIG of pretrain: $(patsubst recipes/configs/pretrain/%.yaml,%,$(wildcard recipes/configs/pretrain/*.yaml))"
	@echo "  LAUNCH:             $(patsubst accelerate_configs/%.yaml,%,$(wildcard accelerate_configs/*.yaml))"

# Torch is installed first and alone, at the pinned version: the range of another package cannot then choose another build.
.venv/.installed: pyproject.toml constraints.txt
	@echo "setting up .venv (once; a few minutes)"
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed")'
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	.venv/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

install: $(READY)  ## set up .venv with the versions of constraints.txt

check-names:
	@test -z "$(CONFIG)" || test -f "recipes/configs/pretrain/$(CONFIG).yaml" || { echo "error: no CONFIG '$(CONFIG)'; there are: $(patsubst recipes/configs/pretrain/%.yaml,%,$(wildcard recipes/configs/pretrain/*.yaml))" >&2; exit 1; }
	@test -f "accelerate_configs/$(LAUNCH).yaml" || { echo "error: no LAUNCH '$(LAUNCH)'; there are: $(patsubst accelerate_configs/%.yaml,%,$(wildcard accelerate_configs/*.yaml))" >&2; exit 1; }
	@test "$(LAUNCH)" != ddp_multi_node || { echo "error: LAUNCH=ddp_multi_node: every machine gives its own rank, which make cannot; start recipes/cluster/pretrain.slurm, or accelerate launch as the head of accelerate_configs/ddp_multi_node.yaml shows" >&2; exit 1; }

INPUT_FORMS := a .txt, .jsonl, .json, .csv, .tsv or .parquet file
# $(call need,SETTING,meaning) refuses a missing setting before anything is started.
need = @test -n "$($(1))" || { echo "error: give $(1)=, $(2)" >&2; exit 1; }

tokenizer: $(READY)  ## train a WordPiece tokenizer: ARGS="--files my_texts/ --output_dir my_tokenizer"
	$(PYTHON) tokenizer/train.py $(if $(CONFIG),--config tokenizer/configs/$(CONFIG).yaml) $(ARGS)

corpus: $(READY)  ## text -> token-id store: CONFIG=local_text ARGS="--files my_texts/ --tokenizer my_tokenizer --output_dir my_store"
	$(PYTHON) recipes/prepare_corpus.py $(if $(CONFIG),--config recipes/configs/corpus/$(CONFIG).yaml) $(ARGS)

# A STORE= that was typed or is in the environment.
GIVEN_STORE = $(if $(and $(STORE),$(filter command% environment%,$(origin STORE))),--store $(STORE))
# ARGS may say what to read, and so may a --config file in it.
DEFAULT_STORE = $(if $(filter --config%,$(ARGS)),$(GIVEN_STORE),--store $(STORE))
STORE_FLAG = $(if $(filter --store% --task% --train_file% --probe_bias%,$(ARGS)),,$(DEFAULT_STORE))

show-data: $(READY)  ## print pairs as the model sees them: STORE=my_store ARGS="--config laptop"
	$(PYTHON) recipes/show_data.py $(STORE_FLAG) $(ARGS)

# Only a given STORE=: the file names one too.
pretrain: check-names $(READY)  ## the quickstart; or CONFIG=bert_base STORE=my_store LAUNCH=ddp ARGS="--max_steps 1000"
	$(LAUNCHER) recipes/pretrain.py --config recipes/configs/pretrain/$(or $(CONFIG),quickstart).yaml $(if $(filter --store% --train_file%,$(ARGS)),,$(GIVEN_STORE)) $(MODEL_FLAG) $(ARGS)

BABYLM := data/babylm
BABYLM_CONFIG = $(or $(CONFIG),babylm_night)
BABYLM_RUN = $(or $(RUN),runs/$(BABYLM_CONFIG))
# What the store is of: two lines of a file.
BABYLM_TEXT = $$(sed -n 1p $(BABYLM)/text)
BABYLM_VALIDATION = $$(sed -n 2p $(BABYLM)/text)
# Results that are older than the store are of another text: then training starts, which refuses the folder.
BABYLM_IS_TRAINED = test ! -f $(BABYLM_RUN)/unfinished -a $(BABYLM_RUN)/all_results.json -nt $(BABYLM)/store/store.json

$(BABYLM)/tokenizer/vocab.txt:
	$(PYTHON) tokenizer/train.py --config tokenizer/configs/babylm.yaml --files $(TEXT)

$(BABYLM)/store/store.json: $(BABYLM)/tokenizer/vocab.txt
	$(PYTHON) recipes/prepare_corpus.py --config recipes/configs/corpus/babylm.yaml --files $(TEXT) $(if $(VALIDATION),--validation_files $(VALIDATION))

# An unfinished run is resumed. A finished one is only scored, unless ARGS has one of these.
BABYLM_STARTS = $(filter --overwrite_run% --resume% --estimate%,$(ARGS))

babylm: check-names $(READY)  ## ten million words in a night, with BLiMP over the words seen: TEXT=my_texts BLIMP=blimp/data [VALIDATION=held_out_texts]; CONFIG=babylm_gpu for a GPU (never run)
	@ls $(BLIMP) > /dev/null
	@if test ! -f $(BABYLM)/text; then \
		test -n "$(TEXT)" || { echo "error: give TEXT=, a folder of .txt or .train files" >&2; exit 1; }; \
		ls $(TEXT) $(VALIDATION) > /dev/null; \
		mkdir -p $(BABYLM); \
		printf '%s\n' "$(TEXT)" "$(VALIDATION)" > $(BABYLM)/text; \
	elif test -n "$(TEXT)" -a "$(TEXT)" != "$(BABYLM_TEXT)" || test -n "$(VALIDATION)" -a "$(VALIDATION)" != "$(BABYLM_VALIDATION)"; then \
		echo "error: $(BABYLM) is of TEXT=$(BABYLM_TEXT) VALIDATION=$(BABYLM_VALIDATION); remove it and runs/babylm_* for another text" >&2; \
		exit 1; \
	fi
	$(MAKE) $(BABYLM)/store/store.json TEXT="$(BABYLM_TEXT)" VALIDATION="$(BABYLM_VALIDATION)"
	@if test -z "$(BABYLM_STARTS)" && $(BABYLM_IS_TRAINED); then \
		echo "$(BABYLM_RUN) is finished, BLIMP=FOLDER scores it; RUN=FOLDER trains another"; \
	else \
		$(LAUNCHER) recipes/pretrain.py --config recipes/configs/pretrain/$(BABYLM_CONFIG).yaml --store $(BABYLM)/store --output_dir $(BABYLM_RUN) $(ARGS); \
	fi
ifeq ($(filter --estimate%,$(ARGS)),)
	$(if $(BLIMP),$(MAKE) blimp MODEL=$(BABYLM_RUN) ARGS="--every_checkpoint true --max_pairs 100")
endif

## Fine-tune

FINETUNE = $(LAUNCHER) recipes/finetune.py --config recipes/configs/finetune
MODEL_FLAG = $(if $(MODEL),--model_name_or_path $(MODEL))

TASK_FLAG = $(if $(TASK_FILE),--task_file $(TASK_FILE),$(if $(TASK),--task $(TASK)))
TASK_NAME = $(if $(TASK_FILE),$(basename $(notdir $(TASK_FILE))),$(TASK))
SWEEP_TASK = $(PYTHON) recipes/sweep_finetuning.py --launch $(LAUNCH) --sweep $(SWEEP) --output_dir runs/$(TASK_NAME)_$(basename $(notdir $(SWEEP)))

# A SWEEP= or CONFIG= that a target does not take would be ignored in silence: refuse it first.
no-sweep:
	@test -z "$(SWEEP)" || { echo "error: SWEEP= is for glue, glue-all and finetune: make finetune TASK=swag SWEEP=$(SWEEP)" >&2; exit 1; }
no-config:
	@test -z "$(CONFIG)" || { echo "error: CONFIG= is for pretrain, tokenizer, corpus and babylm; a configuration of recipes/configs/finetune: make finetune TASK=... ARGS=\"--config recipes/configs/finetune/NAME.yaml\"" >&2; exit 1; }
has-task:
	@test -n "$(TASK_FLAG)" || { echo "error: give TASK_FILE=, the YAML file of your task (docs/tasks.md), or TASK=, the name of one" >&2; exit 1; }

glue: no-config check-names $(READY)  ## fine-tune on a GLUE task: TASK=mnli MODEL=runs/my_bert [SWEEP=paper] ARGS="--data_dir DATA"
	@case "$(TASK)" in cola|sst2|mrpc|stsb|qqp|mnli|qnli|rte|wnli) ;; *) echo "error: TASK is '$(TASK)'; allowed: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli; another task: make finetune TASK=NAME, or TASK_FILE=FILE" >&2; exit 1;; esac
ifeq ($(SWEEP),)
	$(FINETUNE)/glue.yaml --task $(TASK) $(MODEL_FLAG) $(ARGS)
else
	$(SWEEP_TASK) --config recipes/configs/finetune/glue.yaml --task $(TASK) $(MODEL_FLAG) $(ARGS)
endif

glue-all: no-config check-names $(READY)  ## all nine GLUE tasks, their mean beside the paper's: MODEL= [SWEEP=paper] ARGS="--submission true" from the start for the leaderboard's zip
	$(PYTHON) recipes/glue_all.py --launch $(LAUNCH) --output_dir runs/glue $(if $(SWEEP),--sweep $(SWEEP)) $(MODEL_FLAG) $(ARGS)

squad: no-sweep no-config check-names $(READY)  ## fine-tune on SQuAD: VERSION=1 or 2, MODEL=, ARGS="--data_dir DATA"
	@case "$(VERSION)" in 1|1.1|2|2.0) ;; *) echo "error: VERSION is '$(VERSION)'; allowed: 1 or 2" >&2; exit 1;; esac
	$(FINETUNE)/$(if $(filter 2 2.0,$(VERSION)),squad_v2,squad).yaml $(MODEL_FLAG) $(ARGS)

swag: no-sweep no-config check-names $(READY)  ## fine-tune on SWAG: MODEL=, ARGS="--data_dir DATA"
	$(FINETUNE)/swag.yaml $(MODEL_FLAG) $(ARGS)

ner: no-sweep no-config check-names $(READY)  ## fine-tune on CoNLL-2003: MODEL=, ARGS="--data_dir DATA"
	$(FINETUNE)/ner.yaml $(MODEL_FLAG) $(ARGS)

finetune: no-config check-names has-task $(READY)  ## fine-tune on a task of your own, or on any by its name: TASK_FILE=my_task.yaml or TASK=xnli_de, MODEL=runs/my_bert [SWEEP=paper]
	$(if $(SWEEP),$(SWEEP_TASK),$(LAUNCHER) recipes/finetune.py) $(TASK_FLAG) $(MODEL_FLAG) $(ARGS)

tinybert: no-sweep no-config check-names has-task $(READY)  ## distil a fine-tuned model in two runs: TASK=sst2 TEACHER=runs/sst2 MODEL=runs/my_student ARGS="--data_dir augmented"
	$(call need,TEACHER,a model that is fine-tuned on the task)
	$(call need,MODEL,the student: a run of --objective tinybert)
	$(FINETUNE)/tinybert_intermediate.yaml $(TASK_FLAG) $(MODEL_FLAG) --teacher $(TEACHER) --output_dir runs/$(TASK_NAME)_layers $(ARGS)
	$(FINETUNE)/tinybert_prediction.yaml $(TASK_FLAG) --model_name_or_path runs/$(TASK_NAME)_layers --teacher $(TEACHER) --output_dir runs/$(TASK_NAME)_tinybert $(ARGS)

## Look and predict

# A --config file may name the model.
EVALUATED_MODEL = $(if $(filter --config%,$(ARGS)),$(MODEL_FLAG),--model_name_or_path $(or $(MODEL),runs/quickstart))

evaluate: $(READY)  ## measure a checkpoint: MODEL=runs/quickstart STORE=..., or MODEL=runs/mrpc TASK=mrpc ARGS="--data_dir DATA", or TASK_FILE=
	$(PYTHON) recipes/evaluate_checkpoint.py $(EVALUATED_MODEL) $(or $(TASK_FLAG),$(STORE_FLAG)) $(ARGS)

predict: $(READY)  ## texts -> predictions with probabilities: MODEL=runs/mrpc INPUT=texts.jsonl [ARGS="--output_file predictions.jsonl"]
	$(call need,MODEL,the folder of a fine-tuning run)
	$(call need,INPUT,$(INPUT_FORMS))
	$(PYTHON) recipes/predict.py $(MODEL_FLAG) --input_file $(INPUT) $(ARGS)

# Not inside a folder called as a model of the Hub: it would hide the model.
BLIMP_RESULTS = $(if $(wildcard $(MODEL)/.),$(MODEL)/blimp,runs/blimp/$(MODEL))

blimp: $(READY)  ## grammar by minimal pairs: MODEL=runs/my_bert BLIMP=blimp/data
	$(call need,MODEL,a checkpoint with a masked-LM head)
	$(call need,BLIMP,the folder data/ of github.com/alexwarstadt/blimp)
	$(PYTHON) recipes/score_sentences.py $(MODEL_FLAG) --blimp_dir $(BLIMP) --output_dir $(BLIMP_RESULTS) $(ARGS)

report: $(READY)  ## write the report of a finished run or sweep anew: RUN=runs/quickstart
	$(call need,RUN,the folder of a finished run)
	$(PYTHON) recipes/write_report.py --runs $(RUN) $(ARGS)

compare: $(READY)  ## runs beside each other, in runs/compared: RUNS="runs/a runs/b"
	@set -- $(RUNS); test $$# -ge 2 || { echo "error: give RUNS=\"runs/a runs/b\", the folders of two finished runs or more" >&2; exit 1; }
	$(PYTHON) recipes/write_report.py --runs $(RUNS) $(ARGS)

# Check MODEL= before anything is installed.
has-model:
	$(call need,MODEL,a run's folder or any BERT checkpoint with its tokenizer)

demo: has-model $(READY)  ## a page in the browser to try a checkpoint: MODEL=runs/quickstart [PORT=7860]
	$(PYTHON) recipes/demo.py $(MODEL_FLAG) --port $(PORT) $(ARGS)

## Share

card: $(READY)  ## the model card of a run: RUN=runs/quickstart ARGS="--license apache-2.0 --language en"
	$(call need,RUN,the folder of a finished run)
	$(PYTHON) recipes/write_model_card.py --run_dir $(RUN) $(ARGS)

export: $(READY)  ## a run as ONNX, compared with its checkpoint: RUN=runs/quickstart FORMAT=onnx or int8 [ARGS="--data_dir DATA"]
	$(call need,RUN,the folder of a run or checkpoint)
	@case "$(or $(FORMAT),onnx)" in onnx|int8) ;; *) echo "error: FORMAT is '$(FORMAT)'; allowed: onnx, int8" >&2; exit 1;; esac
	$(PYTHON) recipes/export.py --model_name_or_path $(RUN) --format $(or $(FORMAT),onnx) $(ARGS)

push: $(READY)  ## a finished run to the Hub, private: RUN=runs/quickstart REPO=me/my-bert [REVISION=branch] ARGS="--private false"
	$(call need,RUN,the folder of a finished run or of a checkpoint)
	$(call need,REPO,the repository on the Hub: me/my-bert)
	$(PYTHON) recipes/push_to_hub.py --run $(RUN) --repo $(REPO) $(if $(REVISION),--revision $(REVISION)) $(ARGS)

## Measure and develop

paper: $(READY)  ## tables of the paper, with their claims: [TABLE=5] PROFILE=cpu ARGS="--store STORE --data_dir DATA"
	$(ON_ONE_GPU) paper/run.py $(if $(TABLE),--tables $(TABLE)) --profile $(PROFILE) $(if $(SEEDS),--num_seeds $(SEEDS)) $(ARGS)

benchmark: $(READY)  ## beside stock transformers; pretraining of tiny and mini in about 8 minutes, others by ARGS="--suite finetuning", steps, data, inference, time_to_quality, all
	$(ON_ONE_GPU) benchmarks/benchmark.py $(ARGS)

speedrun: $(READY)  ## seconds to a fixed held-out loss (docs/speedrun.md): the record; or RECIPE=my_recipe.yaml, judged beside it
	$(ON_ONE_GPU) $(if $(RECIPE),benchmarks/speedrun_judge.py --candidate $(RECIPE),benchmarks/speedrun.py) $(ARGS)

test: $(READY)  ## the tests, offline, a few minutes on 2 cores
	$(PYTHON) -m pytest -n auto --dist worksteal $(ARGS)

test-slow: $(READY)  ## the longer proofs
	$(PYTHON) -m pytest -m slow $(ARGS)

lint: $(READY)  ## style and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

format: $(READY)  ## format the code
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

# Targets of earlier versions.
define removed
	@echo "make $@ was removed: $(1)" >&2; exit 2
endef
glue-submission: ; $(call removed,use --submission true in the ARGS of make glue-all)
compare-tokenizers: ; $(call removed,use python tokenizer/compare.py)
params: ; $(call removed,use python recipes/count_parameters.py)
convert: ; $(call removed,use python recipes/convert_checkpoint.py)
static: ; $(call removed,use python recipes/static_vs_contextual.py)
ner-features: ; $(call removed,use python recipes/feature_based_ner.py)
score: ; $(call removed,use python recipes/score_sentences.py)
features: ; $(call removed,use python recipes/extract_features.py)
probe-bias: ; $(call removed,use python recipes/evaluate_checkpoint.py --probe_bias true)
compare-stock: ; $(call removed,use python benchmarks/compare_with_stock.py)
screenshots: ; $(call removed,use python tools/screenshots.py)
paper-all: ; $(call removed,use make paper without TABLE=)
compare-launches: ; $(call removed,use make test-slow ARGS=tests/invariants/test_launches.py)

clean:  ## remove the quickstart's data and run, and caches; .venv stays
	rm -rf data/quickstart runs/quickstart .pytest_cache .ruff_cache .mypy_cache build
