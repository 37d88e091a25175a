# Few verbs. Each does all the set-up it needs; when that is already done it costs a second and no network.
# Needs: Python 3.11+, a JDK 17+, make.

PYTHON ?= python3
RUN := .venv/bin/

.PHONY: help demo test check bench setup venv lock clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    see it work"
	@echo "make test    run every test"
	@echo "make check   formatting, lint and types"
	@echo "make bench   run the experiments, quickly"
	@echo "make setup   only set up: .venv, jars, our own Java"
	@echo "make lock    pin packages and jars anew (maintainers; needs network)"
	@echo "make clean   remove everything that set-up and runs made"

venv:
	@$(PYTHON) src/lockstep/setup/venv.py

setup: venv
	@$(RUN)lockstep setup

demo: setup
	@$(RUN)lockstep demo

test: setup
	@$(RUN)python -m pytest $(ARGS)

check: venv
	$(RUN)ruff format --check .
	$(RUN)ruff check .
	$(RUN)mypy

bench: setup
	@$(RUN)lockstep bench all --quick

lock: setup
	$(RUN)pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --extra dev --extra bench \
		--no-emit-index-url --no-emit-find-links --output-file requirements.lock pyproject.toml
	$(RUN)lockstep setup --relock --set spark --set kafka --set kafka-zookeeper

clean:
	rm -rf .venv .venv.lock .lockstep src/lockstep/spark/lockstep-spark.jar dist build .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis bench-results spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
