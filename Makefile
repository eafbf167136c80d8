# Evenkeel. `make run` and `make test` are all that a fresh machine needs.

GO        ?= go
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
MODULE    := github.com/evenkeel-gpu/evenkeel
LDFLAGS   := -s -w -X $(MODULE)/app.Version=$(VERSION) -X $(MODULE)/app/node.Version=$(VERSION)
# go-nvml refers to functions that an older driver lacks; only lazy binding
# lets the process start there, whatever the distribution's default.
LAZY      := -extldflags=-Wl,-z,lazy

# NVIDIA marks many functions that go-nvml wraps as deprecated; it is not ours
# to say so at every build.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

.PHONY: all build crashpoints run test bench standin generate clean

all: build

## build: both binaries into build/
build:
	@mkdir -p build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/evenkeel ./cmd/evenkeel
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/evenkeel-host ./cmd/evenkeel-host
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS) "$(LAZY)"' -o build/evenkeel-node ./cmd/evenkeel-node

## crashpoints: both binaries as the end-to-end test kills them, into
## build/crashpoints/; nothing of it is in those of `build`
crashpoints:
	@mkdir -p build/crashpoints
	CGO_ENABLED=0 $(GO) build -tags crashpoints -trimpath -ldflags '$(LDFLAGS)' -o build/crashpoints/evenkeel ./cmd/evenkeel
	CGO_ENABLED=1 $(GO) build -tags crashpoints -trimpath -ldflags '$(LDFLAGS) "$(LAZY)"' -o build/crashpoints/evenkeel-node ./cmd/evenkeel-node

## run: build, then `evenkeel up`: a simulated fleet where there is no GPU driver
run:
	@scripts/install run
	@$(MAKE) --no-print-directory build
	build/evenkeel up

## test: install what the tests need, then every check, each stage with its time
test:
	@scripts/test

## bench: print the figures of docs/results.md
bench: build standin
	@scripts/bench

## standin: libnvidia-ml.so.1 over a simulated world
standin:
	@sim/nvml/standin/build.sh build/standin

## generate: what follows from the catalogue, and the page's bundle. The
## generator is compiled against the catalogue alone, so that it also runs when
## the generated code is stale.
generate:
	@scripts/generate

clean:
	rm -rf build
