# Targets with a ## comment are shown by `make help`.
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
SEED       ?= 1
STORIES    ?= 1000000
PROVIDER   ?= tpu
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
SHFMT       = mvdan.cc/sh/v3/cmd/shfmt@v3.14.1
SHELL_FILES = .ci/run .ci/tools $$(find . -name '*.sh' -not -path './bin/*')
PACKAGES    = ./...
SOURCE      = bench cmd internal examples release test
FUZZTIME   ?= 10s
LIMIT      ?= 80m
# RUN names the tests of `make race` and `make test-kube`; none: all.
RUN        ?=
# RERUN=N: if at most N tests have failed, `make test` and `make test-all` run each of them
# once more, alone, and name them. If more have failed, or without RERUN, no test runs twice.
RERUN      ?=
# Most tests of `make test` wait more than they compute, so four packages run at once. It
# needs no browser. Like `make race`, it leaves go vet to `make lint`.
test check: TOOLS = test
test: TEST_FLAGS = -p 4 -vet=off
# Compilers, linkers and tests live too briefly to gain from collecting garbage often.
test test-all: export GOGC ?= 300
GOTESTSUM   = gotest.tools/gotestsum@v1.13.0
# These have no goroutines of their own.
UNRACED     = /(lease|preflight|examples/train|release|agent/program|agent/program/build|cmdline|complete|cost|event|fault|gcloud|gke/controllers|held|help|hosts|mask|options|plan|provision|settings|sim/groups|sim/wire|suspect|workload)$$
export CGO_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help build demo test test-all test-kube race soak matrix bench fuzz lint docs picture check release clean tools

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/multihost, with the agent for workers in it
	@mkdir -p bin
	go run ./release/agent
	go build -buildvcs=false -tags grpcnotrace -ldflags "-s -w -X main.buildVersion=$(VERSION)" -o bin/multihost ./cmd/multihost

demo: build ## train on 2 slices that PROVIDER makes: tpu, gce (simulated) or gke (Kubernetes)
	PROVIDER='$(PROVIDER)' ./examples/demo.sh

test: tools ## run the tests that a change needs, within minutes
test-all: tools ## run every test that this machine can run, as CI does
test-all race soak matrix docs picture: export MULTIHOST_TESTS = all
test test-all:
ifeq ($(RERUN),)
	go test $(TEST_FLAGS) -timeout $(LIMIT) $(PACKAGES)
else
	go run $(GOTESTSUM) --format standard-quiet --rerun-fails=1 --rerun-fails-max-failures=$(RERUN) \
		--packages='$(PACKAGES)' -- $(TEST_FLAGS) -timeout $(LIMIT)
endif
	@./.ci/tools missing $(TOOLS)

test-kube: build ## run the tests of clusters on a real Kubernetes control plane; the first time, build it
	cd test/kube && go vet ./... && go run ./build >/dev/null && go test -timeout $(LIMIT) -run '$(RUN)' ./...

race: tools ## run the tests in which much happens at once with the race detector
	CGO_ENABLED=1 go test -race -vet=off -timeout $(LIMIT) -run '$(RUN)' $$(go list $(PACKAGES) | grep -vE '$(UNRACED)')

soak: tools ## break connections ten times as often as the tests do; tell STORIES stories of a job (half of them with more faults), 200 on real workers
	SOAK_FAULTS=2000 SOAK_SEED=$(SEED) go test ./cmd/multihost -run TestSoak -count=1 -timeout 30m -v
	LIFE_REAL_STORIES=200 LIFE_REAL_SEED=$(SEED) go test ./cmd/multihost -run '^TestLifeOnRealWorkers$$' -count=1 -timeout 2h -v
	@set -e; n=$$(nproc); all=; for i in $$(seq 0 $$((n - 1))); do \
		LIFE_STORIES=$$((($(STORIES) + n - 1) / n)) LIFE_GCE_STORIES=$$((($(STORIES) + 10 * n - 1) / 10 / n)) LIFE_SEED=$$(($(SEED) + i)) LIFE_WIDE=$$((i % 2)) \
			go test ./cmd/multihost -run '^TestLife(OnComputeEngine)?$$' -count=1 -timeout 48h -v & all="$$all $$!"; \
	done; for one in $$all; do wait $$one; done

matrix: tools ## run every cell of the matrices: of jobs without runner, and of jobs on both kinds of real workers
	MATRIX=whole go test ./cmd/multihost -run '^TestMatrixO(nRealWorkers|fDetachedJobs)' -count=1 -timeout 30m -v

bench: build tools ## measure beside other tools, write docs/performance.md; fails when a bar is missed
	go build -o bin/bench ./bench
	go test -c -o bin/codesync.test ./internal/codesync
	go test -c -o bin/deliver.test ./internal/agent/deliver
	./bin/bench -binary bin/multihost -relay bin/codesync.test -deliver bin/deliver.test -write docs/performance.md

fuzz: tools ## run every fuzz target for FUZZTIME, 10s if not given
	@grep -ro --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd internal examples | sort | while IFS=: read -r file func; do \
		echo "$${func#func } of $${file%/*}"; \
		go test "./$${file%/*}" -run '^$$' -fuzz "^$${func#func }$$" -fuzztime "$(FUZZTIME)" || exit 1; \
	done

lint: tools ## gofmt, go vet, staticcheck, shfmt, shellcheck
	@test -z "$$(gofmt -s -l $(SOURCE))" || { gofmt -s -l $(SOURCE); echo 'run gofmt -s -w on these'; exit 1; }
	go vet $(PACKAGES)
	go run $(STATICCHECK) $(PACKAGES)
	go run $(SHFMT) -i 2 -ci -d $(SHELL_FILES)
	shellcheck $(SHELL_FILES)

docs: tools ## write docs/cli.md anew from the commands, and the pictures of docs/metrics.md
	go test ./cmd/multihost -run 'TestCLIDocument|TestEveryCommandHasASchema' -update
	go test ./internal/report -run TestPictures -update

picture: tools ## draw the terminal session of README.md anew
	go test ./cmd/multihost -run TestSessionPicture -update

release: tools ## write dist: archives for every platform, checksums, bills of materials
	go run ./release -version "$(VERSION)" -out dist

check: lint test ## what to run before you hand in a change; CI runs test-all

clean: ## remove what was built
	rm -rf bin dist internal/agent/program/built/*.gz internal/agent/program/built/*.sha256

tools: ## install the programs that the tests need, as root; else name them
	@./.ci/tools $(TOOLS)
