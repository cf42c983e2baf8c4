# Dayfly's build. Everything uses one set of build flags: other flags would compile every package twice.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false

VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
AGENT := internal/driver/linux/embedded/dayfly-agent
IMAGE ?= base
ROUNDS ?= 60

.PHONY: all build agent helper deps image wheels check vet test test-vm faults faults-binary demo bench compat fuzz clean

all: build

## build: bin/dayfly with the agent and gVisor inside
build: agent helper
	go build -ldflags '$(LDFLAGS)' -o bin/dayfly ./cmd/dayfly

# The agent is rebuilt whenever Go says so; the file is only touched when its bytes change, so the main binary's cache holds.
agent:
	@mkdir -p bin
	go build -ldflags '-s -w' -o bin/dayfly-agent ./cmd/dayfly-agent
	@cmp -s bin/dayfly-agent $(AGENT) || cp bin/dayfly-agent $(AGENT)

# gVisor, packed for embedding: built once, two minutes, then only when its pin changes.
helper:
	@scripts/helper.sh

## deps: install the Debian packages that building, running and testing need (asks sudo when not root)
deps:
	@scripts/deps.sh

## image: build the base image into bin/ (IMAGE=base-node adds npm); cached by its definition
image: deps
	images/build.sh $(IMAGE)

## wheels: the Python packages that demo and tests serve from a local index
wheels: deps
	@scripts/wheels.sh bin/wheels

## check: formatting and vet
check: agent
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'not gofmt-ed:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...

## test: everything (unit, conformance, end-to-end, seeds); parts that cannot run here are skipped with the reason
test: image wheels check build faults-binary
	@scripts/root.sh env PATH="$$PATH" scripts/test.sh

## faults: kill -9 at random, ROUNDS times (default 60), and the other tests of test/faults; one seed again: SEED=N ROUNDS=1
faults: image build faults-binary
	@scripts/root.sh env PATH="$$PATH" GOCACHE="$$(go env GOCACHE)" GOMODCACHE="$$(go env GOMODCACHE)" ROUNDS=$(ROUNDS) \
		DAYFLY_ISOLATION_AUTO="$(or $(ISOLATION),linux)" DAYFLY_TEST_BIN="$$PWD/bin" go test -count=1 -timeout 3h -v ./test/faults -run '$(if $(SEED),Campaign,.)' $(if $(SEED),-seed $(SEED))

# The program with failpoints, which only test/faults runs.
faults-binary: agent helper
	@scripts/faults.sh

## test-vm: bin/dayfly in a Debian 12 guest: kernel 6.1, systemd, pure cgroup v2 (software emulation: about 5 minutes)
test-vm: build
	go test -c -o bin/disk.test ./internal/disk/btrfs
	@scripts/root.sh test/vm/run.sh

## demo: the main job on real input, step by step, then a crash, and 0 left
demo: image wheels build
	@scripts/root.sh env PATH="$$PATH" GOCACHE="$$(go env GOCACHE)" GOMODCACHE="$$(go env GOMODCACHE)" go run ./demo

## bench: the figures of bench/RESULTS.md, with the bare-host floor in the same run
bench: image build
	@scripts/root.sh env PATH="$$PATH" GOCACHE="$$(go env GOCACHE)" GOMODCACHE="$$(go env GOMODCACHE)" \
		DAYFLY_ISOLATION_AUTO="$(or $(ISOLATION),linux)" go run ./bench

## compat: real programs inside each isolation, written to docs/COMPATIBILITY.md (fetches about 320 MB of packages once)
compat: image wheels build
	@$(MAKE) --no-print-directory image IMAGE=base-node
	@scripts/compat/fetch.sh bin/compat
	@scripts/root.sh env PATH="$$PATH" GOCACHE="$$(go env GOCACHE)" GOMODCACHE="$$(go env GOMODCACHE)" \
		DAYFLY_TEST_BIN="$$PWD/bin" go run ./scripts/compat

## fuzz: every fuzz target for FUZZTIME (default 30s)
fuzz: agent
	@scripts/fuzz.sh $(or $(FUZZTIME),30s)

clean:
	rm -rf bin $(AGENT) internal/driver/gvisor/embedded/dayfly-gvisor.zst
