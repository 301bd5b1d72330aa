# `make` without a target shows the help.
.DEFAULT_GOAL := help
.PHONY: help setup build install uninstall try recording test test-full test-unit test-long test-vm lint hook bench bench-rp bench-agent bench-identities deb apt-repo release sbom soak docs lock clean conformance image

help: ## show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-16s %s\n' "$$name" "$$what"; done

setup: ## create .venv and install missing packages
	@scripts/setup

build: setup ## build all packages into dist/: wheels, Azure CLI extension, Debian package
	@scripts/build

install: ## install the agent of this checkout: sudo make install [PREFIX=/usr/local]; run it again to update
	@scripts/install $(PREFIX)

uninstall: ## remove it: sudo make uninstall [PREFIX=/usr/local]
	@scripts/install --uninstall $(PREFIX)

try: setup ## run the demo: a machine joins, is updated, upgraded, repaired and removed, three more enrol with one URL, a bad version is rolled out and comes back (KEEP=1 keeps the lab)
	@.venv/bin/aks-flex-lab --lab try demo $(if $(KEEP),--keep)

recording: setup ## record make try as docs/images/try.svg
	@env -u MAKELEVEL -u MAKEFLAGS -u MFLAGS .venv/bin/python scripts/record_demo.py docs/images/try.svg -- make try

test: ## check every promise of the product (15 minutes on two cores when the tools are built)
	@scripts/setup --tests
	@.venv/bin/python -m scripts.suite test

test-full: ## run the tests that `make test` leaves out (40 minutes)
	@scripts/setup --tests
	@.venv/bin/python -m scripts.suite full

test-unit: ## run the unit tests (no root, no network)
	@scripts/setup --no-packages
	@.venv/bin/python -m scripts.suite unit

test-long: ## run the long tests
	@scripts/setup --tests
	@.venv/bin/python -m scripts.suite long

test-vm: ## run all tests in virtual machines (CUTS=30 random power losses)
	@scripts/setup --tests
	@.venv/bin/python -m scripts.suite vm $(or $(CUTS),30)

conformance: setup ## run Kubernetes' conformance tests on two nodes (FOCUS=text, PROCESSES=6, KEEP=1, LAB=name)
	@.venv/bin/python -m tests.conformance $(if $(FOCUS),--focus '$(FOCUS)') $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(KEEP),--keep) $(if $(LAB),--lab $(LAB))

lint: setup ## check formatting, lint rules, types, import layers and secrets
	@scripts/lint

hook: ## let git run `make lint` before every commit of this clone
	@git config core.hooksPath scripts/hooks

bench: setup ## run all benchmarks and write docs/measurements.md (two hours, on an idle machine)
	@.venv/bin/python -m bench.measurements

bench-rp: setup ## compare the resource provider with a real API server and databases (half an hour)
	@for part in polls scale held writes; do .venv/bin/python -m bench.rp_$$part || exit 1; done

bench-agent: setup ## measure the daemon: memory, CPU time, 10,000 polls (ten minutes)
	@.venv/bin/python -m bench.agent

bench-identities: setup ## measure the daemon with each Azure identity, and the kubelet's token (ten minutes)
	@.venv/bin/python -m bench.identities

deb: setup ## build the Debian package into dist/
	@scripts/deb

image: setup ## build the image of the resource provider into dist/
	@scripts/image

apt-repo: setup ## create a signed APT repository in dist/apt (KEY=fingerprint URL=address)
	@scripts/apt-repo $(if $(KEY),--key $(KEY)) $(if $(URL),--url $(URL))

release: setup ## create a release: make release VERSION=1.2.3 [KEY=you@example.com]
	@scripts/release $(VERSION) $(if $(KEY),--key $(KEY))

sbom: setup ## write SBOMs and lists of licences into dist/
	@scripts/sbom

soak: setup ## run the soak test: random operations and faults on three machines (MINUTES=60, SEED=…)
	@.venv/bin/python -m bench.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

docs: ## build the documentation site in site/
	@scripts/docs build

lock: setup ## update the pinned dependencies
	@scripts/lock

clean: ## remove generated files (the lab's cache, outside the checkout, is kept)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache dist build site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
