# Binnacle. `make help` lists the verbs; README.md says what they are for.
SHELL := /bin/bash
ADDR  ?= 127.0.0.1:8080
DATA  ?= data
BIN   := $(CURDIR)/bin
SCHEDULES ?= 1000000
SEED  ?= 1000001
TIMES ?= 100
DEV   ?= data/dev
DEV_NATS ?= 127.0.0.1:4222
export CGO_ENABLED ?= 0
export GOFLAGS := -trimpath $(GOFLAGS)

# Every folder below services with a main.go is a program; binnacle composes the others.
SERVICES := $(filter-out binnacle,$(notdir $(patsubst %/main.go,%,$(wildcard services/*/main.go))))
PACKS    := secretlen spin steps upper
HOSTILE  := escape leak
COMMIT   := $(shell git describe --always --dirty 2>/dev/null)
LDFLAGS  := -s -w -X github.com/binnacle-mesh/binnacle/pkg/run.commit=$(COMMIT)

.PHONY: help up dev watch-test build man services packs test check heavy unit race simulator simulate soak e2e images mutate lint deadcode vuln gen fix verify bench compose-up compose-down release print-services clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

up: build ## build, then run the whole mesh in one process (ADDR=, DATA=)
	$(BIN)/binnacle up --addr $(ADDR) --data $(DATA) --packs $(BIN)/packs

dev: services ## run a process per service; build and restart the one that a change touches (ADDR=, DEV=)
	GO111MODULE=off GOWORK=off go build -o .cache/dev ./scripts/tools/dev
	exec .cache/dev mesh -addr $(ADDR) -nats $(DEV_NATS) -data $(DEV) -services "$(SERVICES)" -ldflags '$(LDFLAGS)'

watch-test: ## run the tests that a change touches, as files change
	GO111MODULE=off GOWORK=off go build -o .cache/dev ./scripts/tools/dev
	.cache/dev test

build: packs ## build bin/binnacle, bin/binnacle-hook and bin/binnacle-verify
	go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./services/binnacle ./services/binnacle/hook/cmd/binnacle-hook ./pkg/core/cmd/binnacle-verify

services: build ## build every service as a program of its own, and the NATS server
	@mkdir -p $(BIN)/svc
	go build -ldflags '$(LDFLAGS)' -o $(BIN)/svc/ $(SERVICES:%=./services/%)
	go build -ldflags '-s -w' -o $(BIN)/svc/nats-server ./deploy/nats
	go build -ldflags '-s -w' -o $(BIN)/svc/balancer ./deploy/balancer

man: build ## write a manual page for each command to bin/man
	$(BIN)/binnacle manual $(BIN)/man

packs: ## build the sample packs and the built-in packs
	@mkdir -p $(BIN)/packs
	go build -buildvcs=false -ldflags '-s -w' -o $(BIN)/packs/ $(PACKS:%=./examples/packs/%)
	cp $(PACKS:%=examples/packs/%/*.yaml) $(BIN)/packs/
	GOOS=wasip1 GOARCH=wasm go build -buildvcs=false -ldflags '-s -w' -o $(BIN)/packs/spin-wasi.wasm ./examples/packs/spin
	go build -buildvcs=false -ldflags '-s -w' -o $(BIN)/packs/builtin ./packs/builtin && cp packs/manifests/*.yaml $(BIN)/packs/
	@mkdir -p $(BIN)/hostile-packs && cp -p $(BIN)/packs/* $(BIN)/hostile-packs/
	go build -buildvcs=false -ldflags '-s -w' -o $(BIN)/hostile-packs/ $(HOSTILE:%=./e2e/packs/%)
	cp $(HOSTILE:%=e2e/packs/%/*.yaml) $(BIN)/hostile-packs/
	cp $(BIN)/hostile-packs/escape $(BIN)/hostile-packs/escape-container && cp $(BIN)/hostile-packs/escape $(BIN)/hostile-packs/escape-microvm
	GOOS=wasip1 GOARCH=wasm go build -buildvcs=false -ldflags '-s -w' -o $(BIN)/hostile-packs/escape-wasi.wasm ./e2e/packs/escape

test: ## install what the tests need, then run both stages of the tests (TEST_MINUTES=)
	scripts/test

check: ## the first stage: build, format, lint, dead code, limits, unit tests with the race detector, simulator
	scripts/test check

heavy: ## the second stage: planted defects, containers, compose, clusters, browsers, agents
	scripts/test heavy

unit: ## unit tests of every module, without the race detector
	go test $$(go list work | grep -v /e2e)

race: ## the same under the race detector (needs a C compiler)
	CGO_ENABLED=1 go test -race $$(go list work | grep -v /e2e)

simulator: ## 5,000 schedules of the simulator, 100 of them twice, and every planted defect
	go test -count=1 -timeout 60m -v ./services/binnacle/internal/sim -run 'TestSchedules$$' -schedules 5000
	go test -tags simulator -count=1 -timeout 30m -v ./services/binnacle/internal/sim -run 'TestReproducible$$' -schedules 100
	go test -tags simulator -count=1 -timeout 60m -v ./services/binnacle/internal/sim -run 'TestDefects$$'

simulate: ## SCHEDULES (a million) schedules of the simulator from SEED on; resumes where it was stopped
	go test -count=1 -timeout 0 -v ./services/binnacle/internal/sim -run 'TestSchedules$$' -seed $(SEED) -schedules $(SCHEDULES) -state $(CURDIR)/.cache/simulate-$(SEED).json

soak: services ## the crash tests, TIMES (100) times over
	go test -count=$(TIMES) -timeout 0 -failfast -v ./e2e -run 'TestCrash'

e2e: services ## the same scripts on one process, on one process per service and on compose
	go test -count=1 -timeout 30m ./e2e/...

images: ## build the base images of deploy/images/images.lock in .cache/images (root)
	deploy/images/base .cache/images $$(awk '$$1 == "image" {print $$2}' deploy/images/images.lock)

mutate: ## change one operator at a time and count what tests detect: the trusted core, or PKG="FOLDER …" (docs/mutation.md)
	scripts/mutate $(PKG)

lint: ## golangci-lint with our short list of rules
	scripts/lint

deadcode: ## functions that no program reaches, and those that tests alone reach
	scripts/deadcode

vuln: ## known vulnerabilities in dependencies, by govulncheck (its database is on the internet)
	scripts/vuln

gen: ## regenerate types and references
	cd schemas && go run ./gen
	cd packs && go run ./gen
	cd services/binnacle && go run ./internal/packgen
	cd services/policy && go run ./internal/scopegen
	cd services/gateway && go run ./internal/openapigen
	cd services/binnacle && go run ./internal/asyncgen
	cd services/llm-router && go run ./internal/confgen
	cd services/binnacle && go run ./internal/confgen
	cd services/binnacle && go run . manual --reference ../../docs/reference/cli.md
	GOWORK=off GO111MODULE=off go run ./scripts/tools/pkgdoc

fix: ## put modules in step, regenerate, format
	scripts/modules fix
	$(MAKE) gen
	gofmt -w $$(git ls-files '*.go')

verify: ## what must never be committed broken: modules, generated files, format
	scripts/modules check
	$(MAKE) gen
	test -z "$$(gofmt -l $$(git ls-files '*.go'))"
	git diff --exit-code

bench: services ## measure, each figure beside its floor
	scripts/bench-rivals
	CGO_ENABLED=0 BENCH_ROWS=$(BIN)/bench-decision.json go test -tags bench -count=1 -timeout 20m -run TestBenchDecision ./services/policy/policy
	cd services/egress-broker && CGO_ENABLED=0 go test -tags bench -v -count=1 -timeout 20m -run 'TestBench$$' ./internal/proxy
	CGO_ENABLED=0 go test -tags 'bench containers' -v -count=1 -timeout 20m -run TestLatency ./services/session-runner/internal/containerd
	CGO_ENABLED=0 BENCH_ROWS=$(BIN)/bench-decision.json go test -tags bench -v -count=1 -timeout 240m -run TestBench ./e2e/bench

compose-up: services ## build images and run one container per service
	scripts/compose up

compose-down: ## stop the containers and remove their volumes
	scripts/compose down

release: ## archives, checksums and CycloneDX documents of VERSION=X.Y.Z in dist/VERSION; equal bytes wherever they are built
	scripts/release $(VERSION) dist/$(VERSION)

print-services:
	@echo $(SERVICES)

clean: ## remove what make built (never data/)
	rm -rf bin .cache
