# Everything here needs Go, git and make; linters are built by `go run` at a pinned version. make test needs nothing else. make verify has
# the rest: the race detector (a C compiler), tests named TestReal (Java and Maven for Apache Kafka, and the programs that CONTRIBUTING.md
# lists), mutants, faults. Without a program its tests are left out with a line that says so, except with CI=true in the environment: there
# they must run.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

GO ?= go
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0
SCHEMATHESIS := schemathesis==4.32.5
HELM := helm.sh/helm/v3/cmd/helm@v3.21.4
KUBECTL_VALIDATE := sigs.k8s.io/kubectl-validate@v0.0.4
# The modules have the schemas of ServiceMonitor, PrometheusRule and ScaledObject.
PROMETHEUS_OPERATOR := github.com/prometheus-operator/prometheus-operator@v0.85.0
KEDA := github.com/kedacore/keda/v2@v2.21.0
AXE := axe-core@4.14.1

# How long each fuzz target runs: a number of inputs or a duration (60s). A duration may fail at its end without a finding,
# before Go 1.27 (golang/go#75804).
FUZZTIME ?= 5000x
# The longest one package's tests may take; it only ends what hangs.
TEST_TIMEOUT ?= 40m
# How many packages run their tests at a time, and how many tests each: more than CI has cores, because most of a test is waiting.
TEST_PACKAGES ?= 3
TEST_PARALLEL ?= 8
# The same for tests that have real processes and a real broker work meanwhile.
REAL_PACKAGES ?= 2
REAL_PARALLEL ?= 3
# And for tests with the race detector, which computes all the time: one that waits for another would wait in vain.
RACE_PACKAGES ?= 2
RACE_PARALLEL ?= 4
# What make race, make full and make fuzz run: PACKAGES='./dedup ./state' RUN='^TestStore'. PART=k/n is every n-th fuzz target, mutant or row of
# faults, from number k on.
PACKAGES ?= ./... ./.ci/select ./.ci/size
RUN ?= .
PART ?=

# Most lines of a Go file that is not a test.
FILE_LINES_MAX := 460

# Without debug information a first build takes 36 s instead of 43, and the binary has 23 MB instead of 33. Profiles and stack traces
# need none. For a debugger: make build BUILD_FLAGS=
BUILD_FLAGS ?= -trimpath -ldflags=-s -gcflags=all=-dwarf=false

# The race detector needs cgo and a C compiler.
RACE := $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v $$($(GO) env CC) >/dev/null && echo -race)

.PHONY: help
help: ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary bin/oncebus
	CGO_ENABLED=0 $(GO) build $(BUILD_FLAGS) -o bin/oncebus ./cmd/oncebus

.PHONY: demo
demo: build ## deduplicate sample traffic on an embedded broker and check the result; DEMO_FLAGS=--stay goes on until Ctrl-C, to look at the live page
	./bin/oncebus demo $(DEMO_FLAGS)

.PHONY: demo-http
demo-http: build ## the same by HTTP: prints what to try with curl, until Ctrl-C
	./bin/oncebus demo --http

# A test whose name begins with TestReal needs more than Go: a real Kafka, a browser, an SDK. With -short, a test repeats less often what
# only other seeds would tell apart, and scenarios take the embedded broker.
.PHONY: test
test: ## what needs Go alone: the quick tests of every package, ten seeds of the simulation; with Java the main path on Apache Kafka under kill -9 (6 min)
	.ci/failures $(GO) test -short -skip '^TestReal' -vet=off -p $(TEST_PACKAGES) -parallel $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) $(PACKAGES)
	@$(MAKE) --no-print-directory sim SEEDS=10
	@.ci/main-path $(GO)

# Everything, in one go or in parts: make verify PART=0/6. .ci/run runs a sixth, and what a change needs (.ci/select).
.PHONY: verify
verify: tools-note ## everything: the tests with a real Kafka and other programs, the race detector, fuzz, simulation, mutants, chart, release, faults (80 min)
	@$(GO) run ./.ci/select -verify $(or $(PART),0/1) | .ci/each

.PHONY: full
full: ## every test of PACKAGES that RUN matches, those with a real Kafka and other programs too; make check-deployments has those of the chart
	.ci/axe '$(AXE)' .ci/schemathesis '$(SCHEMATHESIS)' .ci/failures $(GO) test -vet=off -p $(REAL_PACKAGES) -parallel $(REAL_PARALLEL) -timeout $(TEST_TIMEOUT) -run '$(RUN)' -skip '$(NEEDS_HELM)' $(PACKAGES)

# The race detector makes a process five times slower, and a real Kafka shows it no goroutine that the embedded broker does not. make soak
# runs the tests on a real Kafka with it. Also left out: long tests of one goroutine, which make test has run without it.
NO_RACE := ^Test(Real|System|FoldIsTheState$$|SampleIsWithinItsError$$|ClusterMove(Explored|MistakesFound)$$)
NO_RACE_PACKAGES := /processor/(explore|switchover|mutants)$$

.PHONY: race
race: race-note ## the quick tests of PACKAGES that RUN matches, with the race detector
ifneq ($(RACE),)
	@packages=$$($(GO) list $(PACKAGES) | grep -vE '$(NO_RACE_PACKAGES)'); [ -z "$$packages" ] || \
		.ci/failures $(GO) test $(RACE) -short -skip '$(NO_RACE)' -vet=off -p $(RACE_PACKAGES) -parallel $(RACE_PARALLEL) -timeout $(TEST_TIMEOUT) -run '$(RUN)' $$packages
endif

.PHONY: race-note
race-note:
ifeq ($(RACE),)
ifeq ($(CI),true)
	@echo 'race: the race detector needs cgo and a C compiler (install gcc)' >&2; exit 1
else
	@echo 'race: no C compiler found: the tests are not run with the race detector'
endif
endif

# go test shows what a test was skipped for only with -v.
.PHONY: tools-note
tools-note:
	@[ -n "$$ONCEBUS_TEST_BROKERS" ] || { command -v java && command -v mvn; } >/dev/null || \
		echo 'verify: no Java 17 or no Maven, and ONCEBUS_TEST_BROKERS names no cluster: the tests against a real Apache Kafka are skipped'
	@{ command -v javac && command -v mvn && command -v npm && python3 -c 'import venv, ensurepip'; } >/dev/null 2>&1 || \
		echo 'verify: no javac, mvn, npm or Python 3 with venv: the executors in Java, TypeScript or Python, the presets of webhooks with the SDKs, and other serialisers, are not tested'
	@command -v tmux >/dev/null || \
		echo 'verify: no tmux: oncebus top is not tested in a terminal'
	@command -v chromium >/dev/null || \
		echo 'verify: no chromium: the live page is not tested in a browser'
	@{ command -v curl && command -v openssl; } >/dev/null || \
		echo 'verify: no curl or no openssl: the commands of WALKTHROUGH.md are not run'
	@{ command -v promtool && command -v prometheus; } >/dev/null || \
		echo 'verify: no prometheus and promtool: alert rules and dashboard are not tested'
	@GOPROXY="file://$$($(GO) env GOMODCACHE)/cache/download" $(GO) run $(HELM) version >/dev/null 2>&1 || \
		echo 'verify: no helm in the module cache (make check-deployments): the chart is not rendered, and its roll not tested'
	@git -c safe.directory='*' cat-file -e "$$(sed -n 's/^const PreviousCommit = "\(.*\)"/\1/p' processor/kafkatest/program/commit.go)^{commit}" 2>/dev/null || \
		echo 'verify: the history here lacks the commit before this state (git fetch --unshallow): its program is not run in one app with this one'
	@command -v redis-server >/dev/null || \
		echo 'verify: no redis-server: the server of a peer in the benchmarks is not tested'
	@{ command -v initdb || ls /usr/lib/postgresql/*/bin/initdb; } >/dev/null 2>&1 || \
		echo 'verify: no initdb of PostgreSQL: the server of a peer in the benchmarks is not tested'

.PHONY: fuzz
fuzz: ## run every fuzz target of PACKAGES for FUZZTIME
	@GO='$(GO)' .ci/fuzz '$(FUZZTIME)' '$(or $(PART),0/1)' $(PACKAGES)

.PHONY: fuzz-http
fuzz-http: ## requests made of the OpenAPI document, and every answer held to it (needs Python 3 with venv)
	@.ci/schemathesis '$(SCHEMATHESIS)' .ci/failures $(GO) test -vet=off -count=1 -timeout 10m -run '^TestRealHTTPFuzz$$' ./cmd/oncebus

# How much of it: make sim SEEDS=1000 HOURS=1000 gives each of 1000 seeds one simulated hour; HOURS=0 some minutes each. FIRST is the
# first seed. make sim SEED=7 replays one seed (HOURS is then its own length). Failed seeds leave their logs in SIM_LOG.
SEEDS ?= 100
HOURS ?= 0
FIRST ?= 1
SIM_LOG ?=
# Nothing in it depends on how fast the machine is; this only ends a run that hangs.
SIM_TIMEOUT ?= 6h

.PHONY: sim
sim: ## SEEDS runs of crashes, rebalances and lost answers in virtual time (testing/synctest), HOURS simulated hours in all
	ONCEBUS_SIM_SEEDS=$(SEEDS) ONCEBUS_SIM_HOURS=$(HOURS) ONCEBUS_SIM_FIRST=$(FIRST) ONCEBUS_SIM_SEED=$(SEED) ONCEBUS_SIM_LOG=$(SIM_LOG) \
		$(GO) test -tags synctests -vet=off -count=1 -timeout $(SIM_TIMEOUT) -v -run '^TestSim(DayWithoutTraffic)?$$' ./processor \
		| awk '{ print; fflush() } /^=== RUN +TestSim$$/ { found = 1 } END { if (!found) { print "sim: no simulation found"; exit 1 } }'

# One of them: make mutants MUTANT=lso-bound-restore. The control run shows that the tests pass without a mutant; CONTROL=skip leaves
# it out where make test has just shown it. PART=0/6 plants the first, the seventh and so on. FILES plants those in these files, and those
# that a test in them is for.
MUTANT ?=
CONTROL ?=
FILES ?=

.PHONY: mutants
mutants: ## plant the defects of processor/mutants one at a time: a test has to see each
	ONCEBUS_MUTANTS_CONTROL=$(CONTROL) ONCEBUS_MUTANTS_PART=$(PART) ONCEBUS_MUTANTS_FILES='$(FILES)' \
		$(GO) test -tags mutants -vet=off -timeout 60m -count=1 -v -run 'TestMutants/.*/$(MUTANT)' ./processor/mutants

.PHONY: real
real: ## only the tests that need more than Go, with the race detector and with their names
	$(GO) test $(RACE) -vet=off -timeout $(TEST_TIMEOUT) -count=1 -v -run '^Test(Real|System)' ./...

.PHONY: bench-state
bench-state: ## the store at size: 10 million keys, beside a plain row per key (minutes)
	$(GO) run ./benchmarks/state -results benchmarks/results

.PHONY: bench-claims
bench-claims: ## claim mode beside an earlier program: events and outcomes a second, and what a process does at rest (a quarter of an hour)
	$(GO) run ./benchmarks/claims -results benchmarks/results

.PHONY: bench-audit
bench-audit: ## oncebus audit on 20 million events, in memory, on disk and as a sample (minutes; needs Java and Maven)
	$(GO) run ./benchmarks/audit -results benchmarks/results

.PHONY: bench-growth
bench-growth: ## what an event costs with more namespaces, routes, partitions, backlog and waiting requests (half an hour; needs Java and Maven)
	$(GO) run ./benchmarks/growth -results benchmarks/results

.PHONY: bench-restart
bench-restart: ## what a restart after kill -9 reads again, at 1 and at 10 million keys (minutes; needs Java and Maven)
	$(GO) run ./benchmarks/scale -what restart -results benchmarks/results

.PHONY: bench-changes
bench-changes: ## seed, export, rebuild and move an app with 50 million keys while events arrive (half an hour, 15 GB of disk; needs Java)
	$(GO) run ./benchmarks/scale -what changes -changes-keys 50000000 -rate 20000 -duplicates 80 -results benchmarks/results

.PHONY: bench
bench: bench-estimate bench-throughput bench-latency bench-ingress bench-scale ## throughput, latency, ingress and scale beside the limit and Kafka Streams (hours; needs a JDK and Maven)

.PHONY: bench-estimate
bench-estimate: ## how long each part of make bench takes
	@for name in throughput latency ingress scale; do echo "bench-$$name:"; $(GO) run ./benchmarks/$$name -estimate || exit 1; done

.PHONY: bench-throughput
bench-throughput: ## oncebus, a transactional passthrough and the peers on the same real broker (an hour)
	$(GO) run ./benchmarks/throughput -results benchmarks/results

.PHONY: bench-peers
bench-peers: ## oncebus, Kafka Streams, Flink, Redis and PostgreSQL under the same faults: events lost and doubled (half an hour)
	$(GO) run ./benchmarks/peers -results benchmarks/results

.PHONY: bench-latency
bench-latency: ## latency from when an event is due to a read_committed reader, at three rates and commit intervals (an hour)
	$(GO) run ./benchmarks/latency -results benchmarks/results

.PHONY: bench-tenants
bench-tenants: ## latency of a tenant alone, and while another one sends ten times its quota (3 minutes)
	$(GO) run ./benchmarks/tenants -results benchmarks/results

.PHONY: bench-ingress
bench-ingress: ## the HTTP ingress: how long a verdict takes, and its throughput beside a plain produce over HTTP (half an hour)
	$(GO) run ./benchmarks/ingress -results benchmarks/results

.PHONY: bench-scale
bench-scale: ## millions of live keys, workers, processes, partitions, rebalances, idle cost (an hour)
	$(GO) run ./benchmarks/scale -results benchmarks/results

# What make soak adds to make verify. The kinds of fault, input and scenario are the same; the seeds are
# others, and each run is longer, for defects that show once in thousands of runs:
#   fuzz     a hundred times the inputs of make verify for each target
#   sim      other seeds, each with half a simulated hour instead of some minutes; the rarest pairs of a request and an error. 100
#            seeds had all kinds of fault and 161 of some 178 pairs
#   embedded the tests with a real Kafka with the race detector, and the scenarios that make verify runs on Kafka also on the embedded broker
#   faults   half an hour with every fault several times, instead of one fault of each row
#   mutants  all of them, where .ci/run plants those that a change needs and a sixth
#   versions rolling upgrade of Kafka, and an earlier build of oncebus in one app with this one
# make soak SOAK_FIRST=501 takes the next seeds.
SOAK_FUZZTIME ?= 500000x
SOAK_FIRST ?= 101
SOAK_SEEDS ?= 400
SOAK_HOURS ?= 200
SOAK_DURATION ?= 30m

.PHONY: soak
soak: ## what make verify runs, with other seeds and for longer: fuzz, simulation, embedded broker, faults (hours)
	$(MAKE) fuzz FUZZTIME=$(SOAK_FUZZTIME)
	$(MAKE) sim FIRST=$(SOAK_FIRST) SEEDS=$(SOAK_SEEDS) HOURS=$(SOAK_HOURS)
	ONCEBUS_TEST_EMBEDDED=true .ci/failures $(GO) test $(RACE) -vet=off -count=1 -parallel $(REAL_PARALLEL) -timeout $(TEST_TIMEOUT) -run '^Test(Real|System)' ./cmd/oncebus
	$(MAKE) faults DURATION=$(SOAK_DURATION) FAULT_INTERVAL=1s RESULTS=
	$(MAKE) mutants
	$(MAKE) versions

# How the faults run: e.g. make faults DURATION=10m SEED=7 NODES=3 FAULTS=p1,b1 FAULT_INTERVAL=4s RESULTS=
# Several faults a second, in small apps side by side, until all counts are reached:
# make faults DURATION=1h FAULT_INTERVAL=300ms FAULTS_FLAGS='-lenient -apps 12 -rate 720 -epoch 3m -min-faults 5000 -min-point 200'
# ONCEBUS_TEST_KAFKA=3.9.2 in the environment runs them, and every test, on another release of Kafka.
DURATION ?= 30m
SEED ?= 0
NODES ?= 1
FAULTS ?=
FAULT_INTERVAL ?= 6s
RESULTS ?= benchmarks/results
FAULTS_FLAGS ?=

.PHONY: executions
executions: ## 50,000 operations while executors, oncebus and Kafka fail: each is executed once (an hour; needs Java and Maven)
	$(GO) run ./benchmarks/executions -results benchmarks/results

.PHONY: faults
faults: ## break a real Kafka and oncebus for DURATION and prove that nothing was lost or repeated (needs Java and Maven)
	$(GO) run ./benchmarks/faults -duration $(DURATION) -seed $(SEED) -nodes $(NODES) -faults '$(FAULTS)' -interval $(FAULT_INTERVAL) -results '$(RESULTS)' $(FAULTS_FLAGS)

# One fault of each row of the matrix, or of FAULTS, then it ends; 20 minutes are the limit for a slow machine. Times are reported and not
# demanded, because other programs may share the machine.
.PHONY: fault-rows
fault-rows: ## one fault of each row of the matrix; FAULTS=p1,b1 some rows, PART=0/6 every sixth
	@rows='$(FAULTS)'; [ -n "$$rows" ] || rows=$$($(GO) run ./benchmarks/faults -list | awk -v part='$(or $(PART),0/1)' \
		'NR > 1 && $$3 == 1 && !seen[$$1]++ { split(part, of, "/"); if (n++ % of[2] == of[1]) printf "%s%s", (some++ ? "," : ""), $$1 }') && \
	$(MAKE) --no-print-directory faults DURATION=20m SEED=1 FAULT_INTERVAL=1s RESULTS= FAULTS="$$rows" FAULTS_FLAGS='-lenient -round rows'

# The scenarios that start with other versions. The earlier build is that of a commit: make versions PREVIOUS=7c39fd5. RATE is in raw
# records a second.
PREVIOUS ?=
RATE ?= 600

.PHONY: versions
versions: ## Kafka 3.9 is upgraded to 4.4 under load, and an earlier build runs in one app with this one (minutes)
	$(GO) run ./benchmarks/faults -scenario upgrade -lenient -seed $(SEED) -rate $(RATE)
	$(GO) run ./benchmarks/faults -scenario previous -lenient -seed $(SEED) -rate $(RATE) $(if $(PREVIOUS),-previous $(PREVIOUS))

.PHONY: check
check: ## every static check
	@$(MAKE) --no-print-directory -k -j4 -Otarget fmt deps length edits tidy lint vuln
	@echo 'check: ok'

.PHONY: fmt
fmt: ## every Go file is formatted
	@files=$$(gofmt -l .) && { [ -z "$$files" ] || { echo "fmt: run gofmt -w on: $$files" >&2; exit 1; }; }

# A module of its own: the product does not depend on the clients of a benchmark.
SECOND_MODULE := benchmarks/handwritten

.PHONY: lint
lint: ## golangci-lint with .golangci.yml: go vet and more, also of the simulation's and the mutants' files
	$(GO) run $(GOLANGCI_LINT) run ./... ./.ci/select ./.ci/size
	$(GO) -C $(SECOND_MODULE) run $(GOLANGCI_LINT) run ./...

.PHONY: deps
deps: ## every import is in the table of .ci/deps
	@GO='$(GO)' .ci/deps

.PHONY: length
length: ## no Go file outside tests is longer than a reader's patience, which comments do not try
	@find . -name '*.go' ! -name '*_test.go' -exec awk -v max=$(FILE_LINES_MAX) \
		'!/^[ \t]*\/\// { n++ } END { if (n > max) { printf "length: %s has %d lines without comments, at most %d are allowed\n", FILENAME, n, max; exit 1 } }' {} \; \
		| { ! grep . >&2; }

.PHONY: size
size: ## how large the tree is and how its files hang together, with the targets (seconds)
	@$(GO) run ./.ci/size

# Not part of make check: helm and kubectl-validate take minutes to build, once.
NEEDS_HELM := ^TestReal(Chart|PageHelm$$|Roll$$)

.PHONY: check-deployments
check-deployments: ## the Helm chart: helm lint and template with three value files, kubectl-validate of the result, and the tests that render it
	@.ci/deployments '$(HELM)' '$(KUBECTL_VALIDATE)' '$(PROMETHEUS_OPERATOR)' '$(KEDA)'
	.ci/failures $(GO) test -vet=off -parallel $(REAL_PARALLEL) -timeout $(TEST_TIMEOUT) -run '$(NEEDS_HELM)' ./cmd/oncebus

# make mutants takes minutes; this takes seconds.
.PHONY: edits
edits: ## the text that each mutant replaces is in the code, and a change of its file selects a test that finds it
	$(GO) test -tags mutants -vet=off -run '^(TestEditsApply|TestSelectionFindsEachMutant)$$' ./processor/mutants

# SAMPLE=60/1 is 60 of them, by seed 1.
SAMPLE ?= 60/1

.PHONY: mutants-sample
mutants-sample: ## plant some defects and run no more than make test runs: it sees each (12 min)
	ONCEBUS_MUTANTS_SAMPLE=$(SAMPLE) $(GO) test -tags mutants -vet=off -timeout 60m -count=1 -v -run '^TestSelectionCatchesASample$$' ./processor/mutants

.PHONY: tidy
tidy: ## go.mod and go.sum hold what the code needs and no more
	$(GO) mod tidy -diff
	$(GO) -C $(SECOND_MODULE) mod tidy -diff

.PHONY: vuln
vuln: ## known vulnerabilities in what the code calls, where their database can be reached
	@GO='$(GO)' .ci/vuln $(GOVULNCHECK) . $(SECOND_MODULE)

.PHONY: pages
pages: ## write the generated sections of the pages (*.md) from the code
	$(GO) test -count=1 -run '^(TestPages|TestAuditPage|TestShippedOpenAPI|TestChartAlerts)$$' ./cmd/oncebus ./processor/ingress -rewrite

# For which platforms: make release RELEASE_PLATFORMS='linux/amd64 darwin/arm64'; host is this machine. REBUILD=true compiles everything
# again, without the build cache. The toolchain is the one that go.mod names; Go fetches it where another one is installed.
RELEASE_PLATFORMS ?=
REBUILD ?= false
RELEASE_GO := GOTOOLCHAIN=$(shell awk '$$1 == "toolchain" { print $$2 }' go.mod) $(GO)

.PHONY: release
release: ## archives, bills of materials, image and sums of the commit in bin/release (a minute for each platform the first time)
	$(RELEASE_GO) run ./deployments/release -go '$(GO)' -platforms '$(RELEASE_PLATFORMS)' -rebuild=$(REBUILD) -out bin/release

# Root runs the image: by buildah where it is installed and works, else by chroot.
.PHONY: release-check
release-check: ## two releases of the commit for this machine are equal, and the image runs the demo (2 min)
	$(RELEASE_GO) test -tags release -vet=off -count=1 -timeout 30m -v -run '^TestRelease' ./deployments/release

# They show the page after a minute of traffic. The test that takes them is the one that checks the page.
.PHONY: screenshots
screenshots: ## take the pictures of the live page and the audit's report in deployments/screenshots (two minutes; needs Chromium and npm)
	mkdir -p deployments/screenshots
	CI=true ONCEBUS_TEST_SCREENSHOTS=$(CURDIR)/deployments/screenshots .ci/axe '$(AXE)' $(GO) test -vet=off -count=1 -v -run '^(TestRealPageInChromium|TestRealAuditReportInChromium)$$' ./cmd/oncebus

.PHONY: clean
clean: ## remove what the build made
	rm -rf bin
