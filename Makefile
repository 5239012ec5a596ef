# `make quickstart` and `make test` work from a fresh clone with python3 (3.11 or newer), git and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_EXTRAS := dev,classic,box2d,mujoco,atari,dmc,envpool,video,plots,wandb,tune,distributed
WORKERS ?= 2
QUICKSTART := runs/CartPole-v1/ppo/quickstart-s0

# One thread per process: small nets gain nothing from more, and spinning threads of two processes slow each other.
export OMP_NUM_THREADS ?= 1

.PHONY: help quickstart test lint clean

help:
	@echo "make quickstart   install, train PPO on CartPole, evaluate it"
	@echo "make test         install what the tests need, check style and types, run the tests"
	@echo "make lint         style and types only"
	@echo "make clean        remove caches and build leftovers ($(VENV) and runs stay)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kumite needs Python 3.11 or newer; say which: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps spare the installation while neither file has changed. torch is named so that the constraint picks its build.
$(VENV)/.stamp-core: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch --editable '.[classic]'
	@touch $@

$(VENV)/.stamp-test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch --editable '.[$(TEST_EXTRAS)]'
	@touch $@ $(VENV)/.stamp-core

# Each quickstart starts over: its folder has a fixed name and belongs to this target alone.
quickstart: $(VENV)/.stamp-core
	rm -rf $(QUICKSTART)
	$(BIN)/kumite train ppo CartPole-v1 --name quickstart --seed 0
	$(BIN)/kumite eval $(QUICKSTART)
	@$(BIN)/python scripts/solved.py $(QUICKSTART) 475
	@echo
	@echo "The run is in $(QUICKSTART):"
	@echo "  config.yaml                what ran; repeat it with: $(BIN)/kumite train --file $(QUICKSTART)/config.yaml"
	@echo "  metrics.csv, evals.csv     the curves; or: $(BIN)/tensorboard --logdir runs"
	@echo "  checkpoints/best           the agent; in Python: kumite.load('$(QUICKSTART)')"
	@echo "Go on with: $(BIN)/kumite play $(QUICKSTART)"

lint: $(VENV)/.stamp-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find kumite tests examples benchmarks scripts docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
