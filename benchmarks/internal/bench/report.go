//go:build unix

package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"oncebus/processor/kafkatest"
)

// Machine describes the machine of a benchmark.
type Machine struct {
	CPU       string
	Cores     int
	MemoryGiB float64
	OS        string
	Go        string
	Kafka     string
	FranzGo   string
	// Load is the load average of the minute before the benchmark. It shows whether there was other work on the
	// machine, which affects rates most, and the CPU time per event least.
	Load string
	Date string
}

// ThisMachine describes the machine. Call it before the benchmark puts load on the machine.
func ThisMachine() Machine {
	m := Machine{
		CPU: "unknown processor", Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Kafka: kafkatest.Version(), FranzGo: "unknown", Load: LoadAverage(), Date: time.Now().UTC().Format(time.DateOnly),
	}
	// On a system without /proc these fields stay empty.
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = field(info, "model name")
	}
	if info, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kib float64
		if _, err := fmt.Sscanf(field(info, "MemTotal"), "%f kB", &kib); err == nil {
			m.MemoryGiB = kib / (1 << 20)
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/twmb/franz-go" {
				m.FranzGo = dep.Version
			}
		}
	}
	return m
}

// LoadAverage returns the machine's load average of the last minute.
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// Head is the start of a report: title, machine, versions, command.
func (m Machine) Head(title, command string) string {
	return fmt.Sprintf("# %s, %s\n\n%s, %d cores, %.0f GiB, %s, %s, franz-go %s, Apache Kafka %s on the same machine; load average before the start %s.\n\n    %s\n\n",
		title, m.Date, m.CPU, m.Cores, m.MemoryGiB, m.OS, m.Go, m.FranzGo, m.Kafka, m.Load, command)
}

// Command returns the command line that repeats a benchmark, with the flags that were set. It leaves out flags that
// only name directories (where), because these differ on each machine.
func Command(name string, where ...string) string {
	line := "go run ./benchmarks/" + name
	flag.Visit(func(f *flag.Flag) {
		if !slices.Contains(append(where, "results", "profiles"), f.Name) {
			line += " " + argument(f)
		}
	})
	return line
}

// argument returns a flag in the form of a command line. The value of a boolean flag follows an equals sign,
// because package flag would treat a separate word after a boolean flag as the first argument, and so as the
// end of the flags.
func argument(f *flag.Flag) string {
	value := f.Value.String()
	if b, is := f.Value.(interface{ IsBoolFlag() bool }); is && b.IsBoolFlag() {
		if value == "true" {
			return "-" + f.Name
		}
		return "-" + f.Name + "=" + value
	}
	if strings.Contains(value, " ") {
		value = "'" + value + "'"
	}
	return "-" + f.Name + " " + value
}

// Report is what a benchmark has found.
type Report struct {
	Title  string
	Name   string // name of the benchmark
	File   string // beginning of the names of its files; empty means Name
	Text   string // Markdown
	Goals  []Goal
	Charts map[string]Chart // by the end of the chart's file name, such as "-cpu"
	Result any              // all figures, written as JSON
}

// Publish prints a report. Unless dir is empty, it also creates dir and writes the report there, as Markdown and JSON
// together with the charts.
func (m Machine) Publish(dir string, r Report) error {
	command := Command(r.Name)
	text := m.Head(r.Title, command) + strings.TrimRight(r.Text, "\n") + "\n" + GoalTable(r.Goals)
	fmt.Print(text)
	if dir == "" {
		return nil
	}
	files := map[string][]byte{".md": []byte(text)}
	for end, chart := range r.Charts {
		files[end+".svg"] = chart.SVG()
	}
	data, err := json.MarshalIndent(struct {
		Machine Machine
		Command string
		Goals   []Goal `json:",omitempty"`
		Result  any
	}{m, command, r.Goals, r.Result}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, cmp.Or(r.File, r.Name)+"-"+m.Date)
	errs := []error{os.WriteFile(path+".json", append(data, '\n'), 0o644)}
	for end, file := range files {
		errs = append(errs, os.WriteFile(path+end, file, 0o644))
	}
	return errors.Join(errs...)
}

// field returns the value of a line "name: value" in a file of /proc; empty if there is no such line.
func field(file []byte, name string) string {
	for line := range strings.Lines(string(file)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
