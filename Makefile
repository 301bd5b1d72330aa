# `make` alone shows this list.
.DEFAULT_GOAL := help
.PHONY: help setup try test test-unit test-long lint bench bench-rp bench-agent bench-identities deb apt-repo release sbom soak docs lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-16s %s\n' "$$name" "$$what"; done

setup: ## make .venv, and install what this machine lacks
	@scripts/setup

try: setup ## see the main job for real: a machine joins, is updated, upgraded, broken and repaired, and leaves
	@.venv/bin/aks-flex-lab --lab try demo $(if $(KEEP),--keep)

recording: setup ## record make try as docs/images/try.svg
	@.venv/bin/python scripts/record_demo.py docs/images/try.svg -- make try

test: ## run the whole suite
	@scripts/setup --tests
	@.venv/bin/python -m scripts.suite all

test-unit: ## run the unit tests (no root, no network)
	@scripts/setup --no-packages
	@.venv/bin/python -m scripts.suite unit

test-long: ## run the exhaustive sweeps
	@scripts/setup --tests
	@.venv/bin/python -m scripts.suite long

lint: setup ## check formatting, rules, types, layers and secrets
	@.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy && .venv/bin/lint-imports --no-cache && .venv/bin/python scripts/audit.py

bench: setup ## measure everything on this machine, and write docs/proof.md (half an hour, and best nothing beside it)
	@.venv/bin/python -m bench.proof

bench-rp: setup ## measure the resource provider beside a real API server and bare databases (half an hour)
	@for part in polls scale held writes; do .venv/bin/python -m bench.rp_$$part || exit 1; done

bench-agent: setup ## measure the daemon: memory, processor time, 10,000 polls (ten minutes)
	@.venv/bin/python -m bench.agent

bench-identities: setup ## measure the agent with each Azure identity, and the kubelet's token (ten minutes)
	@.venv/bin/python -m bench.identities

deb: setup ## build the Debian package into dist/
	@scripts/deb

apt-repo: setup ## make a signed APT repository in dist/apt (KEY=fingerprint URL=address)
	@scripts/apt-repo $(if $(KEY),--key $(KEY)) $(if $(URL),--url $(URL))

release: setup ## make a release: make release VERSION=1.2.3 [KEY=you@example.com]
	@scripts/release $(VERSION) $(if $(KEY),--key $(KEY))

sbom: setup ## write the bills of materials and the lists of licences into dist/
	@scripts/sbom

soak: setup ## three machines and chance for an hour (MINUTES=60, SEED=…)
	@.venv/bin/python -m bench.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

docs: ## make the documentation as a site, in site/
	@scripts/docs build

lock: setup ## pin the dependencies anew
	@scripts/lock

clean: ## remove what make made here (the lab's cache, outside the checkout, stays)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache dist build site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
