//go:build unix

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/state/failpoint"
)

// report has the results of a run. It is published as JSON.
type report struct {
	mu       sync.Mutex
	expected []*fault
	set      settings
	path     string         // path of the report's files without the ending; "" before the first write
	armed    map[string]int // number of processes that are armed now, by the name of the fault

	Seed      uint64           `json:"seed"`
	Nodes     int              `json:"nodes"`
	Apps      int              `json:"apps"`
	Kafka     string           `json:"kafka"`
	Started   time.Time        `json:"started"`
	Seconds   float64          `json:"seconds"`
	Faults    int              `json:"faults"`     // faults that struck
	NotStruck int              `json:"not_struck"` // faults that were drawn but did not strike
	Crowded   int              `json:"crowded"`    // faults that were active at the same time as other faults of their app
	Unchecked map[string]int   `json:"unchecked"`  // faults in epochs that were not checked, for example because the run was interrupted
	Records   int              `json:"raw_records"`
	Outputs   int              `json:"output_records"`
	Claims    map[string]int   `json:"claim_mode"`             // how many records were compared, see claimWords
	Rate      float64          `json:"raw_records_per_second"` // over the whole run, checks included
	Stall     float64          `json:"longest_stall_seconds"`
	Quiet     quantiles        `json:"recovery_in_quiet"`
	ByFault   []*faultResult   `json:"by_fault"`
	Scenarios []scenarioResult `json:"scenarios"`
	Epochs    []epochResult    `json:"epochs"`
	Violated  []violation      `json:"violations"`

	quiets []time.Duration
}

// faultResult has the results for one fault of the matrix.
type faultResult struct {
	Row       string    `json:"row"`
	Name      string    `json:"name"`
	Struck    int       `json:"struck"`
	NotStruck int       `json:"not_struck"`
	Recovery  quantiles `json:"recovery"` // only of strikes during which no other fault was active

	took []time.Duration
}

// epochResult is one epoch and its check.
type epochResult struct {
	Name         string         `json:"name"`
	Records      int            `json:"raw_records"`
	Outputs      int            `json:"output_records"`
	Traffic      time.Duration  `json:"traffic_ns"`
	Drain        time.Duration  `json:"drain_ns"`
	Check        time.Duration  `json:"check_ns"`
	LongestStall time.Duration  `json:"longest_stall_ns"`
	Delays       quantiles      `json:"delays"`       // of unique events, also during faults
	Rows         map[string]int `json:"traffic_rows"` // records of rows t1 to t3
	Claims       map[string]int `json:"claim_mode"`
	Report       string         `json:"report"`
}

// quantiles has quantiles of durations, in seconds.
type quantiles struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_s"`
	P99 float64 `json:"p99_s"`
	Max float64 `json:"max_s"`
}

func (q quantiles) String() string {
	if q.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f / %.2f / %.2f", q.P50, q.P99, q.Max)
}

func quantilesIn(all []time.Duration) quantiles {
	if len(all) == 0 {
		return quantiles{}
	}
	all = slices.Sorted(slices.Values(all))
	at := func(share float64) float64 { return all[int(math.Ceil(share*float64(len(all))))-1].Seconds() }
	return quantiles{len(all), at(0.5), at(0.99), at(1)}
}

func quantilesOf(delays []delay) quantiles {
	all := make([]time.Duration, len(delays))
	for i, d := range delays {
		all[i] = time.Duration(d.seen-d.sent) * time.Microsecond
	}
	return quantilesIn(all)
}

func newReport(s settings) *report {
	return &report{
		Claims: map[string]int{}, Unchecked: map[string]int{}, armed: map[string]int{}, set: s, Apps: s.apps, Seed: s.seed, Nodes: s.nodes, Kafka: s.kafka, Started: time.Now().Truncate(time.Second),
	}
}

// expect sets which faults must strike in the run.
func (r *report) expect(faults []*fault) {
	r.expected = faults
	for _, f := range faults {
		r.ByFault = append(r.ByFault, &faultResult{Row: f.row, Name: f.name})
	}
	slices.SortStableFunc(r.ByFault, func(a, b *faultResult) int { return cmp.Compare(a.Row, b.Row) })
}

// struck counts a strike and logs it.
func (r *report) struck(h *harness, k *strike, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := r.result(k.fault)
	var names []string
	for _, s := range k.slots {
		names = append(names, s.name)
		if r.set.apps > 1 {
			names[len(names)-1] = k.name + "-" + s.name
		}
	}
	took, outcome := time.Since(k.began), "ok"
	switch {
	case errors.Is(err, errNotStruck):
		outcome = "not struck: " + err.Error()
		r.NotStruck++
		result.NotStruck++
	default:
		if err != nil {
			outcome = err.Error()
		}
		r.Faults++
		r.Unchecked[k.name]++
		result.Struck++
		if k.crowded.Load() {
			r.Crowded++
		} else if err == nil && k.measured > 0 {
			result.took = append(result.took, k.measured)
		}
	}
	h.say("%4d %-3s %-22s %-7s %5.1fs recovery %4.1fs %s %s", r.Faults, k.fault.row, k.fault.name, strings.Join(names, ","),
		took.Seconds(), k.measured.Seconds(), k.detail, strings.TrimPrefix(outcome, "ok"))
	h.note("fault", map[string]any{
		"epoch": k.name, "row": k.fault.row, "name": k.fault.name, "slots": names, "took": took.Seconds(), "recovery": k.measured.Seconds(),
		"crowded": k.crowded.Load(), "detail": k.detail, "outcome": outcome,
	})
}

// result returns the results of a fault.
func (r *report) result(of *fault) *faultResult {
	return r.ByFault[slices.IndexFunc(r.ByFault, func(f *faultResult) bool { return f.Row == of.row && f.Name == of.name })]
}

// quiet records how long the app took to process events while no fault was active.
func (r *report) quiet(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiets = append(r.quiets, took)
}

func (r *report) epoch(e epochResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Epochs = append(r.Epochs, e)
	if e.Report != "" {
		delete(r.Unchecked, e.Name)
	}
	r.Records += e.Records
	r.Outputs += e.Outputs
	for name, n := range e.Claims {
		r.Claims[name] += n
	}
	r.Stall = max(r.Stall, e.LongestStall.Seconds())
}

// finish writes and prints the report.
func (r *report) finish(h *harness) error {
	err := r.write(h)
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Print("\n", r.markdown())
	if r.path != "" {
		fmt.Printf("report: %s.md\n", r.path)
	}
	return err
}

// sum computes the fields that depend on all others.
func (r *report) sum(h *harness) {
	r.Seconds = time.Since(h.began).Seconds()
	r.Rate = float64(r.Records) / r.Seconds
	r.Quiet = quantilesIn(r.quiets)
	r.Violated = h.violated()
	for _, f := range r.ByFault {
		f.Recovery = quantilesIn(f.took)
	}
}

// The values of settings.round.
const roundRows, roundFaults = "rows", "faults"

// roundComplete reports whether the run has completed the round that its settings require.
func (r *report) roundComplete() bool { return r.set.round != "" && len(r.roundLeft()) == 0 }

// roundLeft names the rows or faults that have not struck yet.
func (r *report) roundLeft() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.set.round == "" {
		return nil
	}
	struck := map[string]bool{}
	for _, f := range r.ByFault {
		name := f.Row
		if r.set.round == roundFaults {
			name += " " + f.Name
		}
		struck[name] = struck[name] || f.Struck > 0
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(struck)), func(name string) bool { return struck[name] })
}

// drawn returns how many faults were drawn from the decks. Each app has its own deck, in which few killChain cards
// stand for many kills.
func (r *report) drawn() int {
	n := r.Faults
	for _, f := range r.ByFault {
		if r.set.apps > 1 && isPoint(f.Name) {
			n -= f.Struck
		}
	}
	return n
}

// verdict returns why the run failed; nil if it did not fail.
func (r *report) verdict(h *harness) error {
	var errs []error
	if n := len(h.violated()); n > 0 {
		errs = append(errs, fmt.Errorf("%d violations, the first: %s", n, h.violated()[0].Message))
	}
	if r.set.scenario != "" {
		return errors.Join(errs...)
	}
	if left := r.roundLeft(); len(left) > 0 {
		errs = append(errs, fmt.Errorf("the round is incomplete, these never struck: %s; give it a longer -duration", strings.Join(left, ", ")))
	}
	if left := r.pointsLeft(); len(left) > 0 {
		errs = append(errs, fmt.Errorf("these fault points killed fewer than %d processes: %s; give the run a longer -duration", r.set.minPoint, strings.Join(left, ", ")))
	}
	if r.Faults < r.set.minFaults {
		errs = append(errs, fmt.Errorf("%d faults struck, want at least %d", r.Faults, r.set.minFaults))
	}
	// If a run is too short for the whole deck, only the faults that were drawn must have struck.
	whole := r.drawn() >= 3*len(r.expected)*r.set.apps/2
	for _, f := range r.ByFault {
		if f.Struck == 0 && (whole || f.NotStruck > 1) {
			errs = append(errs, fmt.Errorf("fault %s %s never struck", f.Row, f.Name))
		}
	}
	return errors.Join(errs...)
}

// markdown returns the report as a page.
func (r *report) markdown() string {
	var b strings.Builder
	r.writeHead(&b)
	r.writeScenarios(&b)
	r.writeFaults(&b)
	r.writePoints(&b)
	r.writeEpochs(&b)
	return b.String()
}

func (r *report) writeHead(b *strings.Builder) {
	fmt.Fprintf(b, "# Faults, %s\n\n", r.Started.Format(time.DateOnly))
	fmt.Fprintf(b, "%d cores, %s/%s, %s, Apache Kafka %s with %d broker(s) on the same machine, %d app(s), each with %d oncebus processes with %d worker(s) per stage.\n"+
		"Session timeout %v, transaction timeout %v, commit interval %v.\n\n    %s\n\n",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), r.Kafka, r.Nodes, r.set.apps, baseSlots, workers,
		sessionTimeout, transactionTimeout, commitInterval, r.set.command(r.Kafka))
	if r.set.apps > 1 {
		fmt.Fprintf(b, "The apps ran side by side, each with faults and checks of its own. Rows whose faults hit one app only: %s.\n\n", strings.Join(crowdRows, ", "))
	}
	fmt.Fprintf(b, "| | |\n| --- | --- |\n| violations | %d |\n| faults that struck | %d (%d with others at the same time) |\n| drawn, but the moment did not come | %d |\n"+
		"| raw records | %d |\n| output records | %d |\n| claim mode | %s |\n| raw records a second, checks included | %.0f |\n| longest stall of a partition | %.1f s |\n"+
		"| nothing broken any more: until events flow in every partition, p50 / p99 / max s | %v |\n| time | %s |\n\n",
		len(r.Violated), r.Faults, r.Crowded, r.NotStruck, r.Records, r.Outputs, claimsLine(r.Claims), r.Rate, r.Stall, r.Quiet, time.Duration(r.Seconds*1e9).Round(time.Second))
	for _, name := range slices.Sorted(maps.Keys(r.Unchecked)) {
		fmt.Fprintf(b, "- epoch %s is not checked: %d faults\n", name, r.Unchecked[name])
	}
	for _, v := range r.Violated[:min(len(r.Violated), 20)] {
		fmt.Fprintf(b, "- VIOLATION %s: %s\n", v.Promise, v.Message)
	}
	if len(r.Violated)+len(r.Unchecked) > 0 {
		b.WriteString("\n")
	}
}

// command returns the command line of the run.
func (s settings) command(kafka string) string {
	line := fmt.Sprintf("go run ./benchmarks/faults -duration %v -seed %d -nodes %d -interval %v", s.duration, s.seed, s.nodes, s.interval)
	if s.apps > 1 {
		line += fmt.Sprintf(" -apps %d -epoch %v -rate %d", s.apps, s.epoch, s.rate)
	}
	if s.minPoint > 0 {
		line += fmt.Sprintf(" -min-faults %d -min-point %d", s.minFaults, s.minPoint)
	}
	if s.lenient {
		line += " -lenient"
	}
	if len(s.filter) > 0 {
		line += " -faults " + strings.Join(s.filter, ",")
	}
	if kafka != kafkatest.KafkaVersion {
		line = "ONCEBUS_TEST_KAFKA=" + kafka + " " + line
	}
	return line
}

func (r *report) writeScenarios(b *strings.Builder) {
	if len(r.Scenarios) == 0 {
		return
	}
	b.WriteString("| scenario | measured | times | p50 / p99 / max s | promised |\n| --- | --- | --- | --- | --- |\n")
	for _, s := range r.Scenarios {
		fmt.Fprintf(b, "| %s | %s | %d | %v | %s |\n", s.Name, s.What, s.Times.N, s.Times, s.Promise)
	}
	b.WriteString("\n")
}

func (r *report) writeFaults(b *strings.Builder) {
	if len(r.ByFault) == 0 {
		return
	}
	b.WriteString("Recovery is from the end of the fault (for a kill: from the kill) until events made later had passed every partition, of strikes that were alone.\n\n" +
		"| row | fault | struck | not struck | recovery p50 / p99 / max s |\n| --- | --- | --- | --- | --- |\n")
	rows := map[string]int{}
	for _, f := range r.ByFault {
		rows[f.Row] += f.Struck
		fmt.Fprintf(b, "| %s | %s | %d | %d | %v |\n", f.Row, f.Name, f.Struck, f.NotStruck, f.Recovery)
	}
	b.WriteString("\nBy row:")
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(b, " %s %d", row, rows[row])
	}
	b.WriteString(".\n\nRows that the traffic itself is:\n\n")
	for _, row := range slices.Sorted(maps.Keys(trafficRows)) {
		n := 0
		for _, e := range r.Epochs {
			n += e.Rows[row]
		}
		fmt.Fprintf(b, "- %s: %d records (%s)\n", row, n, trafficRows[row])
	}
}

// writePoints writes the kills at each fault point.
func (r *report) writePoints(b *strings.Builder) {
	fewest, all := math.MaxInt, 0
	var rows []string
	for _, point := range failpoint.Names {
		for _, f := range r.ByFault {
			if f.Name == killPrefix+point {
				rows = append(rows, fmt.Sprintf("| %s | %d |", point, f.Struck))
				fewest, all = min(fewest, f.Struck), all+f.Struck
			}
		}
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n%d kills at fault points, at least %d at each:\n\n| fault point | kills |\n| --- | --- |\n%s\n", all, fewest, strings.Join(rows, "\n"))
	}
}

func (r *report) writeEpochs(b *strings.Builder) {
	b.WriteString("\n| epoch | raw records | drain s | check s | longest stall s | delay of unique events p50 / p99 / max s | checked |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, e := range r.Epochs {
		fmt.Fprintf(b, "| %s | %d | %.1f | %.1f | %.1f | %v | %s |\n", e.Name, e.Records, e.Drain.Seconds(), e.Check.Seconds(), e.LongestStall.Seconds(), e.Delays, e.Report)
	}
}

// write writes the results so far into the results directory, if there is one. It does not overwrite earlier reports
// of the same day.
func (r *report) write(h *harness) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum(h)
	if h.set.results == "" {
		return nil
	}
	if err := os.MkdirAll(h.set.results, 0o755); err != nil {
		return err
	}
	base := filepath.Join(h.set.results, "faults-"+r.Started.Format(time.DateOnly))
	for n, name := 2, base; r.path == ""; n++ {
		if _, err := os.Stat(name + ".md"); errors.Is(err, os.ErrNotExist) {
			r.path = name
		}
		name = fmt.Sprintf("%s-%d", base, n)
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(r.path+".md", []byte(r.markdown()), 0o644), os.WriteFile(r.path+".json", append(content, '\n'), 0o644))
}
