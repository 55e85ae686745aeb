# Everything a person or CI does with this repository. Tools are pinned here
# and live in .tmp/bin; nothing is installed elsewhere but by `make setup`.
SHELL := /bin/bash
GO ?= go
BIN := $(CURDIR)/.tmp/bin

GOLANGCI_LINT := v2.15.0
BUF := v1.47.2
PROTOC_GEN_GO := v1.36.11
PROTOC_GEN_CONNECT_GO := v1.21.1

BUILD := CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w"

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: all
all: build lint test ## build, lint, test

.PHONY: build
build: ## bin/glovebox and the slim bin/glovebox-agent, both static
	$(BUILD) -o bin/ ./cmd/glovebox ./cmd/glovebox-agent

.PHONY: image
image: ## the container image glovebox/glovebox:VERSION in this machine's Docker engine
	@$(MAKE) --no-print-directory build >&2
	@bin/glovebox image build base >&2
	@$(GO) run ./packaging

.PHONY: setup
setup: ## what tests need: packages, runsc, Docker's engine, the base template
	GO="$(GO)" scripts/setup

.PHONY: teardown
teardown: ## stop what setup started
	scripts/teardown

.PHONY: test
test: ## everything that must be true, from bare; ends within an hour on two cores
	GO="$(GO)" scripts/test

.PHONY: unit
unit: ## the Go tests alone, as the calling user
	$(GO) test -race -shuffle=on ./...

.PHONY: lint
lint: $(BIN)/golangci-lint-$(GOLANGCI_LINT) ## golangci-lint with .golangci.yml
	$< run ./...

.PHONY: fix
fix: $(BIN)/golangci-lint-$(GOLANGCI_LINT) ## let golangci-lint mend what it can
	$< run --fix ./...

.PHONY: generate
generate: tools-generate ## the wire's Go code from its proto files
	cd internal/envd/wire && PATH="$(BIN):$$PATH" buf generate

.PHONY: tools-generate
tools-generate: $(BIN)/buf-$(BUF) $(BIN)/protoc-gen-go-$(PROTOC_GEN_GO) $(BIN)/protoc-gen-connect-go-$(PROTOC_GEN_CONNECT_GO)

.PHONY: bench
bench: build ## the benchmarks of the backends, as ratios in one run; a table on standard output
	$(GO) test -run '^$$' -bench . -benchtime 20x -timeout 60m -p 1 ./subprocess/bench ./docker/bench ./gvisor/bench | $(GO) run ./internal/testenv/benchtable

.PHONY: soak
soak: build ## the long runs: hundreds of sandboxes, kills at random moments
	GLOVEBOX_TEST_SOAK=1 GLOVEBOX_TEST_REQUIRE=subprocess $(GO) test -count=1 -timeout 4h -run Soak -v ./...

.PHONY: test-v2
test-v2: ## the subprocess backend under a pure cgroup v2 kernel, in a QEMU guest
	GO="$(GO)" scripts/test-v2

.PHONY: cover
cover: ## coverage by function
	@mkdir -p .tmp
	$(GO) test -coverprofile .tmp/cover.out ./...
	$(GO) tool cover -func .tmp/cover.out

.PHONY: clean
clean: ## remove what was built, tools included
	rm -rf bin .tmp

# A tool's file name holds its version, so that a new pin builds it anew.
define tool
$(BIN)/$(1)-$(2):
	@mkdir -p $(BIN)
	cd /tmp && GOFLAGS=-mod=mod GOBIN=$(BIN)/install-$(1) $(GO) install $(3)@$(2)
	mv $(BIN)/install-$(1)/$(1) $$@ && rmdir $(BIN)/install-$(1)
	ln -sf $(1)-$(2) $(BIN)/$(1)
endef
$(eval $(call tool,golangci-lint,$(GOLANGCI_LINT),github.com/golangci/golangci-lint/v2/cmd/golangci-lint))
$(eval $(call tool,buf,$(BUF),github.com/bufbuild/buf/cmd/buf))
$(eval $(call tool,protoc-gen-go,$(PROTOC_GEN_GO),google.golang.org/protobuf/cmd/protoc-gen-go))
$(eval $(call tool,protoc-gen-connect-go,$(PROTOC_GEN_CONNECT_GO),connectrpc.com/connect/cmd/protoc-gen-connect-go))
