//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// report prints the table of medians and, if asked to, writes it to a file.
func report(s settings, measured map[string][]measurement) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events of about 230 bytes, %d %% copies, %d partitions, %d worker(s) each, commit interval %v, medians of %d rounds.\n\n",
		s.events, s.copies, s.partitions, s.workers, s.commit, s.rounds)
	b.WriteString("| contender | k events/s | lowest, highest | CPU us an event | beside the passthrough | beside it with changelog |\n| --- | --- | --- | --- | --- | --- |\n")
	rates := map[string]float64{}
	for _, name := range contenders {
		ms := measured[name]
		if len(ms) == 0 {
			continue
		}
		var rate, cpu []float64
		for _, m := range ms {
			rate, cpu = append(rate, m.rate), append(cpu, m.cpuMicros)
		}
		rates[name] = median(rate)
		fmt.Fprintf(&b, "| %s | %.0f | %.0f, %.0f | %.2f | %s | %s |\n", name, rates[name]/1e3, slices.Min(rate)/1e3, slices.Max(rate)/1e3, median(cpu),
			ratio(rates[name], rates[contenders[0]]), ratio(rates[name], rates[contenders[1]]))
	}
	fmt.Print(b.String())
	if s.results == "" {
		return nil
	}
	head := fmt.Sprintf("# Throughput, %s\n\n%d cores, %s/%s, %s, Apache Kafka 4.3.1 on the same machine.\n\n    %s\n\n",
		time.Now().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(),
		fmt.Sprintf("go run ./benchmarks/throughput -events %d -rounds %d -workers %d -copies %d", s.events, s.rounds, s.workers, s.copies))
	name := filepath.Join(s.results, "throughput-"+time.Now().Format(time.DateOnly)+".md")
	if err := os.MkdirAll(s.results, 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(head+b.String()), 0o644)
}

func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}
